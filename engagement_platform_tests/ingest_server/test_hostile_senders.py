"""What one sender may cost the others: bodies made to be large, refused events, idle and slow connections."""

from __future__ import annotations

import gzip
import json
import resource
import secrets
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from engagement_platform.pii.vault import open_vault
from engagement_platform.settings import Settings
from engagement_platform_tests.ingest_server.world import event, ids, key_for, server, stored, wait_until

pytestmark = pytest.mark.crash


def test_work_that_one_game_makes_is_bounded_while_health_is_answered(tmp_path: Path) -> None:
    key, slowest, done = key_for(tmp_path, "puzzle"), [0.0], threading.Event()
    lines = gzip.compress(b'{"a":1}\n' * 1_000_000)
    names = [f"canary{number:04}" for number in range(2000)]
    wide = [event(f"w-{n}", email=names, notes=[f"note {m}" for m in range(1000)]) for n in range(100)]
    with server(tmp_path, INGEST_SERVER__RATE_BYTES="0.001") as running:

        def look() -> None:
            while not done.is_set():
                began = time.monotonic()
                assert running.call("GET", "/healthz").status == 200
                slowest[0] = max(slowest[0], time.monotonic() - began)

        looking = threading.Thread(target=look)
        looking.start()
        packed = {"Content_Encoding": "gzip", "Authorization": f"Bearer {key}"}
        zipped = gzip.compress(json.dumps(wide).encode())
        reply = running.call("POST", "/v1/events", zipped, Content_Type="application/json", **packed)
        assert {one["reason_code"] for one in reply.said["refused"]} == {"too_many_values"}
        assert (reply.status, len(reply.said["refused"])) == (422, 100)
        posts = [
            running.call("POST", "/v1/events", lines, Content_Type="application/x-ndjson", **packed) for _ in range(5)
        ]
        done.set()
        looking.join()
    assert [post.status for post in posts] == [413] * 4 + [429]
    assert slowest[0] < 1


def test_bombs_that_come_again_earn_a_pause(tmp_path: Path) -> None:
    key, bomb = key_for(tmp_path, "puzzle"), gzip.compress(b" " * 10**7)
    headers = {"Content_Type": "application/json", "Content_Encoding": "gzip", "Authorization": f"Bearer {key}"}
    with server(tmp_path, INGEST_SERVER__RATE_BYTES="0.001") as running:
        statuses = [running.call("POST", "/v1/events", bomb, **headers).status for _ in range(6)]
    assert statuses == [413] * 4 + [429] * 2


def test_refused_events_beyond_their_quota_are_answered_for_and_fill_no_disk(tmp_path: Path) -> None:
    key = key_for(tmp_path, "puzzle")
    settings = {"INGEST_SERVER__REFUSED_BYTES": "40000", "INGEST_SERVER__SEGMENT_AGE": "PT0.1S"}
    with server(tmp_path, **settings) as running:
        for number in range(10):  # these compress well
            assert running.post(key, [event(f"r-{number} ", note="x" * 60_000)]).status == 422
        for number in range(10):
            reply = running.post(key, [event(f"q-{number} ", note=secrets.token_hex(20_000)), event(f"a-{number}")])
            assert (reply.status, reply.said["accepted"], len(reply.said["refused"])) == (200, 1, 1)
        assert b'ingest_refused_not_kept_total{game="puzzle"} 10.0' in running.call("GET", "/metrics").body
        wait_until(lambda: "a-9" in ids(stored(tmp_path / "games")), "a-9 was not delivered")
    refused = open_vault(Settings(home=tmp_path)).refused("puzzle", purpose="support", reader="test")
    kept = [json.loads(body)["event_id"] for _, body in refused]
    assert sorted(kept) == [f"r-{number} " for number in range(10)]
    assert len(ids(stored(tmp_path / "games"))) == 10


def test_idle_connections_without_a_key_keep_no_client_with_one_out(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    key = key_for(tmp_path, "puzzle")
    with server(tmp_path, INGEST_SERVER__REQUEST_WITHIN="PT600S") as running, ExitStack() as opened:
        for number in range(1005):
            idle = opened.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=60))
            if number % 2:
                idle.sendall(b"POST /v1/events HTTP/1.1\r\nHost: x\r\n")
        assert running.post(key, [event("k-1")]).said == {"accepted": 1, "refused": []}


def test_a_request_that_does_not_arrive_in_time_is_ended(tmp_path: Path) -> None:
    key = key_for(tmp_path, "puzzle")
    begun = b"POST /v1/events HTTP/1.1\r\nHost: x\r\n"
    rest = f"Content-Type: application/json\r\nContent-Length: 100\r\nAuthorization: Bearer {key}\r\n\r\n[".encode()
    with server(tmp_path, INGEST_SERVER__REQUEST_WITHIN="PT1S") as running, ExitStack() as opened:

        def connected(*sent: bytes) -> socket.socket:
            made = opened.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=60))
            for part in sent:
                made.sendall(part)
            return made

        answered = connected(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        while not answered.recv(4096).endswith(b"}"):
            pass
        answered.sendall(b"\r\n")
        slow = [connected(), connected(begun), answered]
        assert connected(begun, rest).recv(12) == b"HTTP/1.1 408"
        for each in slow:
            with suppress(ConnectionResetError):
                while each.recv(4096):
                    pass


def test_bytes_that_are_no_request_fill_no_log(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", running.port), timeout=60) as made:
                made.sendall(b"\x16\x03\x01 and no request\r\n\r\n")
                assert made.recv(12) == b"HTTP/1.1 400"
        assert running.stop() == (0, "Stopped; everything is delivered\n")

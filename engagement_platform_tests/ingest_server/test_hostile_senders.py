"""What one sender may cost the others: bodies made to be large, refused events, idle and slow connections."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message

from engagement_platform.ingest_server import app
from engagement_platform.ingest_server.intake import Taken
from engagement_platform.settings import Settings
from engagement_platform_tests.ingest_server.world import (
    Reply,
    Server,
    event,
    ids,
    key_for,
    refused,
    server,
    stored,
    wait_until,
)

pytestmark = pytest.mark.crash

GAMES = ("lines", "wide", "values", "full", "bombs", "calm", "held", "stuck", "counts", "busy")

BEGUN = b"POST /v1/events HTTP/1.1\r\nHost: x\r\n"


def rest(key: str) -> bytes:
    """The rest of the headers, and the first byte of a hundred."""
    return f"Content-Type: application/json\r\nContent-Length: 100\r\nAuthorization: Bearer {key}\r\n\r\n[".encode()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server that forgets no byte, closes no slow connection and was given few descriptors, and a key for each game.

    Allowances are by game.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    home = tmp_path_factory.mktemp("home")
    keys = {game: key_for(home, game) for game in GAMES}
    with server(home, INGEST_SERVER__RATE_BYTES="0.001", INGEST_SERVER__REQUEST_WITHIN="PT600S") as running:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
        yield running, keys


async def answer_of(asked: FastAPI, game: str, body: bytes = b"[]", kind: str = app.JSON) -> int:
    """Send a body to an application in this process; the status. The key is the game's name."""
    statuses = []
    headers = [(b"content-type", kind.encode()), (b"authorization", f"Bearer {game}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/events", "query_string": b"", "headers": headers}

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if message["type"] == "http.response.start" else [])

    await asked(scope, receive, send)
    return int(statuses[0])


def in_this_process(home: Path) -> FastAPI:
    """An application whose spool and delivery are not there, and that takes a game's name for its key."""
    nothing: Any = SimpleNamespace(size_bytes=0)
    keys: Any = SimpleNamespace(recognize=lambda text: SimpleNamespace(game=text, revoked_ts=None))
    return app.build_app(app.Parts(Settings(home=home), nothing, nothing, keys, nothing))


@contextmanager
def health_within_a_second(running: Server) -> Iterator[None]:
    """Asks for /healthz again and again meanwhile."""
    slowest, wrong, done = [0.0], list[object](), threading.Event()

    def look() -> None:
        while not done.is_set():
            began = time.monotonic()
            try:
                wrong.extend({running.call("GET", "/healthz").status} - {200})
            except OSError as error:
                wrong.append(error)
            slowest.append(time.monotonic() - began)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        done.set()
        looking.join()
    assert wrong == []
    assert len(slowest) > 1
    assert max(slowest) < 1


def test_a_million_lines_are_counted_and_not_read_and_come_again_at_a_price(
    attacked: tuple[Server, dict[str, str]],
) -> None:
    running, keys = attacked
    lines = gzip.compress(b'{"a":1}\n' * 1_000_000)
    with health_within_a_second(running):
        posts = [running.send(keys["lines"], lines, "application/x-ndjson", Content_Encoding="gzip") for _ in range(6)]
    assert [post.status for post in posts] == [413] * 5 + [429]


def test_a_body_of_more_values_than_all_its_events_may_have_is_not_read(
    attacked: tuple[Server, dict[str, str]],
) -> None:
    """All in one event, which by itself would be refused for its values, and kept."""
    running, keys = attacked
    one = json.dumps([event("v-1", notes=[1] * 500_001)], separators=(",", ":")).encode()
    with health_within_a_second(running):
        reply = running.send(keys["values"], one)
    assert (reply.status, reply.said["reason_code"]) == (413, "too_many_values")


def test_lines_and_values_are_counted_before_any_is_read(attacked: tuple[Server, dict[str, str]]) -> None:
    """Read, the one would be an event after empty lines, and the other no JSON."""
    running, keys = attacked
    one = json.dumps(event("n-1")).encode()
    for body, kind, code in (
        (b"\n" * 1_001 + one, app.LINES, "too_many_events"),
        (b"," * 500_001, app.JSON, "too_many_values"),
    ):
        reply = running.send(keys["counts"], body, kind)
        assert (reply.status, reply.said["reason_code"]) == (413, code)


@pytest.mark.parametrize(("kind", "body"), [(app.JSON, b"1," * 510_000), (app.LINES, b"1\n" * 2_000)])
def test_nothing_of_a_body_with_too_much_in_it_is_parsed(
    kind: str, body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[bytes]()
    monkeypatch.setitem(app._READERS, kind, read.append)
    monkeypatch.setattr(app, "sent_as_lines", app._READERS[app.LINES])
    asked = in_this_process(tmp_path)
    assert asyncio.run(answer_of(asked, "calm", body, kind)) == 413
    assert read == []


def test_events_with_thousands_of_declared_and_other_values_are_refused_before_one_is_looked_for_in_the_other(
    attacked: tuple[Server, dict[str, str]],
) -> None:
    running, keys = attacked
    names, notes = [[f"{word}{number:04}" for number in range(3_000)] for word in "cn"]
    # A body with fewer values than it may have: it is read.
    wide = gzip.compress(json.dumps([event(f"w-{n}", email=names, notes=notes) for n in range(60)]).encode())
    with health_within_a_second(running):
        replies = [running.send(keys["wide"], wide, Content_Encoding="gzip") for _ in range(14)]
    read = [reply for reply in replies if reply.status != 429]
    assert len(replies) > len(read) >= 4
    for reply in read:
        assert (reply.status, len(reply.said["refused"])) == (422, 60)
        assert {one["reason_code"] for one in reply.said["refused"]} == {"too_many_values"}


def largest() -> bytes:
    """As many events as a request may have, each with nearly as many values as it may have, half of them declared."""
    names, notes = [[f"{word}{number:03}" for number in range(490)] for word in ("canary-of-", "note-of-")]
    full = json.dumps([event(f"f-{n}", email=names, notes=notes) for n in range(500)], separators=(",", ":")).encode()
    assert len(full) > 7_000_000
    return gzip.compress(full)


def test_the_largest_bodies_that_are_taken_keep_nobody_waiting_for_health(
    attacked: tuple[Server, dict[str, str]],
) -> None:
    (running, keys), full = attacked, largest()
    with health_within_a_second(running):
        statuses = [running.send(keys["full"], full, Content_Encoding="gzip").status for _ in range(6)]
    taken = statuses.index(429)
    assert taken >= 3
    assert statuses == [200] * taken + [429] * (6 - taken)


def test_small_requests_of_another_game_are_answered_while_the_largest_bodies_are_taken(
    attacked: tuple[Server, dict[str, str]],
) -> None:
    """Each of them would wait for a whole body if bodies were taken where requests are received."""
    (running, keys), full, small = attacked, largest(), list[float]()

    def timed(send: Callable[[], Reply]) -> float:
        began = time.monotonic()
        assert send().status == 200
        return time.monotonic() - began

    with ThreadPoolExecutor(2) as pool:
        large = [
            pool.submit(timed, lambda: running.send(keys["busy"], full, Content_Encoding="gzip")) for _ in range(2)
        ]
        while not all(each.done() for each in large):
            small.append(timed(lambda: running.post(keys["calm"], [event(f"s-{len(small)}")])))
    assert len(small) > 3
    assert max(small) < min(each.result() for each in large) / 2


def test_taking_personal_data_out_of_an_event_costs_as_much_as_out_of_many_with_as_many_values(tmp_path: Path) -> None:
    """In time of the processor; if each value were looked for in each other one, ten times as much or more."""
    key = key_for(tmp_path, "puzzle")

    def cost(events: int, values: int) -> int:
        """Ticks that the server takes for so many events, each with so many declared values and so many others."""

        def ticks() -> int:
            words = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
            return int(words[11]) + int(words[12])

        names, notes = [[f"{'a' * 20}{word}{number:05}" for number in range(values)] for word in "cn"]
        sent = [event(f"{values}-{number}", email=names, notes=notes) for number in range(events)]
        before = ticks()
        reply = running.send(key, gzip.compress(json.dumps(sent).encode()), Content_Encoding="gzip")
        assert reply.said == {"accepted": events, "refused": []}
        return ticks() - before

    limits = {"INGEST_SERVER__MAX_VALUES": "30000", "INGEST_SERVER__MAX_EVENT_BYTES": "1000000"}
    with server(tmp_path, INGEST_SERVER__SEGMENT_AGE="PT1H", **limits) as running:
        cost(50, 200)  # what the first request pays for
        assert cost(1, 10_000) < 3 * cost(50, 200)


def test_requests_of_one_game_wait_for_one_another_and_those_of_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def take(_parts: object, game: str, *_: object) -> Taken:
        assert game == "calm" or goes_on.wait(60)
        return Taken()

    monkeypatch.setattr(app, "_take", take)
    asked = in_this_process(tmp_path)

    async def both() -> tuple[int, int, set[int]]:
        busy = [asyncio.create_task(answer_of(asked, "busy")) for _ in range(200)]
        # They all come first.
        await asyncio.sleep(0.1)
        calm = await asyncio.wait_for(answer_of(asked, "calm"), 30)
        done = sum(task.done() for task in busy)
        goes_on.set()
        return calm, done, set(await asyncio.gather(*busy))

    assert asyncio.run(both()) == (200, 0, {200})


def test_bombs_that_come_again_earn_a_pause(attacked: tuple[Server, dict[str, str]]) -> None:
    (running, keys), bomb = attacked, gzip.compress(b" " * 10**7)
    statuses = [running.send(keys["bombs"], bomb, Content_Encoding="gzip").status for _ in range(6)]
    assert statuses == [413] * 4 + [429] * 2


@pytest.mark.parametrize("addresses", [1, 4])
def test_idle_connections_without_a_key_keep_no_client_with_one_out(
    attacked: tuple[Server, dict[str, str]], addresses: int
) -> None:
    running, keys = attacked
    with ExitStack() as opened:
        for number in range(1005):
            source = (f"127.0.0.{1 + number % addresses}", 0)
            one = socket.create_connection(("127.0.0.1", running.port), timeout=60, source_address=source)
            idle = opened.enter_context(one)
            if number % 2:
                idle.sendall(BEGUN)
        # The last one has a key, and its body does not come: it is no idle one, and holds nobody up.
        idle.sendall(BEGUN + rest(keys["calm"]))
        assert running.post(keys["calm"], [event("k-1")]).said == {"accepted": 1, "refused": []}


def test_refused_events_beyond_their_quota_are_answered_for_and_fill_no_disk(tmp_path: Path) -> None:
    key, other = key_for(tmp_path, "puzzle"), key_for(tmp_path, "chess")
    settings = {"INGEST_SERVER__REFUSED_BYTES": "40000", "INGEST_SERVER__SEGMENT_AGE": "PT0.1S"}
    with server(tmp_path, **settings) as running:
        for number in range(10):  # these compress well
            assert running.post(key, [event(f"r-{number} ", note="x" * 60_000)]).status == 422
        for number in range(10):
            reply = running.post(key, [event(f"q-{number} ", note=secrets.token_hex(20_000)), event(f"a-{number}")])
            assert (reply.status, reply.said["accepted"], len(reply.said["refused"])) == (200, 1, 1)
        assert b'ingest_refused_not_kept_total{game="puzzle"} 10.0' in running.call("GET", "/metrics").body
        for _ in range(10):  # bodies that are no events are refused as one
            assert running.send(key, b"{" + secrets.token_hex(20_000).encode()).status == 422
        assert running.post(other, [event("o-1 ")]).status == 422, "another game's quota is its own"
        wait_until(lambda: b"ingest_spool_bytes 0.0" in running.call("GET", "/metrics").body, "it was not delivered")
    assert [json.loads(body)["event_id"] for body in refused(tmp_path, "chess")] == ["o-1 "]
    files = (tmp_path / "lake" / "pii" / "refused").rglob("*.parquet")
    assert sum(file.stat().st_size for file in files) < 20 * 20_000, "what was refused, zipped"
    kept = [json.loads(body)["event_id"] for body in refused(tmp_path)]
    assert sorted(kept) == [f"r-{number} " for number in range(10)]
    assert len(ids(stored(tmp_path / "games"))) == 10


def test_a_request_that_does_not_arrive_in_time_is_ended_and_what_is_none_fills_no_log(tmp_path: Path) -> None:
    key = key_for(tmp_path, "puzzle")
    with server(tmp_path, INGEST_SERVER__REQUEST_WITHIN="PT1S") as running, ExitStack() as opened:

        def connected(*sent: bytes, port: int = running.port) -> socket.socket:
            made = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for part in sent:
                made.sendall(part)
            return made

        answered = connected(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        while not answered.recv(4096).endswith(b"}"):
            pass
        answered.sendall(b"\r\n")
        slow = [connected(), connected(BEGUN), answered, connected(port=running.health)]
        assert connected(BEGUN, rest(key)).recv(12) == b"HTTP/1.1 408"
        for each in slow:
            with suppress(ConnectionResetError):
                while each.recv(4096):
                    pass
        for _ in range(20):
            assert connected(b"\x16\x03\x01 and no request\r\n\r\n").recv(12) == b"HTTP/1.1 400"
        assert running.stop() == (0, "Stopped; everything is delivered\n")


@pytest.mark.parametrize("is_body", [False, True], ids=["headers", "body"])
def test_a_byte_now_and_then_wins_no_time(tmp_path: Path, is_body: bool) -> None:
    key, got = key_for(tmp_path, "puzzle"), b"nothing"
    with (
        server(tmp_path, INGEST_SERVER__REQUEST_WITHIN="PT1S") as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=0.2) as drip,
    ):
        drip.sendall(BEGUN + (rest(key) if is_body else b"X: "))
        for _ in range(90):  # bytes, fewer than the body has to have
            try:
                got = drip.recv(12)
            except TimeoutError:
                with suppress(ConnectionResetError, BrokenPipeError):
                    drip.sendall(b"x")
                continue
            except ConnectionResetError:
                got = b""
            break
    assert got == (b"HTTP/1.1 408" if is_body else b"")


def test_who_leaves_in_the_middle_of_a_body_is_no_error_of_the_server(tmp_path: Path) -> None:
    key = key_for(tmp_path, "puzzle")
    with server(tmp_path) as running:
        with socket.create_connection(("127.0.0.1", running.port), timeout=60) as leaving:
            leaving.sendall(BEGUN + rest(key))
        counted = b'ingest_requests_total{status="408"} 1.0'
        wait_until(lambda: counted in running.call("GET", "/metrics").body, "it was not counted", 60)
        assert running.stop() == (0, "Stopped; everything is delivered\n"), "nothing else is said, no traceback either"


@pytest.mark.parametrize(
    "begun", [BEGUN, BEGUN + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n0\r\n"], ids=["headers", "trailers"]
)
def test_headers_without_an_end_end_the_connection(attacked: tuple[Server, dict[str, str]], begun: bytes) -> None:
    running, _ = attacked
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as endless:
        # The second one has its answer by then: what follows is no body, but headers behind it.
        endless.sendall(begun)
        more = (b"X-More: " + b"x" * 65_000 + b"\r\n") * 1000
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            endless.sendall(more)


@pytest.mark.parametrize("last", ["keep-alive", "close"])
def test_who_reads_no_answer_is_given_up(tmp_path: Path, last: str) -> None:
    key = key_for(tmp_path, "puzzle")
    body = json.dumps([event("e" * 200, event_type="?")] * 500).encode()
    head = BEGUN + f"Content-Type: application/json\r\nAuthorization: Bearer {key}\r\nConnection: {last}\r\n".encode()
    request = head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    with server(tmp_path, INGEST_SERVER__REQUEST_WITHIN="PT1S") as running, socket.socket() as deaf:

        def is_held() -> bool:
            ours, established = f":{deaf.getsockname()[1]:04X}", "01"
            lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
            return any(each[2].endswith(ours) and each[3] == established for each in lines)

        # Small segments and a small window: little waits in the kernel, most of the answer in the server.
        deaf.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(60)
        deaf.connect(("127.0.0.1", running.port))
        wait_until(is_held, "it was not taken")
        deaf.sendall(request if last == "close" else request * 3)
        answered = b'ingest_requests_total{status="422"}'
        wait_until(lambda: answered in running.call("GET", "/metrics").body, "it was not answered")
        wait_until(lambda: not is_held(), "it waits for a reader", 60)
        assert running.post(key, [event("k-1")]).said == {"accepted": 1, "refused": []}


def test_a_connection_has_few_requests_that_wait_for_the_first_ones_answer(tmp_path: Path) -> None:
    key = key_for(tmp_path, "puzzle")
    with server(tmp_path) as running, socket.create_connection(("127.0.0.1", running.port), timeout=60) as hasty:
        hasty.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        answers = b""
        with suppress(ConnectionResetError):
            while part := hasty.recv(65536):
                answers += part
        assert answers.count(b"HTTP/1.1 200") < 10
        assert running.post(key, [event("k-1")]).said == {"accepted": 1, "refused": []}


def test_refused_events_of_a_byte_or_two_count_for_the_quota_with_what_keeping_them_costs(tmp_path: Path) -> None:
    key = key_for(tmp_path, "puzzle")
    with server(tmp_path, INGEST_SERVER__REFUSED_BYTES="40000", INGEST_SERVER__SEGMENT_AGE="PT0.1S") as running:
        assert {running.post(key, [17] * 10).status for _ in range(20)} == {422}
        wait_until(lambda: b"ingest_spool_bytes 0.0" in running.call("GET", "/metrics").body, "it was not delivered")
    assert 0 < len(refused(tmp_path)) * 512 <= 40_000


def test_bodies_of_one_game_that_arrive_together_pass_no_allowance_that_each_would_pass_alone(tmp_path: Path) -> None:
    key, bomb = key_for(tmp_path, "puzzle"), gzip.compress(b"[" + b" " * 8_000_000 + b"]")
    head = (
        BEGUN + f"Content-Type: application/json\r\nAuthorization: Bearer {key}\r\nContent-Encoding: gzip\r\n".encode()
    )
    head += f"Content-Length: {len(bomb)}\r\n\r\n".encode()
    with server(tmp_path, INGEST_SERVER__RATE_BYTES="0.001") as running, ExitStack() as opened:
        together = [
            opened.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=60)) for _ in range(30)
        ]
        for each in together:
            # What is asked to go on has shown its headers, and was let in.
            each.sendall(head.replace(b"\r\n", b"\r\nExpect: 100-continue\r\n", 1))
            assert each.recv(4096).startswith(b"HTTP/1.1 100")
        for each in together:
            each.sendall(bomb)
        statuses = [each.recv(4096).split()[1] for each in together]
        assert set(statuses) == {b"200", b"429"}
        # 32 MiB at once, and one body more.
        assert statuses.count(b"200") <= 5
        assert running.post(key, []).status == 429, "what was inflated is owed"


@pytest.mark.parametrize(("addresses", "games"), [(1, ("held", "stuck")), (3, ("held",))])
def test_bodies_that_do_not_end_keep_no_other_out(
    attacked: tuple[Server, dict[str, str]], addresses: int, games: tuple[str, ...]
) -> None:
    """From one address with two keys, which neither key's limit holds up, and with one key from three addresses."""
    running, keys = attacked
    with ExitStack() as opened:
        for number in range(1200):
            # An address of this machine other than the one that the calm game has.
            source = (f"127.0.0.{2 + number % addresses}", 0)
            one = socket.create_connection(("127.0.0.1", running.port), timeout=60, source_address=source)
            opened.enter_context(one)
            with suppress(ConnectionResetError, BrokenPipeError):  # it was refused
                one.sendall(BEGUN + rest(keys[games[number % len(games)]]))
        wait_until(lambda: running.post(keys["calm"], [event("k-2")]).status == 200, "it is kept out", 60)
        # 503 is the answer of a server whose connections are all taken.
        assert {running.post(keys["calm"], [event(f"k-{number}")]).status for number in range(3, 13)} == {200}

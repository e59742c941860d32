"""The server as games and operators meet it: a real process, real HTTP, kill -9."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.ingest_server.keys import IngestKeyRefused, IngestKeys
from engagement_platform.pii.vault import open_vault
from engagement_platform.settings import Settings
from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.files_with import open_to_others
from engagement_platform_tests.ingest_server.world import (
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


@dataclass(frozen=True)
class Running:
    """A server that all tests of this module may send to, with low limits."""

    home: Path
    server: Server
    key: str


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("home")
    key = key_for(home, "puzzle")
    limits = {
        "INGEST_SERVER__MAX_BODY_BYTES": "2000",
        "INGEST_SERVER__MAX_INFLATED_BYTES": "20000",
        "INGEST_SERVER__MAX_EVENTS": "10",
        "INGEST_SERVER__BURST_EVENTS": "100",
        "INGEST_SERVER__RATE_EVENTS": "0.001",
        "INGEST_SERVER__SEGMENT_AGE": "PT0.1S",
        "INGEST_SERVER__KEY_REFRESH": "PT0.1S",
    }
    with server(home, **limits) as started:
        yield Running(home, started, key)


def test_each_event_is_answered_for_and_clean_ones_are_delivered_without_personal_data(running: Running) -> None:
    sent = [
        event("a-1", player_id="p-1", email="bob-canary@example.org", level=7),
        event("a-2", event_ts="yesterday", email="bob-canary@example.org"),
        event("a-3", game_id="other"),
        17,
        event("a-5"),
    ]
    reply = running.server.post(running.key, sent)
    assert reply.status == 200
    assert reply.said["accepted"] == 2
    assert [(one["index"], one["event_id"], one["reason_code"]) for one in reply.said["refused"]] == [
        (1, "a-2", "bad_event_ts"),
        (2, "a-3", "wrong_game"),
        (3, None, "not_an_object"),
    ]
    wait_until(lambda: "a-5" in ids(stored(running.home / "games")), "a-5 was not delivered")
    (first,) = [one for one in stored(running.home / "games") if one["event_id"] == "a-1"]
    assert {**first, "received_ts": ""} == {
        **event("a-1", player_id="p-1", level=7),
        "game_id": "puzzle",
        "received_ts": "",
    }
    vault = open_vault(Settings(home=running.home))
    (kept,) = vault.read("p-1", purpose="support", reader="test")
    assert (kept.event_id, kept.path, kept.value) == ("a-1", "/email", "bob-canary@example.org")
    assert [json.loads(body) for body in refused(running.home)] == sent[1:4]


def test_events_come_as_a_list_an_object_lines_and_compressed(running: Running) -> None:
    lines = b'{"event_id":"b-3","event_type":"a","event_ts":"2026-11-22T10:00:00+01:00"}\n\nnot json\n'
    assert running.server.post(running.key, {"events": [event("b-1")]}).said["accepted"] == 1
    zipped = gzip.compress(json.dumps([event("b-2")]).encode())
    reply = running.server.send(running.key, zipped, Content_Encoding="gzip")
    assert reply.said == {"accepted": 1, "refused": []}
    reply = running.server.send(running.key, lines, "application/x-ndjson; charset=utf-8")
    assert (reply.status, reply.said["accepted"], reply.said["refused"][0]["reason_code"]) == (200, 1, "not_json")
    json_with_key = {"Content_Type": "application/json", "X_API_Key": running.key}
    reply = running.server.call("POST", "/v1/events", b"[]", **json_with_key)
    assert (reply.status, reply.said["accepted"]) == (200, 0)


def test_ids_that_cannot_be_written_are_refused_alone_and_the_others_are_answered_for(running: Running) -> None:
    odd = [event("i-\ud800"), event(" i-2"), event("i-3", player_id="p\udfff"), event("i-4", player_id="p-1\t")]
    reply = running.server.post(running.key, [*odd, event("i-5")])
    assert (reply.status, reply.said["accepted"]) == (200, 1)
    assert [(one["index"], one["event_id"], one["reason_code"]) for one in reply.said["refused"]] == [
        (0, "i-?", "bad_text"),
        (1, " i-2", "bad_event_id"),
        (2, "i-3", "bad_subject"),
        (3, "i-4", "bad_subject"),
    ]
    wait_until(lambda: "i-5" in ids(stored(running.home / "games")), "i-5 was not delivered")
    assert {json.dumps(one).encode() for one in odd} <= set(refused(running.home))


def test_the_door_goes_by_the_length_of_ids_that_jobs_and_erasures_go_by(tmp_path: Path) -> None:
    key = key_for(tmp_path, "puzzle")
    sent = [event("l-1", player_id="p" * 64), event("l-2", player_id="p" * 65), event("e" * 65)]
    with server(tmp_path, DECODING__MAX_ID_LENGTH="64") as running:
        said = running.post(key, sent).said
    assert [(one["index"], one["reason_code"]) for one in said["refused"]] == [(1, "bad_subject"), (2, "bad_event_id")]


def test_events_under_a_key_that_stands_twice_are_each_answered_for_and_kept(running: Running) -> None:
    first, second, third = (json.dumps(event(f"d-{number}")) for number in range(3))
    reply = running.server.send(running.key, f'{{"events": [{first}, {second}], "events": [{third}]}}'.encode())
    assert (reply.status, reply.said["accepted"]) == (422, 0)
    assert [(one["index"], one["event_id"], one["reason_code"]) for one in reply.said["refused"]] == [
        (number, f"d-{number}", "duplicate_key") for number in range(3)
    ]
    doubled = '{"event_id": "d-4", "events": [1], "events": [2]}'
    reply = running.server.send(running.key, f'{{"events": [{json.dumps(event("d-3"))}, {doubled}]}}'.encode())
    assert (reply.status, reply.said["accepted"]) == (200, 1)
    assert [(one["index"], one["reason_code"]) for one in reply.said["refused"]] == [(1, "duplicate_key")]
    wait_until(lambda: "d-3" in ids(stored(running.home / "games")), "d-3 was not delivered")
    kept = [json.loads(body)["event_id"] for body in refused(running.home) if b'"d-' in body]
    assert sorted(kept) == ["d-0", "d-1", "d-2", "d-4"]


def test_who_may_not_send_is_told_so_and_nothing_is_kept(running: Running) -> None:
    call, body = running.server.call, json.dumps([event("never")]).encode()
    assert call("POST", "/v1/events", body, Content_Type="application/json").status == 401
    for wrong in ("nonsense", running.key + "x", running.key[:-1], "ep__", running.key.replace("ep_", "xx_")):
        reply = running.server.post(wrong, [event("never")])
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    keys = IngestKeys(Settings(home=running.home).store_url)
    made, text = keys.add("other")
    wait_until(lambda: running.server.post(text, []).status == 200, "a new key was not known")
    keys.revoke(made.key_id)
    wait_until(lambda: running.server.post(text, [event("never")]).status == 403, "a revoked key was taken")


def test_what_is_too_large_or_of_another_kind_is_turned_away(running: Running) -> None:
    def status(body: bytes, kind: str = "application/json", **headers: str) -> int:
        return running.server.send(running.key, body, kind, **headers).status

    assert status(b" " * 2001) == 413
    assert status(gzip.compress(b" " * 20_001), Content_Encoding="gzip") == 413
    assert status(gzip.compress(b" " * 10**7)[:2000], Content_Encoding="gzip") == 413, "a bomb is not inflated"
    assert status(b"no gzip", Content_Encoding="gzip") == 422
    assert status(gzip.compress(b"[]")[:-4], Content_Encoding="gzip") == 422
    assert status(b"[]", Content_Encoding="br") == 415
    assert status(b"[]", "text/plain") == 415
    assert status(b"[]", "application/json; charset=latin-1") == 415
    assert status(b"[]", 'application/json; charset="UTF-8"; profile="x"') == 200
    assert status(b"[]", 'application/json; profile="charset=latin-1"') == 200
    small = [{"event_id": number} for number in range(11)]
    reply = running.server.post(running.key, small)
    assert (reply.status, reply.said["reason_code"]) == (413, "too_many_events")
    assert running.server.call("GET", "/v1/events").status == 405


def test_a_body_that_holds_no_events_is_refused_and_kept(running: Running) -> None:
    for body, code in ((b"{", "not_json"), (b"\xff", "not_json"), (b'{"a":1}', "not_events"), (b"3", "not_events")):
        reply = running.server.send(running.key, body)
        assert (reply.status, reply.said["reason_code"]) == (422, code)
    bodies = {b"{", b"\xff", b'{"a":1}', b"3"}
    wait_until(lambda: bodies <= set(refused(running.home)), "the refused bodies were not kept")


def test_it_says_how_it_is_and_describes_itself(running: Running) -> None:
    call = running.server.call
    running.server.post(running.key, [event("m-1"), 3])
    assert call("GET", "/healthz").said == {"status": "ok"}
    ready = call("GET", "/readyz")
    assert (ready.status, ready.said) == (200, {"status": "ready", "reasons": []})
    figures = call("GET", "/metrics").body.decode()
    for line in (
        'ingest_events_total{game="puzzle",outcome="accepted"}',
        "ingest_request_seconds_bucket",
        "ingest_ready 1",
    ):
        assert line in figures
    for path in ("/healthz", "/readyz", "/metrics"):
        client = http.client.HTTPConnection("127.0.0.1", running.server.port, timeout=60)
        client.request("GET", path)
        assert client.getresponse().status == 404, "clients have no business with it"
        client.close()
    described = call("GET", "/openapi.json").said["paths"]["/v1/events"]["post"]
    assert set(described["responses"]) == {"200", "401", "403", "408", "413", "415", "422", "429", "503"}
    assert set(described["requestBody"]["content"]) == {"application/json", "application/x-ndjson"}


def test_who_sends_too_fast_is_told_when_to_come_again(running: Running) -> None:
    keys = IngestKeys(Settings(home=running.home).store_url)
    _, text = keys.add("fast")
    wait_until(lambda: running.server.post(text, []).status == 200, "a new key was not known")
    replies = [running.server.post(text, [event(f"f-{n}-{m}") for m in range(10)]) for n in range(12)]
    assert [reply.status for reply in replies] == [200] * 10 + [429] * 2
    assert int(replies[-1].headers["retry-after"]) >= 1
    assert running.server.post(running.key, [event("x-1")]).status == 200, "another game is not held up"


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_what_was_acknowledged_before_a_kill_is_in_the_objects_exactly_once(tmp_path: Path, kills: int) -> None:
    """One server after the other; clients send all the time, and never the same event twice."""
    key, acknowledged, sent = key_for(tmp_path, "puzzle"), set[str](), set[str]()
    settings = {"INGEST_SERVER__SEGMENT_BYTES": "20000", "INGEST_SERVER__SEGMENT_AGE": "PT0.2S"}

    def client(running: Server, name: str, killed: threading.Event) -> None:
        for number in range(10**6):
            batch = [event(f"{name}-{number}-{place}", player_id=f"p{place}", email="x@y.org") for place in range(20)]
            sent.update(ids(batch))
            try:
                reply = running.post(key, batch)
            except (OSError, http.client.HTTPException):
                return
            if reply.status == 200:
                acknowledged.update(ids(batch))
            if killed.is_set():
                return

    for life in range(kills):
        with server(tmp_path, **settings) as running:
            killed, before = threading.Event(), len(acknowledged)
            clients = [threading.Thread(target=client, args=(running, f"{life}-{n}", killed)) for n in range(3)]
            for thread in clients:
                thread.start()
            wait_until(lambda: len(acknowledged) >= before + 300, "too few requests were answered")  # noqa: B023
            running.kill()
            killed.set()
            for thread in clients:
                thread.join()
    with server(tmp_path, **settings) as running:
        wait_until(lambda: b"ingest_spool_bytes 0.0" in running.call("GET", "/metrics").body, "it was not delivered")
        status, said = running.stop()
    assert (status, said.strip()) == (0, "Stopped; everything is delivered")
    delivered = ids(stored(tmp_path / "games"))
    assert len(delivered) == len(set(delivered)), "an event stands twice"
    assert acknowledged <= set(delivered) <= sent
    vault = open_vault(Settings(home=tmp_path))
    ours = [one.event_id for place in range(20) for one in vault.read(f"p{place}", purpose="support", reader="test")]
    assert sorted(ours) == sorted(delivered), "personal data stands exactly once in the vault"


def test_with_a_full_spool_it_is_not_ready_takes_nothing_and_is_ready_again_once_the_sink_takes_events(
    tmp_path: Path, moto: Moto
) -> None:
    bucket = f"ready-{secrets.token_hex(4)}"
    told = {"INGEST_SERVER__SINK": "s3", "GAMES__BUCKET": bucket, "INGEST_SERVER__MAX_SPOOL_BYTES": "2000",
            "INGEST_SERVER__SEGMENT_AGE": "PT0.1S", "INGEST_SERVER__RETRY_AFTER": "PT0.2S"}  # fmt: skip
    key = key_for(tmp_path, "puzzle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
        with server(tmp_path, **told) as running:
            assert running.call("GET", "/readyz").status == 200
            taken = list[str]()
            for number in range(100):
                reply = running.post(key, [event(f"f-{number}", text="x" * 200)])
                if reply.status != 200:
                    break
                taken.append(f"f-{number}")
            assert (reply.status, 0 < len(taken) < 100) == (503, True)
            assert int(reply.headers["retry-after"]) >= 1
            wait_until(lambda: len(running.call("GET", "/readyz").said["reasons"]) == 2, "no delivery failed")
            ready = running.call("GET", "/readyz")
            assert (ready.status, ready.said["status"]) == (503, "not ready")
            full, failed = ready.said["reasons"]
            assert "bytes wait for the sink" in full
            assert bucket in failed
            assert b"ingest_ready 0" in running.call("GET", "/metrics").body
            assert running.call("GET", "/healthz").status == 200, "it need not be started anew"
            where = {"CreateBucketConfiguration": {"LocationConstraint": "eu-central-1"}}
            s3 = moto.client("s3")
            s3.create_bucket(Bucket=bucket, **where)
            wait_until(lambda: running.call("GET", "/readyz").status == 200, "it did not become ready again")
            assert running.post(key, [event("after")]).status == 200
            assert running.stop()[0] == 0
    bodies = [s3.get_object(Bucket=bucket, Key=each["Key"])["Body"].read()
              for each in s3.list_objects_v2(Bucket=bucket)["Contents"]]  # fmt: skip
    lines = [json.loads(line)["event_id"] for body in bodies for line in gzip.decompress(body).splitlines()]
    assert sorted(lines) == sorted([*taken, "after"])


def test_while_the_store_is_down_it_is_not_ready_and_takes_events_of_keys_that_it_knows(tmp_path: Path) -> None:
    key, store = key_for(tmp_path, "puzzle"), tmp_path / "stores.db"
    with server(tmp_path, INGEST_SERVER__KEY_REFRESH="PT0.1S", INGEST_SERVER__SEGMENT_AGE="PT0.1S") as running:
        assert running.call("GET", "/readyz").status == 200
        away = store.rename(tmp_path / "away.db")
        while not store.is_dir():
            # Whoever asked just now has made an empty one.
            store.unlink(missing_ok=True)
            with suppress(FileExistsError):
                store.mkdir()
        wait_until(lambda: running.call("GET", "/readyz").status == 503, "it stayed ready")
        (reason, *_) = running.call("GET", "/readyz").said["reasons"]
        assert "stores" in reason
        assert running.post(key, [event("d-1")]).status == 200
        store.rmdir()
        away.rename(store)
        wait_until(lambda: running.call("GET", "/readyz").status == 200, "it did not become ready again")
        wait_until(lambda: "d-1" in ids(stored(tmp_path / "games")), "d-1 was not delivered")


def test_an_event_that_is_too_long_for_firehose_with_what_the_server_adds_is_refused(tmp_path: Path) -> None:
    key, limit = key_for(tmp_path, "puzzle"), 1000 * 1024
    longest = len(json.dumps(event("a-1", filling=""), separators=(",", ":")))
    events = [event(f"a-{n}", filling="x" * (limit - longest - spare)) for n, spare in ((1, 0), (2, 200))]
    limits = {"MAX_EVENT_BYTES": limit, "MAX_BODY_BYTES": 4 * limit}
    with server(tmp_path, **{f"INGEST_SERVER__{name}": str(size) for name, size in limits.items()}) as running:
        reply = running.post(key, events)
    assert [(one["index"], one["reason_code"]) for one in reply.said["refused"]] == [(0, "too_large")]
    assert reply.said["accepted"] == 1


def test_a_revoked_key_counts_no_more_also_where_old_refused_events_cannot_be_removed(tmp_path: Path) -> None:
    keys, first = IngestKeys(Settings(home=tmp_path).store_url), key_for(tmp_path, "puzzle")
    soon = {"INGEST_SERVER__KEY_REFRESH": "PT0.2S", "INGEST_SERVER__SEGMENT_AGE": "PT0.1S"}
    with server(tmp_path, **soon) as running:
        assert running.post(first, [3]).status == 422
        wait_until(lambda: len(refused(tmp_path)) == 1, "the refused event was not delivered")
        running.stop()
    (entry,) = (tmp_path / "lake" / "pii" / "refused" / "_delta_log").glob(f"{0:020}.json")
    entry.write_text("no entry of a log")
    with server(tmp_path, **soon) as running:
        made, text = keys.add("other")
        wait_until(lambda: running.post(text, []).status == 200, "a new key was not known")
        keys.revoke(made.key_id)
        wait_until(lambda: running.post(text, []).status == 403, "a revoked key was taken")
        assert "upkeep failed" in running.stop()[1]


def test_a_server_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ours = {"HOME": str(tmp_path), "INGEST_SERVER__PORT": str(taken.getsockname()[1])}
        done = subprocess.run(
            [sys.executable, "-m", "engagement_platform.cli", "ingest-server"],
            env={"PATH": "", **{f"ENGAGEMENT_PLATFORM_{name}": value for name, value in ours.items()}},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot listen on" in done.stderr


def test_keys_are_made_listed_and_revoked_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))

    def call(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["ingest-key", *arguments, "--json"])
        assert done.exit_code == 0, done.output
        return done.stdout

    made = json.loads(call("add", "puzzle"))
    assert made["key"] not in (tmp_path / "stores.db").read_bytes().decode("latin-1")
    again = json.loads(call("add", "puzzle"))
    assert again["key"] != made["key"], "whoever did not see the first one's end makes another, beside it"
    call("revoke", made["key_id"])
    shown = call("list")
    call("revoke", made["key_id"])
    assert call("list") == shown, "again changes nothing, not even the time"
    listed = {each["key_id"]: each for each in json.loads(shown)["keys"]}
    assert {key_id: (each["game"], each["revoked"] is None) for key_id, each in listed.items()} == {
        made["key_id"]: ("puzzle", False),
        again["key_id"]: ("puzzle", True),
    }
    for wrong in (("add", "Not A Game"), ("revoke", "nobody")):
        assert isinstance(CliRunner().invoke(app, ["ingest-key", *wrong]).exception, IngestKeyRefused)


def test_files_of_the_home_are_for_their_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    home = tmp_path / "home"
    made = subprocess.run(
        [sys.executable, "-m", "engagement_platform.cli", "ingest-key", "add", "puzzle", "--json"],
        env={"PATH": "", "ENGAGEMENT_PLATFORM_HOME": str(home)},
        capture_output=True, check=True, umask=0,
    )  # fmt: skip
    with server(home, INGEST_SERVER__SEGMENT_AGE="PT0.1S", INGEST_SERVER__KEY_REFRESH="PT0.1S") as running:
        key = json.loads(made.stdout)["key"]
        assert running.post(key, [event("o-1", player_id="p-1", email="x@y.org"), 3]).status == 200
        wait_until(lambda: "o-1" in ids(stored(home / "games")), "o-1 was not delivered")
        assert open_to_others(home) == {}
        assert {"stores.db", "spool.db", "master.json"} <= {path.name for path in home.rglob("*")}


def test_a_server_that_stops_says_so_before_it_refuses_connections(tmp_path: Path) -> None:
    key = key_for(tmp_path, "puzzle")
    with server(tmp_path, INGEST_SERVER__STOP_AFTER="PT1H") as running:
        assert running.call("GET", "/readyz").status == 200
        running.process.terminate()
        wait_until(lambda: running.call("GET", "/readyz").status == 503, "it is ready all the time")
        assert running.call("GET", "/readyz").said["reasons"] == ["the server is stopping"]
        assert running.call("GET", "/healthz").status == 200
        assert running.post(key, [event("late-1")]).said == {"accepted": 1, "refused": []}
        status, output = running.stop()  # a second signal ends the wait
    assert (status, output) == (0, "Stopped; everything is delivered\n")
    assert ids(stored(tmp_path / "games")) == ["late-1"]


STOPPED_AT_ONCE = """
import signal
from engagement_platform.ingest_server.server import serve
from engagement_platform.settings import Settings

def say(text):
    print(text.partition(" on ")[0], flush=True)
    if text.startswith("Listening"):
        signal.raise_signal(signal.SIGTERM)

serve(Settings(), say)
"""


@pytest.mark.parametrize("stop_after", ["PT0S", "PT0.3S"])
def test_a_server_that_is_asked_to_stop_the_moment_it_listens_stops(tmp_path: Path, stop_after: str) -> None:
    ours = {"HOME": str(tmp_path), "INGEST_SERVER__PORT": "0", "INGEST_SERVER__HEALTH_PORT": "0"}
    ours |= {"INGEST_SERVER__STOP_AFTER": stop_after}
    env = {**os.environ, **{f"ENGAGEMENT_PLATFORM_{name}": value for name, value in ours.items()}}
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_ONCE], env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == (0, "Listening\nStopped; everything is delivered\n"), done.stderr

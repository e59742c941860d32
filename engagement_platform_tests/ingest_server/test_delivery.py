"""From a request's events to the vault and the sink, in this process: once, in spite of repetition and failures."""

from __future__ import annotations

import base64
import errno
import gzip
import json
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from engagement_platform.engine.durable_files import write_durably
from engagement_platform.ingest_server import sinks
from engagement_platform.ingest_server.delivery import Delivery
from engagement_platform.ingest_server.events import Sent
from engagement_platform.ingest_server.intake import Intake, Taken
from engagement_platform.ingest_server.sinks import (
    BucketSink,
    FirehoseSink,
    FolderSink,
    Sink,
    SinkNotConfigured,
    SinkUnavailable,
    object_key,
    open_sink,
    packed,
)
from engagement_platform.ingest_server.spool import Segment, Spool
from engagement_platform.pii.erasure import erase, subject
from engagement_platform.pii.vault import REFUSED, VAULT, Refusal, Vault
from engagement_platform.settings import IngestServerSettings, PiiSettings, Settings
from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.ingest_server.world import event, ids, stored, wait_until

NOW = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)


class House:
    """All parts but HTTP."""

    def __init__(self, settings: Settings, vault: Vault, sink: Sink | None = None) -> None:
        self.settings, self.vault, self.folder = settings, vault, settings.home / "games"
        self.spool = Spool(settings.home / "spool", segment_bytes=10**9, segment_age=timedelta(hours=1))
        self.intake = Intake(settings, vault.keyring, self.spool.id)
        self.delivery = Delivery(
            self.spool, vault, sink or FolderSink(self.folder), retry_after=timedelta(milliseconds=20)
        )

    def take(self, *events: object, game: str = "puzzle") -> Taken:
        taken = self.intake.take(game, [Sent(value) for value in events], NOW)
        if taken.records:
            self.spool.append(taken.records)
        return taken

    def sealed(self) -> Segment:
        """What was taken so far, as one segment."""
        self.spool.finish()
        (segment,) = self.spool.sealed()
        return segment

    def firehose(self) -> FirehoseSink:
        """The sink of a stream that `firehose` is, without its pauses."""
        return FirehoseSink("s", self.spool.path.parent, sleep=lambda _s: None)

    def rows(self, table: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(self.vault.uri(table)).to_pyarrow_table().to_pylist()
        return rows


@pytest.fixture
def house(platform: Settings, vault: Vault) -> Iterator[House]:
    made = House(platform, vault)
    yield made
    made.spool.close()


@pytest.mark.parametrize("stopped_before", ["the vault", "the refused", "the sink", "the end"])
def test_a_segment_that_comes_again_adds_nothing_wherever_it_stopped(
    house: House, stopped_before: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    house.take(event("e-1", player_id="p", email="a@b.example"), event("e-2"), {"event_id": "bad"})
    segment = house.sealed()
    copy = tmp_path / "spool.db"
    with closing(sqlite3.connect(house.spool.path)) as before, closing(sqlite3.connect(copy)) as to:
        before.backup(to)
    append = house.vault.append

    def dies(events: Sequence[object], *_: object) -> int:
        if stopped_before != "the refused" or (events and isinstance(events[0], Refusal)):
            raise KeyboardInterrupt
        return append(events, *_)  # type: ignore[arg-type]

    owner, step = {
        "the sink": (house.delivery._sink, "put"), "the end": (house.spool, "remove"),
    }.get(stopped_before, (house.vault, "append"))  # fmt: skip
    monkeypatch.setattr(owner, step, dies)
    with pytest.raises(KeyboardInterrupt):
        house.delivery.deliver(segment)
    monkeypatch.undo()
    house.delivery.deliver(segment)
    paths = list((house.folder / "events").rglob("*.json.gz"))
    assert len(paths) == 1
    path, once = paths[0], paths[0].read_bytes()
    assert (ids(stored(house.folder)), len(house.rows(VAULT)), len(house.rows(REFUSED))) == (["e-1", "e-2"], 1, 1)
    with closing(sqlite3.connect(copy)) as before, closing(sqlite3.connect(house.spool.path)) as to:
        before.backup(to)
    house.delivery.deliver(segment)
    assert path.read_bytes() == once
    assert [file.name for file in (house.folder / "events").rglob("*") if file.is_file()] == [path.name]
    assert (len(house.rows(VAULT)), len(house.rows(REFUSED))) == (1, 1)


def test_an_object_lies_where_its_hour_says_and_has_a_line_for_each_event(house: House) -> None:
    house.take(*(event(f"e-{number}", note="line\nfeed") for number in range(3)))
    segment = house.sealed()
    named = f"{house.spool.id}-{int(segment.opened.timestamp() * 1000)}.json.gz"
    assert object_key(segment) == f"events/{segment.opened:%Y/%m/%d/%H}/{named}"
    house.delivery.deliver(segment)
    lines = gzip.decompress((house.folder / object_key(segment)).read_bytes()).splitlines()
    assert [json.loads(line)["event_id"] for line in lines] == ["e-0", "e-1", "e-2"]
    assert all(json.loads(line)["received_ts"] == "2026-11-22T10:30:00.000+00:00" for line in lines)


def test_no_byte_of_personal_data_is_anywhere_before_and_after_delivery(house: House) -> None:
    canaries = ["mail-canary@example.org", "+49 30 canary 1", "free text canary"]
    house.take(
        event("e-1", player_id="p-1", email=canaries[0], player={"phone": canaries[1]}, note=f"by {canaries[0]}"),
        {"event_id": "refused", "player_id": "p-1", "text": canaries[2]},
        {"no player": canaries[2]},
    )
    segment = house.sealed()
    for _ in range(2):
        files = [path for path in house.settings.home.rglob("*") if path.is_file()]
        contents = [path.read_bytes() for path in files]
        contents += [gzip.decompress(path.read_bytes()) for path in files if path.suffix == ".gz"]
        assert not any(b"canary" in content for content in contents)
        if house.spool.sealed():
            house.delivery.deliver(segment)
    read = house.vault.read("p-1", purpose="support", reader="test")
    assert {(one.path, one.value) for one in read} == {("/email", canaries[0]), ("/player/phone", canaries[1])}
    refused = [json.loads(body) for _, body in house.vault.refused("puzzle", purpose="support", reader="test")]
    assert refused == [{"event_id": "refused", "player_id": "p-1", "text": canaries[2]}, {"no player": canaries[2]}]


def test_personal_data_of_nobody_is_dropped_and_counted(house: House) -> None:
    taken = house.take(event("e-1", email="a@b.example"))
    assert (taken.accepted, dict(taken.values)) == (1, {"dropped": 1})
    house.delivery.deliver(house.sealed())
    assert "email" not in stored(house.folder)[0]
    assert not Path(house.vault.uri(VAULT)).exists()


def test_what_nobody_declared_goes_by_policy(platform: Settings, vault: Vault) -> None:
    sent = event("e-1", player_id="p-1", contact="bob@example.org")
    for unknown, outcome in (("drop", 1), ("hash", 1), ("reject", 0)):
        settings = platform.model_copy(update={"pii": PiiSettings(unknown=unknown)})
        taken = Intake(settings, vault.keyring, "s").take("g", [Sent(sent)], NOW)
        assert (taken.accepted, dict(taken.found)) == (outcome, {"email": 1})
    assert [(one.reason_code, one.field) for one in taken.refused] == [("pii_found", "/contact")]
    first = Intake(platform, vault.keyring, "s").take("g", [Sent(event("a@b.example"))], NOW).refused[0]
    assert (first.reason_code, first.field) == ("pii_in_id", "/event_id")


def test_a_sink_that_fails_is_tried_again_until_it_works(platform: Settings, vault: Vault) -> None:
    class Fails(FolderSink):
        tries = 0

        def put(self, segment: Segment, lines: Any) -> None:
            self.tries += 1
            if self.tries <= 2:
                raise SinkUnavailable("the sink", "it sleeps")
            super().put(segment, lines)

    house = House(platform, vault, Fails(platform.home / "games"))
    house.take(event("e-1"))
    house.delivery.start()
    house.sealed()
    wait_until(lambda: ids(stored(house.folder)) == ["e-1"], "the event was not delivered", 30)
    wait_until(lambda: house.delivery.failed is None, "the failure is still told", 30)
    assert house.delivery.failures == 2
    house.delivery.stop(5)
    house.spool.close()


@pytest.fixture
def bucket(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket of the emulator, where clients of AWS look for one."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    name = f"raw-{random.getrandbits(40):x}"
    where = {"LocationConstraint": "eu-central-1"}
    moto.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration=where)
    return name


def test_a_bucket_gets_the_same_objects(house: House, moto: Moto, bucket: str) -> None:
    s3 = moto.client("s3")
    house.take(event("e-1"), event("e-2"))
    segment = house.sealed()
    lines = [record.open for record in house.spool.records(segment)]
    for _ in range(2):
        BucketSink(bucket).put(segment, lines)
    (found,) = s3.list_objects_v2(Bucket=bucket)["Contents"]
    assert found["Key"] == object_key(segment)
    assert s3.get_object(Bucket=bucket, Key=found["Key"])["Body"].read() == packed(lines)
    with pytest.raises(SinkUnavailable, match="NoSuchBucket"):
        BucketSink("nobodys-bucket-17").put(segment, lines)


def test_a_spool_from_before_a_segment_was_whole_takes_nothing_out_of_its_object(
    house: House, moto: Moto, bucket: str
) -> None:
    """A spool that was restored from a copy has the first of two events of a segment that was delivered with both."""
    house.take(event("e-1"), event("e-2"))
    segment = house.sealed()
    lines = [record.open for record in house.spool.records(segment)]
    for sink in (FolderSink(house.folder), BucketSink(bucket)):
        sink.put(segment, lines)
        sink.put(segment, lines[:1])
    assert ids(stored(house.folder)) == ["e-1", "e-2"]
    assert moto.client("s3").get_object(Bucket=bucket, Key=object_key(segment))["Body"].read() == packed(lines)


def test_a_full_disk_of_the_spool_does_not_send_records_to_firehose_again_and_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [b"%d\n" % number for number in range(1_203)]
    house.take(event("e"))
    segment, writes = house.sealed(), count()

    def full_after_one(path: Path, content: bytes) -> None:
        if 0 < next(writes) < 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_durably(path, content)

    monkeypatch.setattr(sinks, "write_durably", full_after_one)
    with firehose(lambda _call, records: [True] * len(records)) as (url, took):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for _ in range(5):
            with pytest.raises(OSError, match="No space"):
                house.firehose().put(segment, lines)
        house.firehose().put(segment, lines)
        calls = len(took)
        house.firehose().put(segment, lines)
        house.firehose().put(replace(segment, number=segment.number - 1), lines)
    assert len(took) == calls, "what was sent is not sent again, nor is a segment before it"
    sent = Counter(chain.from_iterable(took))
    assert sent == Counter(lines) + Counter(lines[:500]), "one call at most comes twice, however often it was tried"


def test_firehose_gets_every_event_as_a_record(house: House, moto: Moto, bucket: str) -> None:
    s3 = moto.client("s3")
    role, arn = "arn:aws:iam::123456789012:role/r", f"arn:aws:s3:::{bucket}"
    moto.client("firehose").create_delivery_stream(
        DeliveryStreamName=bucket, S3DestinationConfiguration={"RoleARN": role, "BucketARN": arn}
    )
    house.take(*(event(f"e-{number}") for number in range(3)))
    segment = house.sealed()
    lines = [record.open for record in house.spool.records(segment)]
    FirehoseSink(bucket, house.spool.path.parent).put(segment, lines)
    found = [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert b"".join(s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in found) == b"".join(lines)
    with pytest.raises(SinkUnavailable, match="ResourceNotFound"):
        FirehoseSink("nobodys", house.spool.path.parent).put(replace(segment, number=segment.number + 1), [b"{}\n"])


@contextmanager
def firehose(answer: Callable[[int, list[dict[str, Any]]], list[bool]]) -> Iterator[tuple[str, list[list[bytes]]]]:
    """An HTTP server that speaks PutRecordBatch and takes the records that `answer` says; (its URL, what it took)."""
    took: list[list[bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            records = said["Records"]
            taken = answer(len(took), records)
            took.append([base64.b64decode(r["Data"]) for r, good in zip(records, taken, strict=True) if good])
            refused = {"ErrorCode": "ServiceUnavailableException", "ErrorMessage": "x"}
            outcomes = [{"RecordId": "1"} if good else refused for good in taken]
            body = json.dumps({"FailedPutCount": taken.count(False), "RequestResponses": outcomes}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{web.server_port}", took
    finally:
        web.shutdown()
        web.server_close()


def test_records_that_firehose_refuses_are_sent_again_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(7)
    lines = [b"%d\n" % number for number in range(1_203)]
    house.take(event("e"))
    segment = house.sealed()
    with firehose(lambda _call, records: [dice.random() < 0.7 for _ in records]) as (url, took):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        house.firehose().put(segment, lines)
    assert max(map(len, took)) <= 500
    assert sorted(b"".join(chain.from_iterable(took)).splitlines()) == sorted(line.strip() for line in lines)


def test_after_a_stop_firehose_gets_only_what_it_has_not_got(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b"%d\n" % number for number in range(700)]
    house.take(event("e"))
    segment = house.sealed()

    def two_calls_and_a_half(call: int, records: list[dict[str, Any]]) -> list[bool]:
        return [call == 0 or (call == 1 and place % 2 == 0) or call > 7 for place in range(len(records))]

    with firehose(two_calls_and_a_half) as (url, took):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(SinkUnavailable, match="ServiceUnavailable"):
            house.firehose().put(segment, lines)
        again = house.firehose()
        for _ in range(2):
            try:
                again.put(segment, lines)
                break
            except SinkUnavailable:
                continue
    assert sorted(chain.from_iterable(took)) == sorted(lines)


def test_an_erasure_between_two_attempts_takes_nobody_else_s_events_from_firehose(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far a segment was is told by places in it: they must mean the same when somebody's events are gone."""
    players = ["bob", "amy", "bob", "ann", "amy", "bob"]
    house.take(*(event(f"e-{place}", player_id=player) for place, player in enumerate(players)))
    segment = house.sealed()
    monkeypatch.setattr(FirehoseSink, "RECORDS", 2)

    # The first call is taken but for its second record, and then the stream is away.
    def first_record_then_away(call: int, records: list[dict[str, Any]]) -> list[bool]:
        return [(call == 0 and place == 0) or call > 6 for place in range(len(records))]

    with firehose(first_record_then_away) as (url, took):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        delivery = Delivery(house.spool, house.vault, house.firehose())
        with pytest.raises(SinkUnavailable, match="ServiceUnavailable"):
            delivery.deliver(segment)
        erase(house.vault, subject(house.vault, "bob", None))
        delivered = delivery.deliver(segment)
    sent = [json.loads(line)["event_id"] for line in chain.from_iterable(took)]
    assert sent == ["e-0", "e-1", "e-3", "e-4"], "one of the erased went before, those of others each once"
    assert (delivered.events, delivered.erased) == (3, 3)


def test_a_sink_without_its_place_is_refused_before_anything_starts(platform: Settings) -> None:
    for sink, variable in (("s3", "GAMES__BUCKET"), ("firehose", "INGEST_SERVER__STREAM")):
        settings = platform.model_copy(update={"ingest_server": IngestServerSettings(sink=sink)})
        with pytest.raises(SinkNotConfigured, match=variable):
            open_sink(settings)


def test_an_error_of_the_spool_that_is_over_is_not_said_for_ever(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits: no delivery would show that it is over."""
    errors = [sqlite3.OperationalError("disk I/O error")]

    def sealed() -> list[Segment]:
        if errors:
            raise errors.pop()
        return []

    monkeypatch.setattr(house.spool, "sealed", sealed)
    house.delivery.start()
    wait_until(lambda: house.delivery.failures == 1 and house.delivery.failed is None, "the error is still reported")
    house.delivery.stop(5)
    assert (house.delivery.failures, house.delivery.failed) == (1, None)

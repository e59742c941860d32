"""What is left of an erased player in the raw objects of a bucket: nothing, and nobody else's line is lost or moved."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.engine.model import Manifest
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.erasing import erase as erasures
from engagement_platform.pii.erasure import Subject
from engagement_platform.pipelines.games import raw_objects
from engagement_platform.pipelines.games.feed import shipped
from engagement_platform.pipelines.games.job import REPLAY_GAME_EVENTS
from engagement_platform.pipelines.games.objects import BATCH, state_of
from engagement_platform.pipelines.games.raw_objects import RawObjects
from engagement_platform.pipelines.games.replay import BucketNotListed, LandedObjects, NothingToReplay, objects_below
from engagement_platform.settings import GamesSettings, Settings
from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.pipelines.games.conftest import World
from engagement_platform_tests.pipelines.games.events import line

BOB, AMY = "bob-canary", "amy-canary"


def _zstd(content: bytes) -> bytes:
    made = pa.BufferOutputStream()
    with pa.CompressedOutputStream(made, "zstd") as packed:
        packed.write(content)
    packed_bytes: bytes = made.getvalue().to_pybytes()
    return packed_bytes


def _unzstd(content: bytes) -> bytes:
    read: bytes = pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()
    return read


PACKED: Mapping[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "a.json": (bytes, bytes),
    "b.json.gz": (gzip.compress, gzip.decompress),
    "c.json.bz2": (bz2.compress, bz2.decompress),
    "d.json.xz": (lzma.compress, lzma.decompress),
    "e.json.zst": (_zstd, _unzstd),
}


class Bucket:
    """A world with settings of the command line, and its objects unpacked."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        for name, value in world.variables().items():
            monkeypatch.setenv(name, value)

    @property
    def raw(self) -> RawObjects:
        """As a call of its own."""
        return RawObjects(self.world.settings, shipped(self.world.settings))

    def event(self, player: str, event_id: str, **fields: Any) -> bytes:
        """An event of this moment."""
        now = datetime.now(UTC).isoformat()
        return line(self.world.types["login"], event_id, **{"player_id": player, "event_ts": now, **fields})

    def put(self, name: str, lines: list[bytes]) -> None:
        """An object, packed as its name says; its last line has no end."""
        content = PACKED[name][0](b"\n".join(lines))
        self.world.s3.put_object(Bucket=self.world.bucket, Key=f"events/{name}", Body=content, ContentType="text/x")

    def lines(self, name: str) -> list[bytes]:
        """What is in one."""
        answer = self.world.s3.get_object(Bucket=self.world.bucket, Key=f"events/{name}")
        assert answer["ContentType"] == "text/x"
        return PACKED[name][1](answer["Body"].read()).split(b"\n")

    def erase(self, *more: str) -> tuple[int, dict[str, Any]]:
        """By the command; (exit status, what the receipt says of these objects)."""
        done = CliRunner().invoke(app, ["erase", "--subject", BOB, "--yes", *more])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        receipt = json.loads(done.stdout)
        (place,) = [each for each in receipt["places"] if each["name"] == self.raw.name]
        return done.exit_code, place


@pytest.fixture
def bucket(small: World, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return Bucket(small, monkeypatch)


def test_an_erased_player_is_in_no_object_and_other_lines_stand_where_they_stood(bucket: Bucket) -> None:
    world, escaped = bucket.world, BOB.replace("b", "\\u0062")
    before: dict[str, list[bytes]] = {}
    for name in PACKED:
        before[name] = [
            bucket.event(AMY, f"{name}-1"), bucket.event(BOB, f"{name}-2"), b"",
            bucket.event(BOB, f"{name}-3").replace(BOB.encode(), escaped.encode()), b"no json about " + BOB.encode(),
            b"no json of anybody", bucket.event(AMY, f"{name}-4", level_id=f"{BOB}-x"), bucket.event(BOB, f"{name}-5"),
        ]  # fmt: skip
        bucket.put(name, before[name])
    world.s3.put_object(Bucket=world.bucket, Key="events/f.json", Body=bucket.event(AMY, "f-1"))
    world.run()
    untouched = objects_below(world.settings, "events/f")
    arrived = {file.key: file.event_time for file in objects_below(world.settings, "events/")}
    # S3 tells whole seconds.
    time.sleep(1.1)
    status, place = bucket.erase()
    assert (status, place["rows"], place["left"], place["stays"]) == (0, 4 * len(PACKED), 0, [])
    assert place["objects"] == [f"s3://{world.bucket}/events/{name}" for name in PACKED]
    for name, lines in before.items():
        assert bucket.lines(name) == [b"" if number in (1, 3, 4, 7) else each for number, each in enumerate(lines)]
    assert objects_below(world.settings, "events/f") == untouched
    files = objects_below(world.settings, "events/")
    assert {file.key: file.event_time for file in files} == arrived, "a replay decides as the first reading did"

    rows = world.everything()
    assert sorted(row["event_id"] for row in rows["login"]) == sorted(
        ["f-1", *(f"{name}-{n}" for name in PACKED for n in (1, 4))]
    )
    # S3 announces what was written anew.
    assert world.left() == len(PACKED)
    assert world.run() == []
    (report,) = world.replay("events/")
    assert report.counts.get("landed", 0) == 0
    assert world.everything() == rows
    last = world.stores.checkpoints.latest("ingest-game-events")
    assert last is not None
    LandedObjects("ingest-game-events", world.settings).check({BATCH: 0}, last.manifest.end)
    assert bucket.raw.left(Subject(BOB, "ref")) == 0


@pytest.mark.parametrize("has_it", [False, True])
@pytest.mark.parametrize(("call", "versioned"), [("put_object", False), ("put_object", True), ("delete_object", True)])
def test_an_erasure_that_stops_at_an_object_is_done_by_the_same_call(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, call: str, versioned: bool, has_it: bool
) -> None:
    """Immediately before S3 has the object that is written anew or removes its former version, or after; no line of it
    is read twice, and no version keeps what was erased."""
    s3, name = bucket.world.s3, bucket.world.bucket
    if versioned:
        s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    bucket.put("a.json", [bucket.event(BOB, "a-1"), amys := bucket.event(AMY, "a-2")])
    bucket.world.run()
    rows, raw, bob = bucket.world.everything(), bucket.raw, Subject(BOB, "ref")
    does = getattr(raw._s3, call)

    def dies(**given: Any) -> None:
        if has_it:
            does(**given)
        raise KeyboardInterrupt

    monkeypatch.setattr(raw._s3, call, dies)
    with pytest.raises(KeyboardInterrupt):
        raw.erase(bob)
    assert bucket.raw.erase(bob) == int(call == "put_object" and not has_it)
    assert (bucket.lines("a.json"), bucket.raw.left(bob)) == ([b"", amys], 0)
    assert len(s3.list_object_versions(Bucket=name)["Versions"]) == 1, "a former version is left"
    bucket.world.run()
    assert bucket.world.everything() == rows
    assert bucket.world.left() == 0
    again = bucket.raw
    assert (again.erase(bob), again.objects) == (0, [])


def test_what_was_not_read_yet_stays_until_it_was_and_its_other_lines_land(bucket: Bucket) -> None:
    world = bucket.world
    bucket.put("a.json", [bucket.event(AMY, "a-1"), bucket.event(BOB, "a-2")])
    world.run()
    bucket.put("b.json.gz", [bucket.event(AMY, "b-1"), bucket.event(BOB, "b-2")])
    status, place = bucket.erase()
    assert (status, place["rows"], place["left"]) == (1, 1, 1)
    assert place["objects"] == [f"s3://{world.bucket}/events/a.json"]
    assert [stays.partition(" was not read yet")[0] for stays in place["stays"]] == [
        f"s3://{world.bucket}/events/b.json.gz"
    ]
    (report,) = world.run()
    assert (report.counts["landed"], report.counts["erased"]) == (1, 1)
    assert bucket.erase()[0] == 0
    assert b"".join(bucket.lines("b.json.gz")).count(BOB.encode()) == 0
    assert [row["event_id"] for row in world.rows("login")] == ["a-1", "b-1"]


def test_former_versions_of_an_object_go_too_and_only_lines_of_the_game_that_was_asked_for(bucket: Bucket) -> None:
    world = bucket.world
    world.s3.put_bucket_versioning(Bucket=world.bucket, VersioningConfiguration={"Status": "Enabled"})
    for game in ("chess", "puzzle"):
        bucket.put("a.json", [bucket.event(BOB, f"a-{game}", game_id=game), bucket.event(BOB, "a-2", game_id="chess")])
    bucket.put("b.json.gz", [bucket.event(AMY, "b-1")])
    world.run()
    status, place = bucket.erase("--game", "chess")
    assert (status, place["rows"]) == (0, 1)
    assert [json.loads(each)["event_id"] for each in bucket.lines("a.json") if each] == ["a-puzzle"]
    versions = world.s3.list_object_versions(Bucket=world.bucket)["Versions"]
    assert sorted(each["Key"] for each in versions) == ["events/a.json", "events/b.json.gz"]


@pytest.mark.parametrize("whose", [BOB, AMY])
def test_an_object_that_breaks_off_is_named_and_left_as_it_is(bucket: Bucket, whose: str) -> None:
    """Also when what can be read of it names somebody else only: nobody can say what is in its rest."""
    world = bucket.world
    lines = [bucket.event(whose, f"{number}-{hash(number)}") for number in range(200)]
    content = gzip.compress(b"\n".join(lines))[:-20]
    world.s3.put_object(Bucket=world.bucket, Key="events/b.json.gz", Body=content)
    world.run()
    status, place = bucket.erase()
    assert (status, place["rows"], len(place["stays"])) == (1, 0, 1)
    assert "damaged" in place["stays"][0]
    assert world.s3.get_object(Bucket=world.bucket, Key="events/b.json.gz")["Body"].read() == content


def test_a_verification_lists_the_bucket_again_and_says_where_it_did_not_look(bucket: Bucket, tmp_path: Any) -> None:
    world, receipt = bucket.world, tmp_path / "receipt.json"
    bucket.put("a.json", [bucket.event(BOB, "a-1")])
    world.run()
    call = CliRunner().invoke
    assert call(app, ["erase", "--subject", BOB, "--yes", "--out", str(receipt)]).exit_code == 0

    def verified(*more: str) -> tuple[int, dict[str, dict[str, Any]]]:
        done = call(app, ["erase", "--verify", str(receipt), "--json", *more])
        said = json.loads(done.stdout)
        assert said["holds"] == (done.exit_code == 0)
        return done.exit_code, {check["what"]: check for check in said["checks"]}

    status, checks = verified("--subject", BOB)
    assert (status, checks[bucket.raw.name]["looked"]) == (0, True)
    assert {what for what, check in checks.items() if not check["looked"]} == set(erasures.NOT_ERASED)
    status, checks = verified()
    assert status == 0
    assert {what for what, check in checks.items() if check["looked"]} == {
        "tombstone", "keys", "pii/vault", "pii/refused",
    }  # fmt: skip
    assert {bucket.raw.name, "game/*", "engagement/data", "backups"} < checks.keys()
    said = call(app, ["erase", "--verify", str(receipt)]).stdout.splitlines()
    assert [each.split()[1:3] for each in said if each.startswith("backups ")] == [["not", "looked"]]
    bucket.put("b.json.gz", [bucket.event(BOB, "b-1")])
    status, checks = verified("--subject", BOB)
    assert (status, checks[bucket.raw.name]["holds"]) == (1, False)


def test_objects_can_be_left_alone_and_the_receipt_says_so(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_PII__RAW_OBJECTS", "leave")
    bucket.put("a.json", [bucket.event(BOB, "a-1")])
    receipt = json.loads(CliRunner().invoke(app, ["erase", "--subject", BOB, "--yes"]).stdout)
    assert [each for each in receipt["not_reached"] if bucket.raw.name in each]
    assert bucket.raw.name not in [place["name"] for place in receipt["places"]]
    assert BOB.encode() in bucket.lines("a.json")[0]


def test_nothing_is_written_anew_in_the_middle_of_a_batch_or_without_the_right_to(bucket: Bucket) -> None:
    world, job = bucket.world, "ingest-game-events"
    bucket.put("a.json", [bucket.event(BOB, "a-1")])
    batches = world.stores.checkpoints
    manifest = Manifest(job, batches.app_id(job), 0, {}, {BATCH: 1}, datetime.now(UTC), {"game/quarantine": 0})
    batches.begin(manifest)
    with pytest.raises(OthersBatchUnfinished, match=job):
        bucket.raw.erase(Subject(BOB, "ref"))
    batches.succeed(manifest, {}, {}, datetime.now(UTC))
    games = GamesSettings(bucket="nobodys-bucket", queue_url=world.queue)
    elsewhere = Settings(home=world.settings.home, games=games)
    with pytest.raises(BucketNotListed, match="NoSuchBucket"):
        RawObjects(elsewhere, shipped(elsewhere)).erase(Subject(BOB, "ref"))
    assert bucket.lines("a.json") != [b""]


def test_one_object_that_cannot_be_read_or_is_gone_meanwhile_ends_nothing(
    moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a line that is nested too deep, which goes where it names the player."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    s3, name = moto.client("s3"), "one-bad-object"
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    settings = Settings(home=tmp_path, games=GamesSettings(bucket=name, queue_url=f"{moto.endpoint}/1/none"))
    deep, bobs = b"[" * 100_000, b'{"player_id": "%s"}' % BOB.encode()
    for key, content in {"a": deep + b'"\\"\n' + bobs, "c": deep + b'"%s"' % BOB.encode(), "d": bobs}.items():
        s3.put_object(Bucket=name, Key=f"events/{key}", Body=content)
    s3.put_object(Bucket=name, Key="events/b", Body=bobs, StorageClass="GLACIER")
    there = objects_below(settings, "events/")
    listed = [*there[:2], replace(there[0], key="events/gone"), *there[2:]]
    monkeypatch.setattr(raw_objects, "objects_below", lambda *_: listed)
    # Nobody has read these objects, but after two weeks no message about them is in the queue.
    monkeypatch.setattr(raw_objects, "utc_now", lambda: datetime.now(UTC) + timedelta(days=15))
    place, bob = RawObjects(settings, shipped(settings)), Subject(BOB, "ref")
    assert place.erase(bob) == 3
    assert place.objects == [f"s3://{name}/events/{key}" for key in "acd"]
    (sentence,) = place.stays
    assert f"s3://{name}/events/b (InvalidObjectState)" in sentence
    assert [place.left(bob), RawObjects(settings, shipped(settings)).left(bob)] == [1, 1]
    found = {key: s3.get_object(Bucket=name, Key=f"events/{key}")["Body"].read() for key in "acd"}
    assert found == {"a": deep + b'"\\"\n', "c": b"", "d": b""}
    s3.restore_object(Bucket=name, Key="events/b", RestoreRequest={"Days": 1})
    again = RawObjects(settings, shipped(settings))
    assert (again.erase(bob), again.stays, again.left(bob)) == (1, [], 0)


def test_what_hadoop_leaves_of_a_folder_is_nothing_to_replay_and_is_looked_into_by_an_erasure(small: World) -> None:
    """Its announcement is none of a file, so a batch with nothing else would have nothing to read."""
    for key, content in (("10_$folder$", b""), ("", b""), ("11_$folder$", b"somebody wrote into it")):
        small.s3.put_object(Bucket=small.bucket, Key=f"events/2026/11/22/{key}", Body=content)
    with pytest.raises(NothingToReplay):
        small.replay("events/")
    names = [file.key.rpartition("/")[2] for file in objects_below(small.settings, "events/")]
    assert names == ["10_$folder$", "11_$folder$"]


def test_an_object_that_a_replay_has_yet_to_read_is_read_by_it_as_an_erasure_has_written_it(bucket: Bucket) -> None:
    world = bucket.world
    bucket.put("a.json", [bucket.event(AMY, "a-1"), bucket.event(BOB, "a-2")])
    world.run()
    state = state_of(world.settings)
    state.renew(REPLAY_GAME_EVENTS, before := objects_below(world.settings, "events/"))
    assert bucket.erase()[0] == 0
    now = objects_below(world.settings, "events/")
    assert now != before
    state.plan(REPLAY_GAME_EVENTS, 0, None)
    assert [file.etag for file in state.files(REPLAY_GAME_EVENTS, 0, 1)] == [file.etag for file in now]

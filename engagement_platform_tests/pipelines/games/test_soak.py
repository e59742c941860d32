"""Everything that goes wrong between a bucket and its tables, at once and often: nothing is lost, nothing stands twice.

Announcements come twice and out of order, S3 and SQS fail, the process is killed, objects are damaged or gone.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.games.event_type import EventType
from engagement_platform.sources.s3_events import S3File
from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.pipelines.games.conftest import World
from engagement_platform_tests.pipelines.games.events import line
from engagement_platform_tests.pipelines.games.faulty import FaultyProxy, Service
from engagement_platform_tests.sources.test_s3_sqs import until

Landed = tuple[str, str, str, int]
"""Table, id of the event, object and line."""


@dataclass(frozen=True)
class Extent:
    """How long a soak is and what goes wrong in it, each so many times, beside what the proxy does at random."""

    objects: int
    types: int
    """Types that events are of: each batch writes a table for each."""
    announced_at_once: int
    repeated: int
    moved: int
    truncated: int
    deleted: int
    kills: int
    outages: Sequence[Service] = ()


@dataclass
class Bucket:
    """What was put, as plain Python knows it."""

    lines: dict[str, list[bytes]] = field(default_factory=dict)
    """Key to the lines of the whole object."""
    truncated: dict[str, bytes] = field(default_factory=dict)
    """Key to what of it is in the bucket."""
    deleted: set[str] = field(default_factory=set)

    def readable(self, key: str) -> list[bytes]:
        """The lines that can be read of an object, as gzip's format has it."""
        if key in self.deleted:
            return []
        if key not in self.truncated:
            return self.lines[key]
        text = zlib.decompressobj(wbits=31).decompress(self.truncated[key])
        return text.split(b"\n")[:-1]


@dataclass
class Soak:
    """A world, the proxy before it, and what has been done to it."""

    world: World
    proxy: FaultyProxy
    extent: Extent
    rng: random.Random
    bucket: Bucket = field(default_factory=Bucket)
    faults: Counter[str] = field(default_factory=Counter)

    def put(self) -> list[str]:
        """All objects; some damaged, some deleted at once. Their keys, in order."""
        extent = self.extent
        types = list(self.world.types.values())[: extent.types]
        keys = [f"events/{n // 100:03}/{n:05}.json.gz" for n in range(extent.objects)]
        harmed = self.rng.sample(keys, extent.truncated + extent.deleted)
        now = datetime.now(UTC).isoformat()
        for n, key in enumerate(keys):
            self.bucket.lines[key] = list(self._lines(n, types, now))
            whole = gzip.compress(b"\n".join(self.bucket.lines[key]) + b"\n", mtime=0)
            if key in harmed[: extent.truncated]:
                self.bucket.truncated[key] = whole = whole[: len(whole) * self.rng.randrange(40, 95) // 100]
            self.world.s3.put_object(Bucket=self.world.bucket, Key=key, Body=whole)
            if key in harmed[extent.truncated :]:
                self.bucket.deleted.add(key)
                self.world.s3.delete_object(Bucket=self.world.bucket, Key=key)
        self.faults |= Counter(truncated=len(self.bucket.truncated), deleted=len(self.bucket.deleted))
        return keys

    def _lines(self, n: int, types: Sequence[EventType], now: str) -> Iterator[bytes]:
        for number in range(self.rng.randrange(3, 8)):
            declared = self.rng.choice(types)
            # A text that does not compress, so that a truncated object breaks off in the middle of its lines.
            yield line(declared, f"{n:05}-{number}-{self.rng.getrandbits(256):x}", event_ts=now)
        if n % 10 == 0:
            yield b"no json of object %d" % n

    def announcements(self, keys: Sequence[str]) -> list[str]:
        """A message for each object, some out of their place, some twice."""
        told = list(keys)
        for _ in range(self.extent.moved):
            key = told.pop(self.rng.randrange(len(told)))
            told.insert(self.rng.randrange(len(told)), key)
        for key in self.rng.sample(keys, self.extent.repeated):
            # Sometime after the first, often long after its batch was committed.
            told.insert(self.rng.randrange(told.index(key) + 1, len(told) + 1), key)
        self.faults |= Counter(moved=self.extent.moved, repeated=self.extent.repeated)
        return [S3File(self.world.bucket, key, event_time=datetime.now(UTC).isoformat()).as_event() for key in told]

    def announce(self, messages: Sequence[str]) -> None:
        """Send them, in this order, not by way of the proxy."""
        for begin in range(0, len(messages), 10):
            entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(messages[begin : begin + 10])]
            self.world.sqs.send_message_batch(QueueUrl=self.world.queue, Entries=entries)

    def run(self) -> None:
        """Batches until nothing is visible; what an outage, or too many failures in a row, ended is started again."""
        while True:
            try:
                for report in self.world.run():
                    counts = report.counts
                    assert counts["rows_in"] == sum(counts.get(n, 0) for n in ("landed", "duplicates", "quarantined"))
            except PlatformError:
                self.faults["runs that failed"] += 1
                assert self.faults["runs that failed"] < 50, "the job does not get through"
                continue
            return

    def kill(self, point: str) -> None:
        """Run the job in a process that ends itself by SIGKILL at a point, where it comes to that."""
        ended = self.world.in_a_process(point, GAMES__MAX_OBJECTS=str(self.world.settings.games.max_objects))
        self.faults["killed"] += ended.returncode == -signal.SIGKILL

    def fail_for_a_while(self, service: Service) -> None:
        """No answer from a service until the job has given up."""
        with self.proxy.outage(service), pytest.raises(PlatformError):
            self.world.run()
        self.faults["outages"] += 1

    def points(self) -> list[str]:
        """Where the process may be killed, of those that every batch comes by; others may have nothing to write."""
        names = list(self.world.types)[: self.extent.types]
        passed = [f"tables.{self.rng.choice(names)}:{when}" for when in ("before", "after")]
        return ["manifest:after", "lines:recorded", *passed, "tables:recorded"]

    @property
    def injected(self) -> Counter[str]:
        """All that went wrong on purpose."""
        return self.faults - Counter({"runs that failed": self.faults["runs that failed"]}) + self.proxy.injected


def soak(world: World, proxy: FaultyProxy, extent: Extent, seed: int) -> Soak:
    """Objects, announcements and failures, until the queue is empty."""
    done = Soak(world, proxy, extent, random.Random(seed))
    messages = done.announcements(done.put())
    turns = [messages[begin : begin + extent.announced_at_once]
             for begin in range(0, len(messages), extent.announced_at_once)]  # fmt: skip
    kills, outages = extent.kills, list(extent.outages)
    for number, turn in enumerate(turns):
        done.announce(turn)
        if outages and number % 2 == 0:
            done.fail_for_a_while(outages.pop())
        if done.faults["killed"] < kills:
            done.kill(done.rng.choice(done.points()))
        done.run()

    def emptied() -> bool:
        done.run()
        return world.left() == 0

    # What was received by a process that is gone comes again after three seconds.
    until(emptied, "the queue is not empty", seconds=900)
    return done


def rows(world: World) -> list[Landed]:
    return [(name, row["event_id"], row["source_object"], row["source_line"])
            for name in world.types for row in world.rows(name)]  # fmt: skip


def readable(done: Soak) -> tuple[list[Landed], list[tuple[str, int, bytes]]]:
    """What must have landed, and what must be in quarantine."""
    landed: list[Landed] = []
    refused: list[tuple[str, int, bytes]] = []
    for key in done.bucket.lines:
        url = f"s3://{done.world.bucket}/{key}"
        for number, content in enumerate(done.bucket.readable(key), 1):
            if content.startswith(b"{"):
                said = json.loads(content)
                landed.append((said["event_type"], said["event_id"], url, number))
            else:
                refused.append((url, number, content))
    return sorted(landed), sorted(refused)


def assert_nothing_is_lost_or_doubled(done: Soak) -> None:
    world = done.world
    landed, refused = readable(done)
    assert sorted(rows(world)) == landed
    kept = [(row["source_object"], row["source_line"], row["value"]) for row in world.rows("quarantine")]
    assert sorted(kept) == refused
    letters = dead_letters(world)
    assert {key for key, code in letters if code == "unreadable"} == done.bucket.truncated.keys()
    assert {key for key, code in letters if code == "deleted"} == done.bucket.deleted
    assert {code for _key, code in letters} <= {"unreadable", "deleted"}


def assert_a_damaged_object_that_comes_again_whole_lands_once(done: Soak) -> None:
    """Whoever mends them puts them under another name; what had landed of them is known."""
    world, mended = done.world, done.bucket.truncated
    keys = [f"{key.removesuffix('.json.gz')}-mended.json.gz" for key in mended]
    for key, old in zip(keys, mended, strict=True):
        world.put(key, done.bucket.lines[old])
    done.announce([S3File(world.bucket, key, event_time=datetime.now(UTC).isoformat()).as_event() for key in keys])
    done.run()
    whole = [content for key, lines in done.bucket.lines.items() if key not in done.bucket.deleted for content in lines]
    expected = Counter(json.loads(content)["event_id"] for content in whole if content.startswith(b"{"))
    assert Counter(event_id for _name, event_id, _url, _line in rows(world)) == expected


def dead_letters(world: World) -> set[tuple[str, str]]:
    """Key and reason of each; a letter may come twice after a crash."""
    found = set[tuple[str, str]]()
    while True:
        answer = world.sqs.receive_message(
            QueueUrl=world.dead, MaxNumberOfMessages=10, MessageAttributeNames=["All"], VisibilityTimeout=300
        )
        if not (letters := answer.get("Messages", ())):
            return found
        for letter in letters:
            (record,) = json.loads(letter["Body"])["Records"]
            said = letter["MessageAttributes"]
            assert said["reason"]["StringValue"]
            found.add((record["s3"]["object"]["key"].replace("%2F", "/"), said["reason_code"]["StringValue"]))


@pytest.fixture
def world(moto: Moto, tmp_path: Path, spark: SparkSession) -> World:
    """Without announcements of its own: the soak sends them."""
    made = World(moto, tmp_path, spark)
    made.s3.put_bucket_notification_configuration(Bucket=made.bucket, NotificationConfiguration={})
    made.sqs.purge_queue(QueueUrl=made.queue)
    return made


def through(world: World, proxy: FaultyProxy, max_objects: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the jobs of a world see bucket and queue through the proxy only."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    queue = world.queue.replace(world.moto.endpoint, proxy.url)
    games = world.settings.games.model_copy(update={"queue_url": queue, "max_objects": max_objects})
    world.settings = world.settings.model_copy(update={"games": games})


@pytest.mark.slow
def test_a_short_soak_loses_and_doubles_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    extent = Extent(objects=60, types=3, announced_at_once=30, repeated=12, moved=10, truncated=4, deleted=3, kills=1)
    with FaultyProxy(world.moto.endpoint, seed=7, shares={"refused": 0.04, "lost": 0.04}) as proxy:
        through(world, proxy, 20, monkeypatch)
        done = soak(world, proxy, extent, seed=11)
        assert_nothing_is_lost_or_doubled(done)
        assert done.injected["killed"] == 1
        assert sum(done.injected.values()) >= 32, done.injected
        assert_a_damaged_object_that_comes_again_whole_lands_once(done)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_two_thousand_objects_and_two_hundred_faults_lose_and_double_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Smaller ones while something is being looked into.
    objects = int(os.environ.get("TESTS_SOAK_OBJECTS", "2000"))
    extent = Extent(
        objects=objects, types=30, announced_at_once=max(objects // 8, 20), repeated=objects // 20,
        moved=objects // 25, truncated=objects // 40, deleted=objects // 50, kills=6, outages=("s3", "sqs"),
    )  # fmt: skip
    with FaultyProxy(world.moto.endpoint, seed=7, shares={"refused": 0.03, "lost": 0.03}) as proxy:
        through(world, proxy, max(objects // 16, 10), monkeypatch)
        done = soak(world, proxy, extent, seed=11)
        print(f"{sum(done.injected.values())} faults: {dict(sorted(done.injected.items()))}")
        assert_nothing_is_lost_or_doubled(done)
        assert {"s3 refused", "s3 lost", "sqs refused", "sqs lost", "killed", "outages"} <= done.injected.keys()
        assert sum(done.injected.values()) >= (200 if objects >= 2000 else 40), done.injected
        assert_a_damaged_object_that_comes_again_whole_lands_once(done)

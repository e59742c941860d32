"""Two Spark drivers never write to one lake on S3; clients of one Connect server are one driver."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engagement_platform.engine.owner import this_process
from engagement_platform.lake import driver_lease
from engagement_platform.lake.driver_lease import NAME, DriverLease, Found, LakeHeld, Lease, LeaseObject, held
from engagement_platform.lake.session import lake_lease
from engagement_platform.settings import Settings
from engagement_platform_tests.conftest import Moto

TTL, WAIT = timedelta(minutes=5), timedelta(seconds=90)
ONE, OTHER = ("app-1 at a:1", "sc://one:15002"), ("app-2 at b:2", "sc://other:15002")
CLASSIC = ("local-1 at 127.0.0.1:1", "")


class Clock:
    """Time that passes in `sleep`; `meanwhile` is called then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


class Bucket(LeaseObject):
    """The object with a clock of its own; the real one is tested below."""

    def __init__(self, clock: Clock) -> None:
        self.root, self.clock = "s3a://b/lake", clock
        self.content: tuple[Lease | None, float] | None = None
        self.puts = 0

    def read(self) -> Found | None:
        if self.content is None:
            return None
        lease, at = self.content
        return Found(lease, f"etag-{self.puts}", timedelta(seconds=self.clock.now - at))

    def write(self, lease: Lease | None, *, over: Found | None) -> bool:
        now = self.read()
        if (over.etag if over else None) != (now.etag if now else None):
            return False
        self.puts += 1
        self.content = lease, self.clock.now
        return True

    @property
    def lease(self) -> Lease:
        assert self.content is not None
        assert self.content[0] is not None
        return self.content[0]

    def from_elsewhere(self) -> None:
        """As if the holder were a process of another machine."""
        assert self.content is not None
        self.content = replace(self.lease, place="another machine", owner="far:1:1"), self.content[1]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bucket(clock: Clock) -> Bucket:
    return Bucket(clock)


def lease(bucket: Bucket, driver: tuple[str, str]) -> DriverLease:
    return DriverLease(bucket, *driver, TTL, elapsed=bucket.clock, sleep=bucket.clock.sleep)


def test_the_first_driver_has_the_lake_and_so_has_every_client_of_it(bucket: Bucket, clock: Clock) -> None:
    first, second = lease(bucket, ONE), lease(bucket, ONE)
    first.acquire(WAIT)
    second.acquire(WAIT)
    for _ in range(5):
        clock.now += 100
        first.renew()
        second.renew()
    first.check()
    second.check()
    assert (bucket.lease.driver, clock.now) == (ONE[0], 500)


def test_a_second_driver_is_refused_as_soon_as_the_first_is_seen_alive(bucket: Bucket, clock: Clock) -> None:
    first = lease(bucket, ONE)
    first.acquire(WAIT)
    bucket.from_elsewhere()
    clock.meanwhile = lambda: first.renew() if clock.now == 20 else None
    with pytest.raises(LakeHeld, match=r"app-1 at a:1 \(sc://one:15002\).*nothing was written"):
        lease(bucket, OTHER).acquire(WAIT)
    assert (bucket.lease.driver, clock.now) == (ONE[0], 20)
    first.check()


def test_a_silent_driver_keeps_the_lake_for_its_ttl_and_who_waits_less_is_refused(bucket: Bucket, clock: Clock) -> None:
    lease(bucket, ONE).acquire(WAIT)
    bucket.from_elsewhere()
    with pytest.raises(LakeHeld):
        lease(bucket, OTHER).acquire(WAIT)
    assert clock.now == WAIT.total_seconds()
    clock.now = TTL.total_seconds() - 1
    lease(bucket, OTHER).acquire(WAIT)
    assert (bucket.lease.driver, clock.now) == (OTHER[0], TTL.total_seconds())


def test_a_driver_that_was_replaced_may_not_write_even_before_it_knows(bucket: Bucket, clock: Clock) -> None:
    first = lease(bucket, ONE)
    first.acquire(WAIT)
    bucket.from_elsewhere()
    clock.now = TTL.total_seconds()
    with pytest.raises(LakeHeld, match="not renewed for 300 s"):
        first.check()
    lease(bucket, OTHER).acquire(WAIT)
    with pytest.raises(LakeHeld, match="it is held by app-2"):
        first.renew()
    with pytest.raises(LakeHeld, match="it is held by app-2"):
        first.check()


@pytest.mark.parametrize("over", ["nothing", "an old lease"])
def test_of_two_drivers_that_come_at_once_one_has_the_lake(
    bucket: Bucket, clock: Clock, monkeypatch: pytest.MonkeyPatch, over: str
) -> None:
    """The other driver comes between this one's read and its put."""
    if over == "an old lease":
        lease(bucket, CLASSIC).acquire(WAIT)
        bucket.from_elsewhere()
        clock.now = TTL.total_seconds()

    def read() -> Found | None:
        found = Bucket.read(bucket)
        if not others:
            others.append(lease(bucket, OTHER))
            others[0].acquire(WAIT)
            bucket.from_elsewhere()
        return found

    others: list[DriverLease] = []
    monkeypatch.setattr(bucket, "read", read)
    with pytest.raises(LakeHeld):
        lease(bucket, ONE).acquire(WAIT)
    assert bucket.lease.driver == OTHER[0]


def test_a_driver_that_ended_leaves_the_lake_to_the_next_at_once(bucket: Bucket, clock: Clock) -> None:
    first = lease(bucket, CLASSIC)
    first.acquire(WAIT)
    bucket.from_elsewhere()
    first.close(ended=True)
    lease(bucket, OTHER).acquire(WAIT)
    assert (bucket.lease.driver, clock.now) == (OTHER[0], 0)


def test_a_session_that_ends_on_a_connect_server_leaves_the_lease_to_the_others(bucket: Bucket) -> None:
    first = lease(bucket, ONE)
    first.acquire(WAIT)
    first.close(ended=False)
    assert bucket.lease.driver == ONE[0]


@pytest.mark.parametrize(
    ("holder", "follows"),
    [
        (Lease("app-0", ONE[1], "x:1:1", this_process().place, 300, 7), True),
        (Lease("app-0", ONE[1], "x:1:1", "another machine", 300, 7), False),
        (Lease("app-0", "sc://else:1", "x:1:1", this_process().place, 300, 7), False),
        (Lease("local-0", "", f"x:{2**22 + 7}:1", this_process().place, 300, 7), True),
        (Lease("local-0", "", str(this_process()), this_process().place, 300, 7), False),
        (Lease("local-0", "", "x:1:1", "another machine", 300, 7), False),
    ],
)
def test_who_is_gone_is_followed_at_once(bucket: Bucket, clock: Clock, holder: Lease, *, follows: bool) -> None:
    """A server anew at the same endpoint of the same machine; a process of this machine that ended."""
    bucket.content = holder, 0.0
    if follows:
        lease(bucket, ONE).acquire(WAIT)
        assert clock.now == 0
    else:
        with pytest.raises(LakeHeld):
            lease(bucket, ONE).acquire(WAIT)


def test_bytes_that_are_no_lease_are_replaced_when_they_are_old(bucket: Bucket, clock: Clock) -> None:
    bucket.content = None, 0.0
    lease(bucket, ONE).acquire(TTL)
    assert clock.now == TTL.total_seconds()


@pytest.fixture
def lake(moto: Moto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    name = f"lease-{tmp_path.name.replace('_', '-').lower()}"[:60].rstrip("-")
    moto.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    return f"s3a://{name}/deep/lake"


def test_the_object_in_the_bucket_is_put_on_conditions_only(lake: str) -> None:
    one, other = LeaseObject(lake), LeaseObject(lake)
    first = Lease("app-1", "", "me", "here", 300, 0)
    assert one.read() is None
    assert one.write(first, over=None)
    assert not other.write(replace(first, driver="app-2"), over=None)
    found = other.read()
    assert found is not None
    assert found.lease == first
    assert timedelta(0) <= found.age < timedelta(minutes=1)
    assert one.write(replace(first, beat=1), over=found)
    assert not other.write(replace(first, driver="app-2", beat=1), over=found)


def test_a_bucket_that_is_not_there_is_named(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    with pytest.raises(LakeHeld, match=f"s3a://no-such-bucket/lake/{NAME}"):
        LeaseObject("s3a://no-such-bucket/lake").read()


SECOND = """
import sys
from datetime import timedelta
from engagement_platform.lake.driver_lease import held
with held(sys.argv[1], "second", "", ttl=timedelta(seconds=6), wait=timedelta(0), ends=True):
    print("holds")
"""


def second(lake: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SECOND, lake]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def holding(lake: str, *, ends: bool) -> AbstractContextManager[None]:
    return held(lake, "first", "", ttl=timedelta(seconds=60), wait=timedelta(0), ends=ends)


def test_a_process_with_a_driver_of_its_own_is_refused_beside_another(lake: str) -> None:
    with holding(lake, ends=True):
        with holding(lake, ends=False):
            """A second session of the same driver."""
        refused = second(lake)
        driver_lease.check(lake)
    assert refused.returncode == 1
    assert f"Another Spark driver writes to {lake}: first (in its own process)" in refused.stderr
    assert second(lake).stdout == "holds\n"


def test_a_lake_that_needs_no_lease_has_none(spark: SparkSession, tmp_path: Path) -> None:
    log_store = "spark.delta.logStore.s3a.impl"
    with lake_lease(Settings(home=tmp_path), spark, ends=True):
        driver_lease.check(str(tmp_path))
    spark.conf.set(log_store, "io.delta.storage.S3DynamoDBLogStore")
    try:
        # No such bucket is there, and nobody asks for it.
        with lake_lease(Settings(home=tmp_path, lake_uri="s3a://no-such-bucket/lake"), spark, ends=True):
            assert not driver_lease._held
    finally:
        spark.conf.unset(log_store)

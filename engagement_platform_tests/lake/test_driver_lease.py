"""Two Spark drivers never write to one lake on S3; clients of one Connect server are one driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from engagement_platform.engine.owner import this_process
from engagement_platform.lake import driver_lease
from engagement_platform.lake.driver_lease import (
    NAME,
    Driver,
    DriverLease,
    Found,
    Held,
    LakeHeld,
    LakeLeaseLost,
    LakeLeaseUnreadable,
    S3Object,
    hold,
)
from engagement_platform_tests.conftest import Moto

TTL, WAIT = timedelta(minutes=5), timedelta(seconds=90)
ONE, OTHER = Driver("app-1 at a:1", "sc://one:15002"), Driver("app-2 at b:2", "sc://other:15002")
CLASSIC = Driver("local-1 at 127.0.0.1:1", "")


class Clock:
    """Time that passes when somebody sleeps; whoever is called then does something meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


class Bucket:
    """One object with conditional puts and a clock, as `LeaseObject` promises them; the real one is tested below."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.found: tuple[Held | None, str, float] | None = None
        self.puts = 0

    def read(self) -> Found | None:
        if self.found is None:
            return None
        held, etag, at = self.found
        return Found(held, etag, timedelta(seconds=self.clock.now - at))

    def write(self, held: Held | None, *, over: Found | None) -> bool:
        if (over.etag if over else None) != (self.found[1] if self.found else None):
            return False
        self.puts += 1
        self.found = held, f"etag-{self.puts}", self.clock.now
        return True

    @property
    def driver(self) -> str:
        assert self.found is not None
        assert self.found[0] is not None
        return self.found[0].driver

    def from_elsewhere(self) -> None:
        """As if the holder were a process of another machine."""
        assert self.found is not None
        held, etag, at = self.found
        assert held is not None
        self.found = replace(held, place="another machine", owner="far:1:1"), etag, at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bucket(clock: Clock) -> Bucket:
    return Bucket(clock)


def lease(bucket: Bucket, driver: Driver, at: Bucket | None = None) -> DriverLease:
    clock = bucket.clock
    return DriverLease("s3a://b/lake", driver, at or bucket, TTL, elapsed=clock, sleep=clock.sleep)


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
    assert (bucket.driver, clock.now) == (ONE.id, 500)


def test_a_second_driver_is_refused_as_soon_as_the_first_is_seen_alive(bucket: Bucket, clock: Clock) -> None:
    first = lease(bucket, ONE)
    first.acquire(WAIT)
    bucket.from_elsewhere()
    clock.meanwhile = lambda: first.renew() if clock.now == 20 else None
    with pytest.raises(LakeHeld, match=r"app-1 at a:1 \(sc://one:15002\).*nothing was written") as refused:
        lease(bucket, OTHER).acquire(WAIT)
    assert refused.value.held.driver == ONE.id
    assert (bucket.driver, clock.now) == (ONE.id, 20)
    first.check()


def test_a_silent_driver_keeps_the_lake_for_its_ttl_and_who_waits_less_is_refused(bucket: Bucket, clock: Clock) -> None:
    lease(bucket, ONE).acquire(WAIT)
    bucket.from_elsewhere()
    with pytest.raises(LakeHeld):
        lease(bucket, OTHER).acquire(WAIT)
    assert clock.now == WAIT.total_seconds()
    clock.now = TTL.total_seconds() - 1
    lease(bucket, OTHER).acquire(WAIT)
    assert (bucket.driver, clock.now) == (OTHER.id, TTL.total_seconds())


def test_a_driver_that_was_replaced_may_not_write_even_before_it_knows(bucket: Bucket, clock: Clock) -> None:
    first = lease(bucket, ONE)
    first.acquire(WAIT)
    bucket.from_elsewhere()
    clock.now = TTL.total_seconds()
    with pytest.raises(LakeLeaseLost, match="not renewed for 300 s"):
        first.check()
    lease(bucket, OTHER).acquire(WAIT)
    with pytest.raises(LakeLeaseLost, match="now held by app-2"):
        first.renew()
    with pytest.raises(LakeLeaseLost, match="now held by app-2"):
        first.check()


@pytest.mark.parametrize("over", ["nothing", "an old lease"])
def test_of_two_drivers_that_come_at_once_one_has_the_lake(bucket: Bucket, clock: Clock, over: str) -> None:
    if over == "an old lease":
        lease(bucket, CLASSIC).acquire(WAIT)
        bucket.from_elsewhere()
        clock.now = TTL.total_seconds()

    class Between(Bucket):
        """The other driver comes between this one's read and its put."""

        def read(self) -> Found | None:
            found = bucket.read()
            if not others:
                others.append(lease(bucket, OTHER))
                others[0].acquire(WAIT)
                bucket.from_elsewhere()
            return found

        def write(self, held: Held | None, *, over: Found | None) -> bool:
            return bucket.write(held, over=over)

    others: list[DriverLease] = []
    with pytest.raises(LakeHeld):
        lease(bucket, ONE, Between(clock)).acquire(WAIT)
    assert bucket.driver == OTHER.id


def test_a_driver_that_ended_leaves_the_lake_to_the_next_at_once(bucket: Bucket, clock: Clock) -> None:
    first = lease(bucket, CLASSIC)
    first.acquire(WAIT)
    bucket.from_elsewhere()
    first.close(ended=True)
    lease(bucket, OTHER).acquire(WAIT)
    assert (bucket.driver, clock.now) == (OTHER.id, 0)


def test_a_session_that_ends_on_a_connect_server_leaves_the_lease_to_the_others(bucket: Bucket) -> None:
    first = lease(bucket, ONE)
    first.acquire(WAIT)
    first.close(ended=False)
    assert bucket.driver == ONE.id


@pytest.mark.parametrize(
    ("holder", "follows"),
    [
        (Held("app-0", ONE.remote, "x:1:1", this_process().place, 300, 7), True),
        (Held("app-0", ONE.remote, "x:1:1", "another machine", 300, 7), False),
        (Held("app-0", "sc://else:1", "x:1:1", this_process().place, 300, 7), False),
        (Held("local-0", "", f"x:{2**22 + 7}:1", this_process().place, 300, 7), True),
        (Held("local-0", "", str(this_process()), this_process().place, 300, 7), False),
        (Held("local-0", "", "x:1:1", "another machine", 300, 7), False),
    ],
)
def test_who_is_gone_is_followed_at_once(bucket: Bucket, clock: Clock, holder: Held, *, follows: bool) -> None:
    """A server anew at the same endpoint of the same machine; a process of this machine that ended."""
    bucket.found = holder, "etag", 0.0
    if follows:
        lease(bucket, ONE).acquire(WAIT)
        assert clock.now == 0
    else:
        with pytest.raises(LakeHeld):
            lease(bucket, ONE).acquire(WAIT)


def test_bytes_that_say_nothing_are_replaced_when_they_are_old(bucket: Bucket, clock: Clock) -> None:
    bucket.found = None, "etag", 0.0
    lease(bucket, ONE).acquire(WAIT)
    assert clock.now == TTL.total_seconds()


@pytest.fixture
def lake(moto: Moto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    name = f"lease-{tmp_path.name.replace('_', '-').lower()}"[:60].rstrip("-")
    moto.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    return f"s3a://{name}/deep/lake"


def test_the_object_in_the_bucket_is_put_on_conditions_only(lake: str) -> None:
    one, other = S3Object(lake), S3Object(lake)
    held = Held("app-1", "", "me", "here", 300, 0)
    assert one.read() is None
    assert one.write(held, over=None)
    assert not other.write(replace(held, driver="app-2"), over=None)
    found = other.read()
    assert found is not None
    assert found.held == held
    assert timedelta(0) <= found.age < timedelta(minutes=1)
    assert one.write(replace(held, beat=1), over=found)
    assert not other.write(replace(held, driver="app-2", beat=1), over=found)
    renewed = other.read()
    assert renewed is not None
    assert renewed.etag != found.etag


def test_a_bucket_that_is_not_there_is_said(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    with pytest.raises(LakeLeaseUnreadable, match=f"s3a://no-such-bucket/lake/{NAME}"):
        S3Object("s3a://no-such-bucket/lake").read()


SECOND = """
import sys
from datetime import timedelta
from engagement_platform.lake.driver_lease import Driver, hold
hold(sys.argv[1], lambda: Driver("second", sys.argv[2]), lambda: None, ttl=timedelta(seconds=6), wait=timedelta(0),
     ends=False)
print("holds")
"""


def second(lake: str, remote: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SECOND, lake, remote]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def holding(lake: str, remote: str, *, ends: bool) -> Callable[[], None]:
    driver = Driver("first", remote)
    return hold(lake, lambda: driver, lambda: None, ttl=timedelta(seconds=60), wait=timedelta(0), ends=ends)


def test_a_process_with_a_driver_of_its_own_is_refused_beside_another(lake: str) -> None:
    let_go = holding(lake, "", ends=True)
    refused = second(lake, "")
    assert refused.returncode == 1
    assert f"Another Spark driver writes to {lake}: first (in its own process)" in refused.stderr
    driver_lease.check(lake)
    let_go()
    assert second(lake, "").stdout == "holds\n"


def test_a_second_session_of_one_driver_goes_on_with_the_lease_until_the_last_is_closed(lake: str) -> None:
    one = holding(lake, "", ends=True)
    another = holding(lake, "", ends=True)
    one()
    assert second(lake, "").returncode == 1
    another()
    assert second(lake, "").returncode == 0


@pytest.mark.parametrize(
    ("root", "log_store"), [("/a/disk", None), ("s3a://no-such-bucket/lake", "io.delta.storage.S3DynamoDBLogStore")]
)
def test_a_lake_that_needs_no_lease_has_none(root: str, log_store: str | None) -> None:
    def nobody() -> Driver:
        raise AssertionError("not asked")

    hold(root, nobody, lambda: log_store, ttl=TTL, wait=WAIT, ends=True)()
    driver_lease.check(root)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not driver_lease._held
    assert os.environ.get("AWS_PROFILE") is None

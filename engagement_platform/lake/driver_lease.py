"""Lets one Spark driver at a time write to a lake at s3a://: a lease in the lake's own bucket.

Delta's log store for S3 keeps two commits apart within one driver only. The stores cannot tell two drivers apart that
have different stores, the bucket can: the lease is one object there, written with conditional puts (If-None-Match for
the first, If-Match for every later one) and renewed while a session of the driver is open. A Connect server is one
driver, however many clients it has. Lakes on a disk, and log stores that are safe for several drivers, need none.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from engagement_platform.engine.owner import is_gone, this_process
from engagement_platform.errors import PlatformError
from engagement_platform.lake.s3a import SCHEME

_LOG = logging.getLogger(__name__)

NAME = "_driver_lease.json"
"""Below the lake's root; Delta and VACUUM of tables never look there."""

SAFE_LOG_STORES = frozenset({"io.delta.storage.S3DynamoDBLogStore"})
"""Values of spark.delta.logStore.s3a.impl with which several drivers may commit."""

BEAT = timedelta(seconds=20)
"""How often the lease is renewed at least: so soon, a second driver knows that the first one is alive."""

_BEATS_PER_TTL = 3


class LakeHeld(PlatformError):
    """Another driver writes to the lake."""

    def __init__(self, root: str, held: Held) -> None:
        self.root, self.held = root, held
        super().__init__(
            f"Another Spark driver writes to {root}: {held}. Two drivers that commit to one table on S3 at one moment "
            "lose a commit without a word, so nothing was written. Use the same Spark Connect server "
            "(ENGAGEMENT_PLATFORM_SPARK__REMOTE), or end that driver and run again: its lease ends by itself "
            f"{held.ttl_s:.0f} s after its last use (stores.lake_lease_ttl). For several drivers set "
            f"spark.delta.logStore.s3a.impl to {', '.join(sorted(SAFE_LOG_STORES))} in all of them."
        )


class LakeLeaseLost(PlatformError):
    """The lease on the lake was not renewed in time; another driver may be writing."""

    def __init__(self, root: str, cause: str) -> None:
        self.root = root
        super().__init__(
            f"The lease of this Spark driver on {root} is lost: {cause}. Nothing is written from here on. What was "
            "committed is recorded; run again, and the next run finishes the batch."
        )


class LakeLeaseUnreadable(PlatformError):
    """The bucket does not let the lease be read or written."""

    def __init__(self, root: str, cause: str) -> None:
        self.root = root
        super().__init__(
            f"Which Spark driver may write to {root} cannot be told: {cause}. Nothing was written. The bucket has to "
            f"exist, and the credentials have to allow GetObject and PutObject on {root}/{NAME}."
        )


@dataclass(frozen=True)
class Driver:
    """One Spark driver. id: differs between any two drivers, also of one machine after a restart."""

    id: str
    remote: str
    """Endpoint of a Connect server; empty for a Spark in the client's process."""


@dataclass(frozen=True)
class Held:
    """What the lease says. owner and place: the client that renewed it last, as `engine/owner` tells processes."""

    driver: str
    remote: str
    owner: str
    place: str
    ttl_s: float
    beat: int
    """Goes up with every renewal, so that each has other bytes and so another ETag."""

    @property
    def released(self) -> bool:
        """Whether the driver ended and gave the lease back."""
        return not self.driver

    def __str__(self) -> str:
        return f"{self.driver} ({self.remote or 'in its own process'}), last used by {self.owner}"


@dataclass(frozen=True)
class Found:
    """The lease as it is in the bucket, with what a conditional put needs."""

    held: Held | None
    etag: str | None
    age: timedelta
    """Since it was written, by the object store's clock alone."""


def boot_seconds() -> float:
    """Seconds from some fixed moment, also while a machine sleeps, where the system counts those."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LeaseObject(Protocol):
    """The one object that is the lease."""

    def read(self) -> Found | None:
        """None where there is no such object."""
        ...

    def write(self, held: Held, *, over: Found | None) -> bool:
        """Put it, if it still is what was read (over) or still is not there (None); whether it was."""
        ...


class S3Object:
    """The lease in a bucket. root: s3a://bucket/prefix. Raises LakeLeaseUnreadable."""

    def __init__(self, root: str) -> None:
        import boto3
        from botocore.config import Config

        self._root = root
        self._bucket, _, prefix = root.removeprefix(SCHEME).partition("/")
        self._key = f"{prefix.strip('/')}/{NAME}".lstrip("/")
        limits = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3})
        self._client = boto3.client("s3", config=limits)

    def read(self) -> Found | None:
        """Its content, ETag and age; one GET."""
        answer = self._call("get_object", absent=("NoSuchKey", "404"))
        if answer is None:
            return None
        age = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]) - answer["LastModified"]
        return Found(_parsed(answer["Body"].read()), answer["ETag"], age)

    def write(self, held: Held, *, over: Found | None) -> bool:
        """One conditional PUT."""
        condition = {"IfNoneMatch": "*"} if over is None or over.etag is None else {"IfMatch": over.etag}
        body = json.dumps(asdict(held)).encode()
        # 409: another conditional put of the same object is under way.
        refused = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchKey", "404")
        return self._call("put_object", absent=refused, Body=body, **condition) is not None

    def _call(self, operation: str, *, absent: tuple[str, ...], **arguments: Any) -> Any:
        """The answer; None for one of the error codes in `absent`."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._client, operation)(Bucket=self._bucket, Key=self._key, **arguments)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in absent:
                return None
            raise LakeLeaseUnreadable(self._root, str(error)) from error
        except BotoCoreError as error:
            raise LakeLeaseUnreadable(self._root, str(error)) from error


def _parsed(body: bytes) -> Held | None:
    """None for bytes that no version of the platform wrote; they are replaced once they are old."""
    try:
        return Held(**json.loads(body))
    except (ValueError, TypeError):
        return None


class DriverLease:
    """The lease of one driver on one lake; renewed by a daemon thread. Call `acquire` first."""

    def __init__(
        self,
        root: str,
        driver: Driver,
        at: LeaseObject,
        ttl: timedelta,
        *,
        elapsed: Callable[[], float] = boot_seconds,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._root, self._driver, self._at, self._ttl = root, driver, at, ttl
        self._elapsed, self._sleep = elapsed, sleep
        self._renewed_at = float("-inf")
        self._lost: str | None = None
        self._stop = threading.Event()

    def acquire(self, wait: timedelta) -> None:
        """Hold the lease. Raises LakeHeld, LakeLeaseUnreadable.

        At once where nobody holds it, where this driver does, and where the holder is certainly gone. Otherwise
        watches the holder until its lease ends, for at most `wait`: one that renews it meanwhile is alive.
        """
        seen: Found | None = None
        began = self._elapsed()
        while True:
            before = self._elapsed()
            found = self._at.read()
            if (found is None or self._may_follow(found)) and self._put(found, before):
                return
            if found is not None and found.held is not None:
                renewed = seen is not None and seen.etag != found.etag
                if (renewed and not self._may_follow(found)) or before - began >= wait.total_seconds():
                    raise LakeHeld(self._root, found.held)
            seen = seen or found
            self._sleep(min(1.0, self._ttl.total_seconds() / 10))

    def renew(self) -> None:
        """Extend the lease by its ttl. Raises LakeLeaseLost, LakeLeaseUnreadable.

        Another client of the same driver may renew it at the same moment; that is as good.
        """
        for _ in range(_BEATS_PER_TTL):
            before = self._elapsed()
            found = self._at.read()
            if found is None or found.held is None or found.held.driver != self._driver.id:
                self._lost = f"now held by {found.held}" if found and found.held else "its object is gone"
                raise LakeLeaseLost(self._root, self._lost)
            if self._put(found, before):
                return

    def check(self) -> None:
        """Raise LakeLeaseLost when another driver has the lease or may have it. Asks the bucket nothing.

        A process that was stopped has missed its own renewals, and is refused by its own clock.
        """
        if self._lost is not None:
            raise LakeLeaseLost(self._root, self._lost)
        silent = self._elapsed() - self._renewed_at
        if silent >= self._ttl.total_seconds():
            raise LakeLeaseLost(self._root, f"not renewed for {silent:.0f} s")

    def keep_alive(self) -> None:
        """Start the thread that renews it until `close`."""
        threading.Thread(target=self._beat, name=f"driver lease {self._root}", daemon=True).start()

    def close(self, *, ended: bool) -> None:
        """Stop renewing. ended: the driver is gone, so the next may begin at once.

        Otherwise the lease ends with its ttl, since other clients of the driver, or its late writes, may go on.
        """
        self._stop.set()
        if not ended or self._lost is not None:
            return
        try:
            found = self._at.read()
            if found is not None and found.held is not None and found.held.driver == self._driver.id:
                self._at.write(replace(found.held, driver="", beat=found.held.beat + 1), over=found)
        except LakeLeaseUnreadable as error:
            _LOG.warning("%s", error)

    def _may_follow(self, found: Found) -> bool:
        held = found.held
        if held is None:
            return found.age >= self._ttl
        if held.released or held.driver == self._driver.id or found.age >= timedelta(seconds=held.ttl_s):
            return True
        if held.remote:
            # One endpoint of one machine: its server before has ended, or this one could not listen there.
            return (held.remote, held.place) == (self._driver.remote, this_process().place)
        return is_gone(held.owner, held.place)

    def _put(self, found: Found | None, before: float) -> bool:
        me = this_process()
        beat = found.held.beat + 1 if found is not None and found.held is not None else 0
        ttl_s = self._ttl.total_seconds()
        held = Held(self._driver.id, self._driver.remote, str(me), me.place, ttl_s, beat)
        if not self._at.write(held, over=found):
            return False
        self._renewed_at = before
        return True

    def _beat(self) -> None:
        every = min(BEAT, self._ttl / _BEATS_PER_TTL).total_seconds()
        while not self._stop.wait(every):
            try:
                self.renew()
            except LakeLeaseLost as error:
                _LOG.warning("%s", error)
                return
            except LakeLeaseUnreadable as error:
                # `check` refuses once the ttl has passed.
                _LOG.warning("%s", error)


_held: dict[tuple[str, str], tuple[DriverLease, int]] = {}
"""By lake and driver, with the number of sessions that use it; of this process."""
_guard = threading.Lock()


def hold(
    root: str,
    driver: Callable[[], Driver],
    log_store: Callable[[], str | None],
    *,
    ttl: timedelta,
    wait: timedelta,
    ends: bool,
) -> Callable[[], None]:
    """Hold the lease on a lake for a session that writes; call what is returned once that is closed.

    Does nothing for lakes that need none. driver, log_store: asked only for a lake at s3a://. ends: the driver ends
    with the session. Raises LakeHeld, LakeLeaseUnreadable.
    """
    if not root.startswith(SCHEME) or log_store() in SAFE_LOG_STORES:
        return lambda: None
    mine = driver()
    key = root, mine.id
    with _guard:
        lease, users = _held.get(key, (None, 0))
        if lease is None:
            lease = DriverLease(root, mine, S3Object(root), ttl)
            lease.acquire(wait)
            lease.keep_alive()
        _held[key] = lease, users + 1

    def let_go() -> None:
        with _guard:
            lease, users = _held.pop(key)
            if users > 1:
                _held[key] = lease, users - 1
            else:
                lease.close(ended=ends)

    return let_go


def check(root: str) -> None:
    """Raise LakeLeaseLost when this process held the lease on the lake and may not write any more."""
    for (lake, _), (lease, _) in tuple(_held.items()):
        if lake == root:
            lease.check()

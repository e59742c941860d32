"""Lets one Spark driver at a time write to a lake at s3a://: a lease in the lake's own bucket.

Delta's log store for S3 keeps two commits apart within one driver only, and drivers may have different stores. The
lease is one object, written with conditional puts and renewed while a session of the driver is open. A Connect server
is one driver, however many clients it has.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from engagement_platform.engine.owner import is_gone, this_process
from engagement_platform.errors import PlatformError

_LOG = logging.getLogger(__name__)

NAME = "_driver_lease.json"
"""Below the lake's root; Delta and VACUUM of tables never look there."""

BEAT = timedelta(seconds=20)
"""How often the lease is renewed at least, so that a second driver soon sees that the first is alive."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps; only Linux has the first of the two."""


class LakeHeld(PlatformError):
    """Another Spark driver writes to the lake, or it cannot be ruled out."""


@dataclass(frozen=True)
class Lease:
    """The content of the lease. driver: differs between any two drivers; empty: given back. remote: its Connect
    endpoint, empty for a Spark in the client's process. owner, place: the client that renewed it last, as in
    `engine.owner`."""

    driver: str
    remote: str
    owner: str
    place: str
    ttl_s: float
    beat: int
    """Goes up with every renewal, so that each has other bytes and so another ETag."""

    def __str__(self) -> str:
        return f"{self.driver} ({self.remote or 'in its own process'}), last used by {self.owner}"


@dataclass(frozen=True)
class Found:
    """The object as it is in the bucket. lease: None for bytes that are no lease. age: by the object store's clock."""

    lease: Lease | None
    etag: str
    age: timedelta


class LeaseObject:
    """The object in the bucket. root: s3a://bucket/prefix. Raises LakeHeld where the bucket refuses."""

    def __init__(self, root: str) -> None:
        import boto3
        from botocore.config import Config

        self.root = root
        self._bucket, _, prefix = root.removeprefix("s3a://").partition("/")
        self._key = f"{prefix.strip('/')}/{NAME}".lstrip("/")
        limits = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3})
        self._client = boto3.client("s3", config=limits)

    def read(self) -> Found | None:
        """None where there is no such object."""
        answer = self._call("get_object", absent=("NoSuchKey", "404"))
        if answer is None:
            return None
        age = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]) - answer["LastModified"]
        try:
            lease = Lease(**json.loads(answer["Body"].read()))
        except (ValueError, TypeError):
            lease = None
        return Found(lease, answer["ETag"], age)

    def write(self, lease: Lease, *, over: Found | None) -> bool:
        """Put it if it still is what was read, or still is not there; returns whether it was."""
        condition = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over.etag}
        # 409: another conditional put of the same object is under way.
        refused = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchKey", "404")
        body = json.dumps(asdict(lease)).encode()
        return self._call("put_object", absent=refused, Body=body, **condition) is not None

    def _call(self, operation: str, *, absent: tuple[str, ...], **arguments: Any) -> Any:
        """The answer; None for one of the error codes in `absent`."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._client, operation)(Bucket=self._bucket, Key=self._key, **arguments)
        except (BotoCoreError, ClientError) as error:
            if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in absent:
                return None
            raise LakeHeld(
                f"The lease of {self.root} cannot be read or written: {error}. Nothing was written. The bucket has to "
                f"exist, and the credentials have to allow GetObject and PutObject on {self.root}/{NAME}."
            ) from error


class DriverLease:
    """The lease of one driver on one lake. Call `acquire` first, then `renew` in time, or use `held`."""

    def __init__(
        self,
        at: LeaseObject,
        driver: str,
        remote: str,
        ttl: timedelta,
        *,
        elapsed: Callable[[], float] = lambda: time.clock_gettime(_CLOCK),
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._at, self._driver, self._remote, self._ttl = at, driver, remote, ttl
        self._elapsed, self._sleep = elapsed, sleep
        self._renewed_at = float("-inf")
        self._lost: str | None = None
        self._stop = threading.Event()

    def acquire(self, wait: timedelta) -> None:
        """Take the lease where it is free, this driver's, or its holder is certainly gone. Otherwise watch the holder
        for at most `wait`. Raises LakeHeld then, or as soon as the holder is seen to renew it."""
        began, first = self._elapsed(), None
        while True:
            before = self._elapsed()
            found = self._at.read()
            free = found is None or self._is_free(found)
            if free and self._put(found, before):
                return
            first = first or found
            alive = found is not None and first is not None and found.etag != first.etag and not free
            if found is not None and (alive or before - began >= wait.total_seconds()):
                raise LakeHeld(
                    f"Another Spark driver writes to {self._at.root}: {found.lease}. Two drivers that commit to one "
                    "table on S3 at one moment lose a commit silently, so nothing was written. Use the same Spark "
                    "Connect server (ENGAGEMENT_PLATFORM_SPARK__REMOTE), or end that driver and run again "
                    "stores.lake_lease_ttl after its last use."
                )
            self._sleep(min(1.0, self._ttl.total_seconds() / 10))

    def renew(self) -> None:
        """Extend the lease by its ttl. Raises LakeHeld when another driver has it or the bucket does not answer."""
        while True:
            before = self._elapsed()
            found = self._at.read()
            if found is None or found.lease is None or found.lease.driver != self._driver:
                self._lost = f"it is held by {found.lease}" if found and found.lease else "its object is gone"
                self.check()
            # Another client of the same driver may renew it at the same moment; then its put counts.
            if self._put(found, before):
                return

    def check(self) -> None:
        """Raise LakeHeld when another driver has the lease or may have it, by this process's own clock."""
        silent = self._elapsed() - self._renewed_at
        if self._lost is None and silent >= self._ttl.total_seconds():
            self._lost = f"it was not renewed for {silent:.0f} s"
        if self._lost is not None:
            raise LakeHeld(
                f"This Spark driver lost its lease on {self._at.root}: {self._lost}. Nothing is written from here on; "
                "run again, and the next run finishes the batch."
            )

    def close(self, *, ended: bool) -> None:
        """Stop renewing. ended: the driver is gone and gives the lease back; otherwise other clients of the driver, or
        its late writes, may go on, and the lease ends with its ttl."""
        self._stop.set()
        if not ended or self._lost is not None:
            return
        try:
            found = self._at.read()
            if found is not None and found.lease is not None and found.lease.driver == self._driver:
                self._at.write(replace(found.lease, driver="", beat=found.lease.beat + 1), over=found)
        except LakeHeld as error:
            _LOG.warning("%s", error)

    def keep_renewing(self) -> None:
        """Renew it until `close`, or until it is lost."""
        every = min(BEAT, self._ttl / 3).total_seconds()
        while self._lost is None and not self._stop.wait(every):
            try:
                self.renew()
            except LakeHeld as error:
                _LOG.warning("%s", error)

    def _is_free(self, found: Found) -> bool:
        lease = found.lease
        if lease is None:
            return found.age >= self._ttl
        if lease.driver in ("", self._driver) or found.age >= timedelta(seconds=lease.ttl_s):
            return True
        if lease.remote:
            # A server anew at one endpoint of one machine: the former one has ended.
            return (lease.remote, lease.place) == (self._remote, this_process().place)
        return is_gone(lease.owner, lease.place)

    def _put(self, found: Found | None, before: float) -> bool:
        me, beat = this_process(), found.lease.beat + 1 if found is not None and found.lease is not None else 0
        lease = Lease(self._driver, self._remote, str(me), me.place, self._ttl.total_seconds(), beat)
        if not self._at.write(lease, over=found):
            return False
        self._renewed_at = before
        return True


_held = set[tuple[str, DriverLease]]()
"""By lake; of all sessions of this process."""


@contextmanager
def held(root: str, driver: str, remote: str, *, ttl: timedelta, wait: timedelta, ends: bool) -> Iterator[None]:
    """Hold the lease on a lake for a session that writes. ends: the driver ends with the session.

    Raises LakeHeld.
    """
    lease = DriverLease(LeaseObject(root), driver, remote, ttl)
    lease.acquire(wait)
    threading.Thread(target=lease.keep_renewing, name=f"driver lease {root}", daemon=True).start()
    _held.add((root, lease))
    try:
        yield
    finally:
        _held.remove((root, lease))
        lease.close(ended=ends)


def check(root: str) -> None:
    """Raise LakeHeld when this process held the lease on the lake and may not write any more."""
    for lake, lease in tuple(_held):
        if lake == root:
            lease.check()

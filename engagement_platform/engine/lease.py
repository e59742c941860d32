"""One writer at a time: named leases in the stores' database, with heartbeat, fencing number and a waiting line."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from sqlalchemy import Connection, Engine, Row, func, select

from engagement_platform.engine.database import StoresUnavailable, reading, upsert, writing
from engagement_platform.engine.owner import is_gone, this_process
from engagement_platform.engine.schema import LEASE, LEASE_WAITER
from engagement_platform.errors import PlatformError

_log = logging.getLogger(__name__)

# How often a waiting run looks. Each look is one small write, and a freed lease stays idle for half of this.
POLL = timedelta(seconds=0.5)

# Leaves 2,147,483,648 acquisitions of one lease in 63 bits, one a second for 68 years; two draws agree by chance once
# in 4 billion restores.
_DRAWN_BITS = 32

_AFTER = ", after "
"""Between the purpose of a holder and those of the silent ones whose lease it took."""


@dataclass(frozen=True)
class Fence:
    """Proof of holding a lease, checked before each write: a later holder has a greater number."""

    name: str
    number: int

    @property
    def turn(self) -> int:
        """How many have held the lease, this holder included: what people read of the number."""
        return _turn_of(self.number)


@dataclass(frozen=True)
class Holder:
    """Who blocks: the holder of a lease, or (waiting) who is before us in the line of a free one."""

    name: str
    owner: str
    """host:pid:start time of the process."""
    purpose: str
    since: datetime
    waiting: bool = False

    @property
    def purposes(self) -> tuple[str, ...]:
        """Its own purpose, and those of holders before it that were silent and that nobody has released since."""
        return tuple(self.purpose.split(_AFTER))

    def __str__(self) -> str:
        verb = "waits for" if self.waiting else "holds"
        return f"{self.owner} ({self.purpose}) {verb} {self.name} since {self.since:%Y-%m-%d %H:%M:%S} UTC"


class LeaseUnavailable(PlatformError):
    """Another process kept the lease for longer than `wait`."""

    def __init__(self, holder: Holder, waited: timedelta) -> None:
        self.holder, self.waited = holder, waited
        super().__init__(
            f"{holder}; waited {waited.total_seconds():.0f} s for it. Nothing was changed. Let that run end, or allow "
            "a longer wait with ENGAGEMENT_PLATFORM_STORES__LEASE_WAIT, and run again"
        )


class LeaseLost(PlatformError):
    """The lease is no longer ours; whatever we would write now could meet another writer's work."""

    def __init__(self, fence: Fence, cause: str) -> None:
        self.fence, self.cause = fence, cause
        super().__init__(
            f"lost the lease {fence.name} (number {fence.turn}): {cause}. This run stops before its next write; "
            "what it committed is recorded, and the next run finishes the batch"
        )


def lock_name(lease: str) -> str:
    """The name under which `database.writing` is alone with a lease."""
    return f"lease/{lease}"


def verify(connection: Connection, fence: Fence) -> None:
    """Raise LeaseLost unless the lease still has this number.

    For writers: inside the transaction of the write, which holds `lock_name(fence.name)`, so that no takeover can
    come between the look and the commit.
    """
    row = connection.execute(select(LEASE).where(LEASE.c.name == fence.name)).one_or_none()
    if row is None:
        raise LeaseLost(fence, "the stores do not know it")
    if row.fencing != fence.number:
        now_held = f"{row.owner} ({row.purpose})" if row.owner else "nobody, it was released since"
        raise LeaseLost(fence, f"it went on to number {_turn_of(row.fencing)}, held by {now_held}")
    if row.owner is None:
        raise LeaseLost(fence, "it was released")


class Lease:
    """A lease that is held; a context manager that releases it. A daemon thread keeps it alive every ttl/3."""

    def __init__(self, store: LeaseStore, fence: Fence, beat_at: float, replaced: Holder | None = None) -> None:
        self.fence = fence
        self.replaced = replaced
        """The holder before, where it never released the lease: it died, or is silent and may still be writing."""
        self._store = store
        self._beat_at = beat_at
        self._lost: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name=f"lease {fence.name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Return when the lease is ours, else raise LeaseLost.

        A database that cannot be reached is forgiven until the last heartbeat is older than the ttl: until then
        nobody can have taken the lease over.
        """
        if self._lost is not None:
            raise LeaseLost(self.fence, self._lost)
        try:
            with reading(self._store.engine) as connection:
                verify(connection, self.fence)
        except LeaseLost as error:
            self._lost = error.cause
            raise
        except StoresUnavailable as error:
            silent = self._store.elapsed() - self._beat_at
            if silent >= self._store.ttl.total_seconds():
                raise LeaseLost(self.fence, f"no heartbeat for {silent:.0f} s, {error.cause}") from error

    def heartbeat(self) -> None:
        """Extend the lease by its ttl. The thread does it; call it before work that may starve the thread.

        Raises LeaseLost, StoresUnavailable.
        """
        before = self._store.elapsed()
        try:
            with writing(self._store.engine, lock_name(self.fence.name)) as connection:
                verify(connection, self.fence)
                now = self._store.now(connection)
                beat = {"heartbeat_ts": now, "expires_ts": now + self._store.ttl}
                connection.execute(LEASE.update().where(LEASE.c.name == self.fence.name).values(**beat))
        except LeaseLost as error:
            self._lost = error.cause
            raise
        self._beat_at = before

    def release(self) -> None:
        """Give the lease back; doing it twice, or after it was lost, changes nothing.

        Never raises for an unreachable database: the lease then ends with its ttl, or with this process.
        """
        if self._lost is None:
            self._lost = "it was released"
        elif self._stop.is_set():
            return
        self._stop.set()
        try:
            with writing(self._store.engine, lock_name(self.fence.name)) as connection:
                connection.execute(
                    LEASE.update()
                    .where(LEASE.c.name == self.fence.name, LEASE.c.fencing == self.fence.number)
                    .values(owner=None, place=None, purpose=None, acquired_ts=None, heartbeat_ts=None, expires_ts=None)
                )
        except StoresUnavailable as error:
            _log.warning("lease %s could not be released (%s); it ends by itself", self.fence.name, error.cause)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def leave(self) -> None:
        """Stop keeping the lease alive without releasing it: the next holder sees that it was never released."""
        self._lost = self._lost or "it was left to end by itself"
        self._stop.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _keep_alive(self) -> None:
        every = self._store.ttl.total_seconds() / 3
        pause = every
        while not self._stop.wait(pause):
            try:
                self.heartbeat()
                pause = every
            except LeaseLost as error:
                if not self._stop.is_set():
                    _log.warning("%s", error)
                return
            except StoresUnavailable as error:
                pause = min(every, 1.0)
                _log.warning("no heartbeat for lease %s: %s", self.fence.name, error.cause)


class LeaseStore:
    """The leases of one database.

    ttl: a lease without a heartbeat for this long may be taken over.
    clock: where "now" comes from; by default the PostgreSQL server's clock, which machines with different clocks
    share, and this machine's for SQLite. sleep: how a waiting run passes its time, in seconds.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        ttl: timedelta = timedelta(seconds=60),
        clock: Callable[[], datetime] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.engine, self.ttl, self._clock, self._sleep = engine, ttl, clock, sleep

    def acquire(
        self,
        name: str,
        *,
        purpose: str,
        wait: timedelta = timedelta(0),
        on_wait: Callable[[Holder], None] | None = None,
        above: int = 0,
    ) -> Lease:
        """Hold the lease `name`, first come first served.

        purpose: what for, shown to others. wait: how long to wait for others; zero tries once.
        on_wait: called with each holder that it waits for. above: the fence gets a greater number than this, which
        something beside the stores has seen.
        Raises LeaseUnavailable after `wait`, StoresUnavailable.
        """
        ticket: int | None = None
        began: datetime | None = None
        waits_for: Holder | None = None
        try:
            while True:
                beat_at = self.elapsed()
                with writing(self.engine, lock_name(name)) as connection:
                    now = self.now(connection)
                    row = connection.execute(select(LEASE).where(LEASE.c.name == name)).one_or_none()
                    free = row is None or self._is_free(row, now)
                    before_us = self._first_waiter(connection, name, ticket, now)
                    if free and before_us is None:
                        fence, replaced = self._take(connection, name, purpose, row, now, above)
                        connection.execute(LEASE_WAITER.delete().where(LEASE_WAITER.c.ticket == ticket))
                    elif wait > timedelta(0):
                        ticket = _keep_place(connection, ticket, name, purpose, now)
                if free and before_us is None:
                    ticket = None
                    return Lease(self, fence, beat_at, replaced)
                other = _holder(row) if row is not None and not free else before_us
                assert other is not None, "a lease that is not ours has a holder or a line"
                began = began or now
                if now - began >= wait:
                    raise LeaseUnavailable(other, now - began)
                if on_wait is not None and other != waits_for:
                    on_wait(other)
                    waits_for = other
                self._sleep(min(POLL, self.ttl / 10, wait - (now - began)).total_seconds())
        finally:
            if ticket is not None:
                self._leave(name, ticket)

    def holder(self, name: str) -> Holder | None:
        """Who holds a lease and is alive, as far as the stores can tell; changes nothing."""
        with reading(self.engine) as connection:
            row = connection.execute(select(LEASE).where(LEASE.c.name == name)).one_or_none()
            return None if row is None or self._is_free(row, self.now(connection)) else _holder(row)

    def holders(self) -> list[Holder]:
        """Every lease that is held, by name; a holder that died and has not been replaced yet is among them."""
        with reading(self.engine) as connection:
            rows = connection.execute(select(LEASE).where(LEASE.c.owner.is_not(None)).order_by(LEASE.c.name))
            return [_holder(row) for row in rows]

    def now(self, connection: Connection) -> datetime:
        """The time that decides about expiry. UTC."""
        if self._clock is not None:
            return self._clock()
        if connection.dialect.name == "postgresql":
            return connection.execute(select(func.clock_timestamp())).scalar_one().astimezone(UTC)  # type: ignore[no-any-return]
        return datetime.now(UTC)

    def elapsed(self) -> float:
        """Seconds from some fixed moment, for measuring how long ago a heartbeat was."""
        if self._clock is not None:
            return self._clock().timestamp()
        # CLOCK_BOOTTIME goes on while a laptop sleeps, as the lease does; not every system has it.
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

    def _take(
        self,
        connection: Connection,
        name: str,
        purpose: str,
        row: Row[tuple[object, ...]] | None,
        now: datetime,
        above: int,
    ) -> tuple[Fence, Holder | None]:
        """Write the lease down as ours; the fence, and who held it before and never released it."""
        me, fencing = this_process(), _next_number(above if row is None else max(row.fencing, above))
        replaced = None if row is None or row.owner is None else _holder(row)
        # Kept until the lease is released: a later successor, too, has to know whose writes may be under way.
        purposes = dict.fromkeys((purpose, *(replaced.purposes if replaced is not None else ())))
        values = {
            "name": name, "owner": str(me), "place": me.place, "fencing": fencing, "purpose": _AFTER.join(purposes),
            "acquired_ts": now, "heartbeat_ts": now, "expires_ts": now + self.ttl,
        }  # fmt: skip
        upsert(connection, LEASE, values, "name")
        return Fence(name, fencing), replaced

    def _is_free(self, row: Row[tuple[object, ...]], now: datetime) -> bool:
        return row.owner is None or bool(row.expires_ts <= now) or is_gone(row.owner, row.place)

    def _first_waiter(self, connection: Connection, name: str, ticket: int | None, now: datetime) -> Holder | None:
        """Who is first in the line, when that is not us. Waiters who died leave the line by this."""
        waiters = select(LEASE_WAITER).where(LEASE_WAITER.c.name == name).order_by(LEASE_WAITER.c.ticket)
        for waiter in connection.execute(waiters).all():
            if waiter.ticket == ticket:
                return None
            # A living waiter looks every POLL, so a third of the ttl is many missed looks.
            if waiter.heartbeat_ts > now - self.ttl / 3 and not is_gone(waiter.owner, waiter.place):
                return Holder(name, waiter.owner, waiter.purpose, waiter.since_ts, waiting=True)
            connection.execute(LEASE_WAITER.delete().where(LEASE_WAITER.c.ticket == waiter.ticket))
        return None

    def _leave(self, name: str, ticket: int) -> None:
        try:
            with writing(self.engine, lock_name(name)) as connection:
                connection.execute(LEASE_WAITER.delete().where(LEASE_WAITER.c.ticket == ticket))
        except StoresUnavailable as error:
            _log.warning("could not leave the line for lease %s (%s); the place ends by itself", name, error.cause)


def _keep_place(connection: Connection, ticket: int | None, name: str, purpose: str, now: datetime) -> int:
    """Our place in the line, still or newly: others may have struck us off while this machine slept."""
    still = LEASE_WAITER.update().where(LEASE_WAITER.c.ticket == ticket).values(heartbeat_ts=now)
    if ticket is not None and connection.execute(still).rowcount:
        return ticket
    me = this_process()
    place = {"name": name, "owner": str(me), "place": me.place, "purpose": purpose}
    inserted = connection.execute(LEASE_WAITER.insert().values(**place, since_ts=now, heartbeat_ts=now))
    return int(inserted.inserted_primary_key[0])  # type: ignore[index]


def _turn_of(number: int) -> int:
    return number >> _DRAWN_BITS


def _next_number(last: int) -> int:
    """A fencing number that is greater than the last one and was never given out, whatever the stores have lost.

    Counted in its upper half and drawn in its lower: stores from a backup, or new ones, count from where they are,
    and a holder of before must not find its own number there again.
    """
    return (_turn_of(last) + 1 << _DRAWN_BITS) | secrets.randbits(_DRAWN_BITS)


def _holder(row: Row[tuple[object, ...]]) -> Holder:
    return Holder(row.name, row.owner, row.purpose, row.acquired_ts)

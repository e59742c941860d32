"""A run of OPTIMIZE: plans slices over tables, and does them one by one until its budget is spent.

Ingestion and mutations come first: a mutable table is touched only under its lease, which is given back after each
slice and not asked for while anybody else stands in line. What is left, the next run plans anew.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from engagement_platform.engine.database import StoresUnavailable
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import Holder, LeaseUnavailable
from engagement_platform.engine.model import Manifest
from engagement_platform.engine.unfinished_batches import blocking_batches
from engagement_platform.errors import PlatformError
from engagement_platform.lake.layout import LAYOUT_HISTORY
from engagement_platform.layout import history, plan
from engagement_platform.layout.doctor import Target, targets
from engagement_platform.layout.files import LogNotReadable
from engagement_platform.layout.finding import readable
from engagement_platform.layout.optimize import Done, Tools, optimize
from engagement_platform.layout.plan import Left, Limits, Slice
from engagement_platform.layout.survey import Survey, of_one, survey
from engagement_platform.settings import Settings

PURPOSE = "optimize"

_ENGINES = ("pyspark", "py4j", "grpc", "deltalake", "_internal")
"""Whose errors are about one table. delta-rs, which reads logs, says of its own that they come from `_internal`."""

LOOK_S = 0.25
"""How often a waiting slice looks whether the table is free: between two batches of a busy job it is for a moment."""

ORGANIZATION = "organization_id"

_OWN_FILES = 10

Outcome = Done | Left


class NotByOrganization(PlatformError):
    """One organization was asked for, of a table that is not partitioned by it."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"{table} is not partitioned by {ORGANIZATION}, so no part of it belongs to one organization. Nothing was "
            "changed. Optimize it as a whole, without naming an organization."
        )


@dataclass(frozen=True)
class Asked:
    """What a run is to look after. table: one by name or path; None: all of the lake."""

    table: str | None = None
    organizations: tuple[str, ...] = ()
    second_round: bool = False
    """A larger target, over everything below it."""
    budget: timedelta | None = None
    """Default: `maintenance.budget`."""


@dataclass(frozen=True)
class Plan:
    """What a run would do, in order, and what does not fit into its budget."""

    chosen: tuple[Slice, ...]
    left: tuple[Left, ...]
    surveys: Mapping[str, Survey]
    """By name of the table."""
    unread: tuple[str, ...] = ()
    """Why tables could not be looked at."""


def planned(settings: Settings, asked: Asked) -> Plan:
    """Look at the tables and choose. Changes nothing; reads logs, no data, in this process.

    Raises NoSuchTable, NotADeltaTable, NotByOrganization, and LogNotReadable for a table that was named.
    """
    found, surveys, unread = list[Slice](), dict[str, Survey](), list[str]()
    limits, today = _limits(settings, second_round=asked.second_round), datetime.now(UTC).date()
    for table in targets(settings, asked.table):
        try:
            seen = survey(settings, table, limits.target_file_bytes)
        except LogNotReadable as error:
            if asked.table is not None:
                raise
            unread.append(str(error))
            continue
        surveys[table.name] = seen
        done = history.recalled(settings, table.name, today)
        for part in _parts(seen, table, asked):
            gaining = plan.slices(part, limits, history.last_of(done))
            found += [one for one in gaining if table.name != LAYOUT_HISTORY.name or _enough(one)]
    budget = settings.maintenance.budget if asked.budget is None else asked.budget
    chosen, left = plan.within(plan.ordered(one for one in found if not one.too_large), budget.total_seconds())
    left += [Left(one, _told_too_large(one, limits)) for one in plan.ordered(found) if one.too_large]
    return Plan(tuple(chosen), tuple(left), surveys, tuple(unread))


def _told_too_large(one: Slice, limits: Limits) -> str:
    return (
        f"it rewrites {readable(one.gain.bytes_to_rewrite or 0)} at once, and its writers would wait: raise "
        f"maintenance.max_slice_bytes ({readable(limits.max_slice_bytes)}) for a run while none is at work, or use "
        "finer partitions"
    )


def _enough(one: Slice) -> bool:
    """Every run adds a file or two to the history: to merge those would make the next run find something, for ever."""
    return (one.gain.files_before or 0) >= _OWN_FILES


def _parts(seen: Survey, table: Target, asked: Asked) -> Iterable[Survey]:
    if not asked.organizations:
        return [seen]
    partitioned = any(value.column == ORGANIZATION for where in seen.where.values() for value in where)
    if not partitioned:
        if asked.table is not None and seen.where:
            raise NotByOrganization(table.name)
        return []
    return [of_one(seen, ORGANIZATION, organization) for organization in dict.fromkeys(asked.organizations)]


def _limits(settings: Settings, *, second_round: bool) -> Limits:
    upkeep = settings.maintenance
    return Limits(
        target_file_bytes=upkeep.second_round_file_bytes if second_round else upkeep.target_file_bytes,
        max_overlap_depth=settings.health.max_overlap_depth,
        max_rewrite_share=upkeep.max_rewrite_share,
        max_slice_bytes=upkeep.max_slice_bytes,
    )


@dataclass(frozen=True)
class Told:
    """Who is told what while a run goes on."""

    on_slice: Callable[[Slice], None] = lambda _slice: None
    """Before a slice is done."""
    on_outcome: Callable[[Outcome], None] = lambda _outcome: None
    on_wait: Callable[[Slice, Holder], None] = lambda _slice, _holder: None


@dataclass
class Run:
    """One run over a plan. Use once."""

    settings: Settings
    stores: Stores
    tools: Tools
    told: Told = field(default_factory=Told)
    _busy: dict[str, tuple[float, Holder]] = field(default_factory=dict)
    """Tables whose lease was not free: since when, and who is in the way."""
    _idle: bool = False
    """Whether all that is left waits for a lease."""

    def do(self, chosen: Plan, budget: timedelta | None = None) -> Iterator[Outcome]:
        """Each slice of the plan, done or left, and what did not fit into it; then what was done is in the history.

        A slice of a table that is being written waits, and those after it come first.
        Raises StoresUnavailable, which stops all maintenance; what was done until then is in the history too.
        Other errors come as slices that were left and `failed`.
        """
        if chosen.chosen:
            # Before any lease is taken: writers need not wait for a session to open.
            self.tools.spark()
        limit = self.settings.maintenance.budget if budget is None else budget
        ends = time.monotonic() + limit.total_seconds()
        done, queue, passed = list[Done](), deque(chosen.chosen), 0
        try:
            while queue:
                one = queue.popleft()
                over = time.monotonic() >= ends and one is not chosen.chosen[0]
                outcome = self._late(one) if over else self._one(one, chosen.surveys[one.place.name], ends)
                if isinstance(outcome, Holder):
                    queue.append(one)
                    passed += 1
                    if passed >= len(queue):
                        self._idle = True
                        self.tools.sleep(LOOK_S)
                    continue
                passed, self._idle = 0, False
                if isinstance(outcome, Done):
                    done.append(outcome)
                self.told.on_outcome(outcome)
                yield outcome
            yield from chosen.left
        finally:
            self._remember(done)

    def _late(self, one: Slice) -> Left:
        busy = None if one.append_only else self._busy.get(one.place.name)
        if busy is None:
            return Left(one, "the time of this run is over; the next one goes on")
        return Left(one, f"{busy[1]}, and no turn came within the time of this run")

    def _one(self, one: Slice, seen: Survey, ends: float) -> Outcome | Holder:
        """Do a slice under the lease that it needs; whoever is in the way, when it is to be tried again."""
        try:
            with self._turn(one, ends) as guard:
                if (begun := self._half_done(one)) is not None:
                    return Left(one, f"{begun} is unfinished and comes first")
                self.told.on_slice(one)
                return optimize(one, seen, self.tools, guard)
        except LeaseUnavailable as error:
            return self._in_the_way(one, error.holder, ends)
        except StoresUnavailable:
            raise
        except Exception as error:
            if not isinstance(error, PlatformError) and not type(error).__module__.startswith(_ENGINES):
                raise
            # A table that cannot be rewritten must not keep the others from being looked after; it fails the run.
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            return Left(one, said[:500], failed=True)

    def _half_done(self, one: Slice) -> Manifest | None:
        """A batch that stopped in the middle of writing a mutable table: while we hold the lease, nobody is at it.

        Its replay looks for its own commits among the newest ones, and many of ours in between would hide them.
        """
        if one.append_only:
            return None
        begun = blocking_batches("", (one.place.name,), self.stores.checkpoints.unfinished())
        return begun[0].manifest if begun else None

    def _in_the_way(self, one: Slice, holder: Holder, ends: float) -> Left | Holder:
        now = time.monotonic()
        since, before = self._busy.get(one.place.name, (now, None))
        self._busy[one.place.name] = (since, holder)
        if now >= ends:
            return self._late(one)
        if holder != before:
            self.told.on_wait(one, holder)
        return holder

    def _turn(self, one: Slice, ends: float) -> AbstractContextManager[Callable[[], None]]:
        """The check of the table's lease; none where rows are only appended: OPTIMIZE and appends do not meet.

        The lease is taken when it is free and nobody is in line. After `patience` without such a moment, and when no
        other table can be worked on, this stands in line itself: then whoever comes later waits for one slice.
        """
        return nullcontext(lambda: None) if one.append_only else self._lease(one, ends)

    @contextmanager
    def _lease(self, one: Slice, ends: float) -> Iterator[Callable[[], None]]:
        now = time.monotonic()
        since, _ = self._busy.get(one.place.name, (now, None))
        stands = self._idle and now - since >= self.settings.maintenance.patience.total_seconds()
        wait = timedelta(seconds=max(0.0, ends - now)) if stands else timedelta(0)
        with self.stores.leases.acquire(f"table/{one.place.name}", purpose=PURPOSE, wait=wait) as lease:
            self._busy.pop(one.place.name, None)
            yield lease.check

    def _remember(self, done: Sequence[Done]) -> None:
        by_table = dict[str, list[Done]]()
        for one in done:
            by_table.setdefault(one.slice.place.name, []).append(one)
        for name, some in by_table.items():
            place = some[0].slice.place
            now = survey(self.settings, Target(name, place.uri), some[0].slice.target_file_bytes)
            history.remember(self.settings, some, now, self.tools.spark())

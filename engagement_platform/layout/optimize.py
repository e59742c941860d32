"""A run of OPTIMIZE: plans slices over tables, and rewrites them one by one until its budget is spent.

Ingestion and mutations come first: a mutable table is touched only under its lease, which is released after each slice.
A table that somebody writes is tried again once all others are done; then the run waits in the line of its lease. What
is left, the next run plans anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc

from engagement_platform.engine.database import StoresUnavailable
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import Holder, LeaseUnavailable
from engagement_platform.engine.unfinished_batches import blocking_batches
from engagement_platform.errors import PlatformError
from engagement_platform.lake.layout import LAYOUT_HISTORY
from engagement_platform.lake.optimize import OptimizeConflict, Place, Rewrite, Rewritten, SparkGetter, rewrite
from engagement_platform.layout import history, plan, remedies
from engagement_platform.layout.files import LogNotReadable
from engagement_platform.layout.history import Outcome as Row
from engagement_platform.layout.plan import Left, Limits, Slice
from engagement_platform.layout.remedies import readable
from engagement_platform.layout.survey import Survey, Target, fingerprint, in_lake, survey, targets
from engagement_platform.settings import Settings

ORGANIZATION = "organization_id"

_ENGINES = ("pyspark", "py4j", "grpc", "deltalake", "_internal")
"""Whose errors are about one table. delta-rs, which reads logs, says of its own that they come from `_internal`."""
_OWN_FILES = 10


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
    budget: timedelta
    unread: tuple[str, ...] = ()
    """Why tables could not be looked at."""


def planned(settings: Settings, asked: Asked) -> Plan:
    """Look at the tables and choose. Changes nothing; reads logs, no data, in this process.

    Raises NoSuchTable, NotADeltaTable, NotByOrganization, and LogNotReadable for a table that was named.
    """
    found, surveys, unread = list[Slice](), dict[str, Survey](), list[str]()
    limits = _limits(settings, second_round=asked.second_round)
    for table in targets(settings, asked.table):
        try:
            seen = survey(settings, table, target_file_bytes=limits.target_file_bytes)
        except LogNotReadable as error:
            if asked.table is not None:
                raise
            unread.append(str(error))
            continue
        surveys[table.name] = seen
        last, bounded = history.last_rewrites(settings, table.name), in_lake(settings, table)
        # Every run adds a file or two to the history: to merge those would make the next run find something, for ever.
        least = _OWN_FILES if table.name == LAYOUT_HISTORY.name else 0
        for part in _parts(seen, asked):
            gaining = plan.slices(part, limits, last, bounded=bounded)
            found += [one for one in gaining if (one.gain.files_before or 0) >= least]
    budget = settings.maintenance.budget if asked.budget is None else asked.budget
    fitting = [one for one in found if not one.too_large]
    chosen, left = plan.within(plan.ordered(fitting), budget.total_seconds())
    left += [Left(one, _too_large(one, limits)) for one in plan.ordered(found) if one.too_large]
    return Plan(tuple(chosen), tuple(left), surveys, budget, tuple(unread))


def _too_large(one: Slice, limits: Limits) -> str:
    return (
        f"it rewrites {readable(one.gain.bytes_to_rewrite or 0)} at once, and its writers would wait: raise "
        f"maintenance.max_slice_bytes ({readable(limits.max_slice_bytes)}) for a run while none is at work, or use "
        "finer partitions"
    )


def _parts(seen: Survey, asked: Asked) -> list[Survey]:
    if not asked.organizations:
        return [seen]
    if ORGANIZATION in seen.shape.partitioned_by:
        return [seen.only(ORGANIZATION, organization) for organization in dict.fromkeys(asked.organizations)]
    if asked.table is not None:
        raise NotByOrganization(seen.target.name)
    return []


def _limits(settings: Settings, *, second_round: bool) -> Limits:
    maintenance = settings.maintenance
    return Limits(
        target_file_bytes=maintenance.second_round_file_bytes if second_round else maintenance.target_file_bytes,
        max_overlap_depth=settings.health.max_overlap_depth,
        max_rewrite_share=maintenance.max_rewrite_share,
        max_slice_bytes=maintenance.max_slice_bytes,
    )


def place_of(settings: Settings, table: Target) -> Place:
    """Where a table is, and the folder in which its writers take turns: the lake's, or the table's own."""
    return Place(table.name, table.uri, settings.lake if in_lake(settings, table) else table.uri)


@dataclass(frozen=True)
class Done:
    """A slice that was rewritten, and what came of it."""

    slice: Slice
    rewritten: Rewritten
    files_before: int
    files_after: int
    fingerprint: str
    """Of the files that the partition has now, if nobody else has written to it since it was planned."""
    seconds: float
    attempts: int
    started_ts: datetime

    def figures(self) -> dict[str, object]:
        """What was written and replaced, by the columns of the history."""
        return {
            "version": self.rewritten.version,
            "files_before": self.files_before,
            "files_after": self.files_after,
            "files_removed": len(self.rewritten.removed),
            "files_added": len(self.rewritten.added),
            "bytes_removed": sum(self.rewritten.removed.values()),
            "bytes_added": sum(self.rewritten.added.values()),
            "attempts": self.attempts,
        }

    def as_json(self) -> dict[str, object]:
        """Prediction and outcome side by side."""
        return {**self.slice.as_json(), **self.figures(), "took_seconds": round(self.seconds, 3)}


Outcome = Done | Left


@dataclass(frozen=True)
class Callbacks:
    """Called while a run goes on."""

    on_slice: Callable[[Slice], None] = lambda _slice: None
    """Before a slice is done."""
    on_outcome: Callable[[Outcome], None] = lambda _outcome: None
    on_wait: Callable[[Slice, Holder], None] = lambda _slice, _holder: None
    """When a table's lease is held, once for each table."""


@dataclass(frozen=True)
class Run:
    """Rewrites the slices of a plan. spark: opens Spark when it is first needed."""

    settings: Settings
    stores: Stores
    spark: SparkGetter
    callbacks: Callbacks = field(default_factory=Callbacks)
    sleep: Callable[[float], None] = time.sleep

    def do(self, chosen: Plan) -> Iterator[Outcome]:
        """Each slice of the plan, done or left, and what did not fit into it; then what was done is in the history.

        Raises StoresUnavailable, which stops all maintenance; what was done until then is in the history too.
        Other errors come as slices that were left and `failed`.
        """
        if chosen.chosen:
            # Before any lease is taken: writers need not wait for a session to open.
            self.spark()
        ends = time.monotonic() + chosen.budget.total_seconds()
        done = dict[str, list[Done]]()
        try:
            for outcome in self._outcomes(chosen, ends):
                if isinstance(outcome, Done):
                    done.setdefault(outcome.slice.table.name, []).append(outcome)
                self.callbacks.on_outcome(outcome)
                yield outcome
            yield from chosen.left
        finally:
            for some in done.values():
                self._remember(some)

    def _outcomes(self, chosen: Plan, ends: float) -> Iterator[Outcome]:
        waiting = dict[str, list[Slice]]()
        for number, one in enumerate(chosen.chosen):
            if number and time.monotonic() >= ends:
                yield Left(one, "the time of this run is over; the next one goes on")
                continue
            outcome = self._one(one, chosen, timedelta(0))
            if isinstance(outcome, Holder):
                if one.table.name not in waiting:
                    self.callbacks.on_wait(one, outcome)
                waiting.setdefault(one.table.name, []).append(one)
            else:
                yield outcome
        for one in (one for some in waiting.values() for one in some):
            outcome = self._one(one, chosen, timedelta(seconds=max(0.0, ends - time.monotonic())))
            if isinstance(outcome, Holder):
                outcome = Left(one, f"{outcome}, and no turn came within the time of this run")
            yield outcome

    def _one(self, one: Slice, chosen: Plan, wait: timedelta) -> Outcome | Holder:
        """Do a slice under the lease that it needs; who holds the lease, where that is not to be had."""
        try:
            with self._lease(one, wait) as check:
                # While we hold the lease nobody is at an unfinished batch of the table. Its replay looks for its own
                # commits among the newest ones, and many of ours in between would hide them.
                unfinished = () if one.append_only else self.stores.checkpoints.unfinished()
                if begun := blocking_batches("", (one.table.name,), unfinished):
                    return Left(one, f"{begun[0].manifest} is unfinished and comes first")
                self.callbacks.on_slice(one)
                return self._rewrite(one, chosen.surveys[one.table.name], check)
        except LeaseUnavailable as error:
            return error.holder
        except StoresUnavailable:
            raise
        except Exception as error:
            if not isinstance(error, PlatformError) and not type(error).__module__.startswith(_ENGINES):
                raise
            # A table that cannot be rewritten must not keep the others from being looked after; it fails the run.
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            return Left(one, said[:500], failed=True)

    def _lease(self, one: Slice, wait: timedelta) -> AbstractContextManager[Callable[[], None]]:
        """The check of the table's lease; none where rows are only appended: OPTIMIZE and appends do not meet."""
        return nullcontext(lambda: None) if one.append_only else self._table_lease(one.table.name, wait)

    @contextmanager
    def _table_lease(self, table: str, wait: timedelta) -> Iterator[Callable[[], None]]:
        with self.stores.leases.acquire(f"table/{table}", purpose="optimize", wait=wait) as lease:
            yield lease.check

    def _rewrite(self, one: Slice, planned_on: Survey, check: Callable[[], None]) -> Outcome:
        """Rewrite a slice in one commit. Left, when other commits took its files away at every attempt."""
        started, began, attempts = datetime.now(UTC), time.monotonic(), self.settings.maintenance.attempts
        pause, said = self.settings.maintenance.backoff.total_seconds(), ""
        for attempt in range(1, attempts + 1):
            work = Rewrite(
                place=place_of(self.settings, one.table),
                where=one.where,
                order_by=one.order_by,
                target_file_bytes=one.target_file_bytes,
                marker=f"optimize/{started.isoformat()}/{one.partition}#{attempt}",
                only_below_bytes=one.only_below_bytes,
            )
            try:
                rewritten = rewrite(work, self.spark(), check)
            except OptimizeConflict as conflict:
                said = str(conflict)
                if attempt < attempts:
                    self.sleep(pause)
                    pause *= 2
                continue
            before = set(planned_on.paths.get(one.partition, ()))
            after = sorted((before - set(rewritten.removed)) | set(rewritten.added))
            took = time.monotonic() - began
            return Done(one, rewritten, len(before), len(after), fingerprint(after), took, attempt, started)
        return Left(one, f"tried {attempts} times: {said}")

    def _remember(self, done: list[Done]) -> None:
        """Write down what was done to one table, and what reads open by its new bounds."""
        table, target = done[0].slice.table, done[0].slice.target_file_bytes
        now = survey(self.settings, table, target_file_bytes=target)
        rows = [_row(one, now) for one in done]
        history.remember(self.settings, "optimize", table.name, rows, self.spark())


def _row(done: Done, now: Survey) -> Row:
    one = done.slice
    there = now.partitions.filter(pc.equal(now.partitions.column("partition"), one.partition))
    # Larger files of the partition are to be merged next; not after a slice that found nothing to merge.
    more_waits = one.only_below_bytes is not None and done.rewritten.version is not None
    actual = {
        **done.figures(),
        "partition": one.partition,
        "target_file_bytes": one.target_file_bytes,
        "predicted_seconds": one.seconds,
        "read_files_after": float(remedies.opened_now(there)[0]) if there.num_rows else None,
        "fingerprint": None if more_waits else done.fingerprint,
    }
    return history.row(one.table.name, one.gain, one.why, done.started_ts, done.seconds, actual)

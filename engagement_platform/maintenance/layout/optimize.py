"""A run of OPTIMIZE: plans slices over tables, and rewrites them one by one until its budget is spent.

Ingestion and mutations come first: a mutable table is touched only under its lease, which is released after each slice.
A table that is being written is tried again once all others are done; then the run waits in the line of its lease. What
is left, the next run plans anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from engagement_platform.engine.database import StoresUnavailable
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import Holder, LeaseLost, LeaseUnavailable
from engagement_platform.engine.unfinished_batches import blocking_batches
from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake import live_files
from engagement_platform.lake.optimize import OptimizeConflict, Place, Rewritten, SparkGetter, by_maintenance, rewrite
from engagement_platform.lake.session import spark_session
from engagement_platform.lake.shared_session import says_ended
from engagement_platform.maintenance.layout import files, history, plan, remedies
from engagement_platform.maintenance.layout.files import LogNotReadable
from engagement_platform.maintenance.layout.history import LAYOUT_HISTORY
from engagement_platform.maintenance.layout.plan import Left, Slice
from engagement_platform.maintenance.layout.survey import Survey, Target, fingerprint, in_lake, survey, targets
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import Settings

ORGANIZATION = "organization_id"

_ENGINES = ("pyspark", "py4j", "grpc", "deltalake", "_internal")
"""Whose errors are about one table. delta-rs, which reads logs, says of its own that they come from `_internal`."""
_OWN_FILES = 10

SparkOpener = Callable[[], AbstractContextManager[SparkSession]]


class NotByOrganization(PlatformError):
    """One organization was asked for, of a table that is not partitioned by it, or of a lake that has no such table."""

    def __init__(self, table: str | None) -> None:
        of, what = ("No table of the lake is", "tables") if table is None else (f"{table} is not", "it")
        super().__init__(
            f"{of} partitioned by {ORGANIZATION}, so no part belongs to one organization. Nothing was changed. "
            f"Optimize {what} as a whole, without naming an organization."
        )


def is_about_a_table(error: Exception) -> bool:
    """Whether an error is one of the platform's own, of Spark's or of delta-rs', and no bug; nor that the session is
    gone, without which no other table can be looked after either."""
    ours = isinstance(error, PlatformError) or type(error).__module__.startswith(_ENGINES)
    return ours and not says_ended(error)


@dataclass(frozen=True)
class Asked:
    """What a run is to look after. table: one by name or path; None: all of the lake."""

    table: str | None = None
    organizations: tuple[str, ...] = ()
    second_round: bool = False
    """A larger target, over everything below it."""
    budget: timedelta | None = None
    """Default: `maintenance.budget`."""
    by_day: bool = False
    """Only what has so many small files that it is not left for the night."""


@dataclass(frozen=True)
class Plan:
    """What a run would do, in order, and what does not fit into its budget."""

    chosen: tuple[Slice, ...]
    left: tuple[Left, ...]
    budget: timedelta
    unread: tuple[str, ...] = ()
    """Why tables could not be looked at."""


def planned(settings: Settings, asked: Asked) -> Plan:
    """Look at the tables and choose. Changes nothing; reads logs, no data, in this process.

    Raises NoSuchTable, NotADeltaTable, NotByOrganization, and LogNotReadable for a table that was named.
    """
    found, unread, upkeep = list[Slice](), list[str](), settings.maintenance
    surveyed, has_parts = False, False
    target_file_bytes = upkeep.second_round_file_bytes if asked.second_round else upkeep.target_file_bytes
    for table in targets(settings, asked.table):
        try:
            if asked.by_day and _files(table) < upkeep.files_by_day:
                continue
            seen = survey(settings, table, target_file_bytes=target_file_bytes)
        except LogNotReadable as error:
            if asked.table is not None:
                raise
            unread.append(str(error))
            continue
        last = history.last_rewrites(settings, table.name, target_file_bytes)
        # Every run adds a file or two to the history: to merge those would make the next run find something, for ever.
        least = _OWN_FILES if table.name == LAYOUT_HISTORY.name else 0
        surveyed, has_parts = True, has_parts or ORGANIZATION in seen.shape.partitioned_by
        for part in _parts(seen, asked):
            found += [one for one in plan.slices(part, settings, last) if one.gain.files_before >= least]
    if asked.organizations and surveyed and not has_parts and not unread:
        raise NotByOrganization(asked.table)
    if asked.by_day:
        found = [one for one in found if plan.presses(one, upkeep.files_by_day)]
    budget = upkeep.budget if asked.budget is None else asked.budget
    chosen, left = plan.within(plan.ordered(found), budget.total_seconds())
    return Plan(tuple(chosen), tuple(left), budget, tuple(unread))


def _files(table: Target) -> int:
    """Files of a table now; cheaper than a survey where nothing has come. Raises LogNotReadable."""
    try:
        return live_files.count(table.uri)
    except Exception as error:
        # As in `files.open_table`: what delta-rs raises has no common base.
        raise LogNotReadable(table.name, first_line(error)) from error


def _parts(seen: Survey, asked: Asked) -> list[Survey]:
    if not asked.organizations:
        return [seen]
    if ORGANIZATION not in seen.shape.partitioned_by:
        return []
    return [seen.only(ORGANIZATION, organization) for organization in dict.fromkeys(asked.organizations)]


def organizations(settings: Settings) -> set[str]:
    """Every organization that is a partition value of some table of the lake. Reads logs, no data."""
    found = set[str]()
    for table in targets(settings):
        try:
            opened = files.open_table(table.uri, table.name)
        except LogNotReadable:
            continue
        if ORGANIZATION in opened.metadata().partition_columns:
            found |= {value for values in opened.partitions() if (value := values.get(ORGANIZATION)) is not None}
    return found


def place_of(settings: Settings, table: Target) -> Place:
    """Where a table is, and the folder of its commit lock: below the lake, or below the table itself."""
    return Place(table.name, table.uri, settings.lake if in_lake(settings, table) else table.uri)


@contextmanager
def spark_when_needed(
    settings: Settings, app_name: str, open_spark: SparkOpener | None = None
) -> Iterator[SparkGetter]:
    """Spark for as long as this lasts, opened by the first call: where there is nothing to do no session is needed."""
    found = list[SparkSession]()
    with ExitStack() as stack:

        def get() -> SparkSession:
            if not found:
                opened = open_spark() if open_spark else spark_session(settings, app_name)
                found.append(stack.enter_context(opened))
            return found[0]

        yield get


@dataclass(frozen=True)
class Done:
    """A slice that was rewritten, and what came of it."""

    slice: Slice
    rewritten: Rewritten
    seconds: float
    """Of those that were rewritten with others each has the same share."""
    attempts: int
    started_ts: datetime

    @property
    def files_before(self) -> int:
        """Files of the partition when it was planned, and those that came before it was rewritten."""
        return len(self.slice.paths | self.rewritten.removed.keys())

    @property
    def files_after(self) -> int:
        """Files that it has now, if nobody else has written to it since."""
        return self.files_before - len(self.rewritten.removed) + len(self.rewritten.added)

    @property
    def bytes_rewritten(self) -> int:
        """Of the files that were replaced."""
        return sum(self.rewritten.removed.values())

    @property
    def bytes_written(self) -> int:
        """Of the files that replaced them."""
        return sum(self.rewritten.added.values())

    def figures(self) -> dict[str, object]:
        """What was written and replaced, by the columns of the history."""
        names = ("files_before", "files_after", "bytes_rewritten", "bytes_written")
        return {"version": self.rewritten.version, **{name: getattr(self, name) for name in names}}

    def as_json(self) -> dict[str, object]:
        """Prediction and outcome side by side."""
        took = {"attempts": self.attempts, "took_seconds": round(self.seconds, 3)}
        return {**self.slice.as_json(), **self.figures(), **took}

    def row(self, now: Survey) -> history.Outcome:
        """Of `layout/history`. now: the table afterwards."""
        one, gain = self.slice, self.slice.gain
        there = now.partitions.filter(pc.equal(now.partitions.column("partition"), one.partition))
        saved: float = gain.files_before - (there.column("files")[0].as_py() if there.num_rows else 0)
        if gain.read_files_before is not None and there.num_rows:
            saved += gain.read_files_before - float(remedies.opened_now(there)[0])
        return {
            "table_name": one.table.name,
            "partition": one.partition,
            "action": one.action,
            "why": one.why,
            "target_file_bytes": one.target_file_bytes,
            "predicted_gain": gain.saved,
            "actual_gain": float(saved),
            **self.figures(),
            "seconds": self.seconds,
            # What others wrote since the plan is no part of it: a later run has to see that the partition changed.
            "fingerprint": fingerprint({*one.paths, *self.rewritten.added} - self.rewritten.removed.keys()),
            "started_ts": self.started_ts,
            "ingestion_date": self.started_ts.date(),
        }


Outcome = Done | Left


@dataclass(frozen=True)
class Callbacks:
    """Called while a run goes on."""

    on_slice: Callable[[Slice], None] = lambda _slice: None
    """Before a slice is done."""
    on_outcome: Callable[[Outcome], None] = lambda _outcome: None
    on_wait: Callable[[Slice, Holder], None] = lambda _slice, _holder: None
    """When a table's lease is held, once for each table."""


def optimize(
    settings: Settings, chosen: Plan, callbacks: Callbacks | None = None, open_spark: SparkOpener | None = None
) -> Iterator[Outcome]:
    """Each slice of a plan, done or left with the reason. Raises StoresUnavailable, LeaseLost."""
    with spark_when_needed(settings, "optimize", open_spark) as spark:
        yield from Run(settings, open_stores(settings), spark, callbacks or Callbacks()).do(chosen)


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

        Raises StoresUnavailable and LeaseLost, which stop all maintenance; what was done until then is in the history
        too.
        Other errors come as slices that were left and `failed`.
        """
        if chosen.chosen:
            # Before any lease is taken: writers need not wait for a session to open.
            self.spark()
        ends = time.monotonic() + chosen.budget.total_seconds()
        done = dict[Target, list[Done]]()
        try:
            for outcome in self._outcomes(chosen, ends):
                if isinstance(outcome, Done):
                    done.setdefault(outcome.slice.table, []).append(outcome)
                self.callbacks.on_outcome(outcome)
                yield outcome
            yield from chosen.left
        finally:
            afterwards = {table: survey(self.settings, table) for table in done}
            if rows := [one.row(now) for table, now in afterwards.items() for one in done[table]]:
                history.remember(self.settings, rows, self.spark())

    def _outcomes(self, chosen: Plan, ends: float) -> Iterator[Outcome]:
        waiting = dict[Target, list[tuple[Slice, ...]]]()
        for number, some in enumerate(plan.together(chosen.chosen)):
            if number and time.monotonic() >= ends:
                yield from (Left(one, "the time of this run is over; the next one goes on") for one in some)
                continue
            outcomes = self._some(some, timedelta(0))
            if isinstance(outcomes, Holder):
                if some[0].table not in waiting:
                    self.callbacks.on_wait(some[0], outcomes)
                waiting.setdefault(some[0].table, []).append(some)
            else:
                yield from outcomes
        for some in chain.from_iterable(waiting.values()):
            outcomes = self._some(some, timedelta(seconds=max(0.0, ends - time.monotonic())))
            if isinstance(outcomes, Holder):
                reason = f"{outcomes}, and it was not released within the time of this run"
                outcomes = [Left(one, reason) for one in some]
            yield from outcomes

    def _some(self, some: tuple[Slice, ...], wait: timedelta) -> Sequence[Outcome] | Holder:
        """Do slices of a table under the lease that they need; who holds the lease, where that is not to be had."""
        first = some[0]
        try:
            with self._lease(first, wait) as check:
                # While we hold the lease nobody is at an unfinished batch of the table. Its replay looks for its own
                # commits among the newest ones, and many of ours in between would hide them.
                unfinished = () if first.append_only else self.stores.checkpoints.unfinished()
                if begun := blocking_batches("", (first.table.name,), unfinished):
                    return [Left(one, f"{begun[0].manifest} is unfinished and comes first") for one in some]
                for one in some:
                    self.callbacks.on_slice(one)
                return self._rewrite(some, check)
        except LeaseUnavailable as error:
            return error.holder
        except (StoresUnavailable, LeaseLost):
            # Another run has taken the place of this one.
            raise
        except Exception as error:
            if not is_about_a_table(error):
                raise
            if len(some) > 1:
                # Nor does one partition keep the others from being merged. Nobody holds the lease: they need none.
                alone = [self._some((one,), wait) for one in some]
                return [outcome for outcomes in alone if not isinstance(outcomes, Holder) for outcome in outcomes]
            # A table that cannot be rewritten must not keep the others from being looked after; it fails the run.
            return [Left(one, first_line(error), failed=True) for one in some]

    @contextmanager
    def _lease(self, one: Slice, wait: timedelta) -> Iterator[Callable[[], None]]:
        """The check of the table's lease; none where rows are only appended: OPTIMIZE and appends do not meet."""
        if one.append_only:
            yield lambda: None
            return
        with self.stores.leases.acquire(f"table/{one.table.name}", purpose="optimize", wait=wait) as lease:
            yield lease.check

    def _rewrite(self, some: tuple[Slice, ...], check: Callable[[], None]) -> Sequence[Outcome]:
        """Rewrite slices in one commit. Left, when other commits took their files away at every attempt."""
        first, started, began = some[0], datetime.now(UTC), time.monotonic()
        upkeep, reason = self.settings.maintenance, ""
        for attempt in range(1, upkeep.attempts + 1):
            if attempt > 1:
                self.sleep(upkeep.backoff.total_seconds() * 2 ** (attempt - 2))
            try:
                rewritten = rewrite(
                    place_of(self.settings, first.table), self.spark(), where=[one.where for one in some if one.where],
                    order_by=first.order_by, target_file_bytes=first.target_file_bytes,
                    marker=by_maintenance(started, first.partition, attempt), guard=check,
                )  # fmt: skip
            except OptimizeConflict as conflict:
                reason = str(conflict)
            else:
                seconds = (time.monotonic() - began) / len(some)
                parts = [rewritten] if len(some) == 1 else [rewritten.within(*one.where) for one in some]
                return [Done(one, part, seconds, attempt, started) for one, part in zip(some, parts, strict=True)]
        return [Left(one, f"tried {upkeep.attempts} times: {reason}") for one in some]

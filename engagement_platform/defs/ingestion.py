"""A job that drains a source into tables, as Dagster sees it: assets, check, job, and what its runs do.

Runs record their events while they go on (`materialization_events`), so no result is yielded for an asset at the end.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any, Literal

import dagster as dg

from engagement_platform.defs.backlog import Waiting
from engagement_platform.defs.batches import Tables, unbalanced
from engagement_platform.defs.evaluations import check_result
from engagement_platform.defs.materialization_events import Context, Recorder, callbacks_of
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.pool_yield import gives_way
from engagement_platform.defs.specs import ingestion_days, key_of
from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.job import BatchReport, BooksDoNotBalance, Callbacks, MicroBatchJob
from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.jobs import Declared, build_job, close_source
from engagement_platform.pipelines.parts import Parts
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka_errors import BrokerUnavailable, TopicMissing

Mode = Literal["auto", "drain", "reread"]
Reread = Callable[[date, Parts], Iterator[BatchReport]]

NOT_THERE = (BrokerUnavailable, TopicMissing)
"""Errors of a topic as a source after which nobody knows what waits."""

CONSERVATION = "conservation"

UNBOUNDED = {"dagster/max_runtime": "0"}
"""Tag of runs that take as long as there is to do: `run_monitoring` in `dagster.yaml` does not end them."""


class NoReread(PlatformError):
    """Days of a job were asked for that only reads on."""

    def __init__(self, job: str, days: Sequence[date]) -> None:
        self.job, self.days = job, tuple(days)
        super().__init__(
            f"{job} cannot read {', '.join(map(str, days))} again: its records stand as they came. Nothing was "
            "changed. For records that were rejected and would pass now, run the job redrive_quarantine; new ones come "
            "by the mode drain."
        )


class IngestConfig(dg.Config):
    """What a run of an ingestion asset does."""

    mode: Mode = "auto"
    """auto: today's partition, or a run without, drains new messages; days before are read again. drain, reread: always
    that."""


def run_plan(mode: Mode, days: Sequence[date], today: date) -> tuple[list[date], bool]:
    """What the partitions of a run ask for: the days to read again, and whether to drain after that.

    days: the run's partitions, none for a run without. auto: days before today are read again, today (or no
    partition) drains. drain: always just that; a run that was launched before midnight starts after it with
    yesterday's partition. reread: all days, today when there is none.
    """
    if mode == "drain":
        return [], True
    if mode == "reread":
        return sorted(days) or [today], False
    return sorted(day for day in days if day < today), not days or any(day >= today for day in days)


def partition_days(context: dg.AssetExecutionContext) -> list[date]:
    """The run's partitions; none for a run without."""
    if not context.has_partition_key and not context.has_partition_key_range:
        return []
    return [date.fromisoformat(key) for key in context.partition_keys]


def drained(
    context: Context,
    opened: Opened,
    job: MicroBatchJob[Any],
    *,
    until_idle: bool = False,
    once: bool = False,
    interval: timedelta = timedelta(0),
) -> Iterator[tuple[date, BatchReport]]:
    """Batch after batch, each with the day of its ingestion. until_idle: ends as soon as nothing waits. once: that
    soon, and after the first batch that it has planned, as `DrainPolicy.once` says.

    Otherwise by the settings of `drain`, and when a run that was launched by hand waits for the pool. interval: between
    the beginnings of two batches at least, where that is longer than `drain.min_batch_interval`; the setting at zero
    means at once, for every job. Raises what batches raise.
    """
    asked = opened.settings.drain
    policy = (
        DrainPolicy(
            idle_timeout=timedelta(0), max_duration=timedelta.max if until_idle else asked.max_duration, once=once
        )
        if until_idle or once
        else drain_policy(context, opened, interval)
    )
    try:
        for report in drain(job, policy):
            yield report.manifest.ingestion_ts.date(), report
    finally:
        close_source(job)


def drain_policy(context: Context, opened: Opened, interval: timedelta = timedelta(0)) -> DrainPolicy:
    """The settings of `drain`; the run gives way to others that wait for its pool. interval: see `drained`."""
    asked = opened.settings.drain
    least = asked.min_batch_interval and max(asked.min_batch_interval, interval)
    return DrainPolicy(asked.idle_timeout, asked.poll, asked.max_duration, least, gives_way(context))


@dataclass(frozen=True, kw_only=True)
class Drain:
    """A job that makes batches of what waits for it, in runs of its own or in one that serves several (`shared_drain`).

    Its runs record events for tables. Ones whose tables they materialize are an `Ingestion`.
    """

    job: str
    """Name of the job, as the stores know it."""
    pool: str
    tables: Tables
    declared: Callable[[Settings], Declared | None] = field(default=lambda _settings: None)
    """What it is a job of, where that can be declared, under the settings of a run."""
    unknown: tuple[type[PlatformError], ...] = NOT_THERE
    """Errors of the source after which a sensor launches nothing. After any other, such as offsets that expired, it
    launches a run, which fails with the sentence that says so, and failed runs are alerts."""
    interval: timedelta = timedelta(0)
    """Between the beginnings of two batches at least, where that is longer than `drain.min_batch_interval`."""

    @property
    def dagster_job(self) -> str:
        """Name of the job, as Dagster knows it."""
        return self.job.replace("-", "_")

    def build(self, opened: Opened, callbacks: Callbacks) -> MicroBatchJob[Any]:
        return build_job(self.job, opened.parts(callbacks), self.declared(opened.settings))

    def backlog(self, looked: Waiting) -> int:
        """How much waits: messages, objects or rows. Raises what the source raises."""
        declared = self.declared(looked.settings)
        if isinstance(declared, Feed):
            return looked.announced(declared, datetime.now(UTC)).rows
        return looked.backlog(self.job, declared.topic if declared else None)

    def run(self, context: Context, platform: Platform, *, once: bool = False) -> None:
        """Batch after batch, with events for the tables. once: see `drained`."""
        with platform.open(self.job) as opened:
            job = self.build(opened, callbacks_of(context))
            batches = drained(context, opened, job, once=once, interval=self.interval)
            Recorder(context, self.tables, opened).add_all(batches)

    def result(self, reports: Sequence[BatchReport], refused: str | None = None) -> dg.AssetCheckResult | None:
        """Whether the batches of one run account for each record, where a check says so."""
        del reports, refused
        return None


@dataclass(frozen=True, kw_only=True)
class Ingestion(Drain):
    """A job that drains a source, and the tables it fills."""

    asset_name: str
    """Of the function that Dagster runs."""
    specs: Sequence[dg.AssetSpec]
    description: str
    reread: Reread | None = None
    """Reads what was ingested on a day once more."""
    check: str = CONSERVATION
    beside: Callable[[Context, Settings], Callable[[], None]] | None = None
    """Begun with a run; what it gives is called after each batch."""
    says: str = "Every record that a batch received has landed, was a known duplicate or is in quarantine."

    @cached_property
    def assets(self) -> dg.AssetsDefinition:
        """The tables, filled together; the check comes with every run."""

        @dg.multi_asset(
            name=self.asset_name,
            specs=self.specs,
            check_specs=[
                dg.AssetCheckSpec(self.check, asset=key_of(self.tables.summary), blocking=True, description=self.says)
            ],
            # A day that cannot be read again is nothing to launch.
            partitions_def=ingestion_days() if self.tables.by_day else None,
            backfill_policy=dg.BackfillPolicy.single_run() if self.tables.by_day else None,
            pool=self.pool,
            description=self.description,
        )
        def ingest(
            context: dg.AssetExecutionContext, config: IngestConfig, platform: Platform
        ) -> Iterator[dg.AssetCheckResult]:
            days, drains = run_plan(config.mode, partition_days(context), datetime.now(UTC).date())
            if days:
                # Reading again takes as long as it takes; ended in the middle, it would keep others from their tables.
                context.instance.add_run_tags(context.run_id, UNBOUNDED)
            with platform.open(self.job) as opened:
                recorder = Recorder(context, self.tables, opened, self.result)
                try:
                    recorder.add_all(self._batches(context, opened, days, drains))
                except BooksDoNotBalance as refused:
                    yield self.result(recorder.reports, str(refused))
                    raise
            yield self.result(recorder.reports)

        return ingest

    def asset_job(self, description: str) -> Any:
        """The assets and the check of their own runs; a run that drains has no time for checks of whole tables."""
        return dg.define_asset_job(
            self.dagster_job,
            selection=dg.AssetSelection.assets(self.assets).without_checks()
            | dg.AssetSelection.checks(*self.assets.check_keys),
            description=description,
            executor_def=dg.in_process_executor,
        )

    def result(self, reports: Sequence[BatchReport], refused: str | None = None) -> dg.AssetCheckResult:
        """Whether the batches of one run account for each record. refused: why the last one was not finalized."""
        wrong = unbalanced(reports) + ([refused] if refused else [])
        sums = {
            count: sum(report.counts.get(count, 0) for report in reports)
            for count in ("rows_in", "landed", "duplicates", "quarantined")
        }
        shown = {"batches": len(reports), **sums}
        return check_result(key_of(self.tables.summary), self.check, "; ".join(wrong), shown)

    def _batches(
        self, context: dg.AssetExecutionContext, opened: Opened, days: Sequence[date], drains: bool
    ) -> Iterator[tuple[date, BatchReport | None]]:
        """Batches, each with the day that is read again, or of its ingestion; None where nothing was recorded on a day.

        Raises NoReread before anything is done.
        """
        callbacks = callbacks_of(context)
        if days and self.reread is None:
            raise NoReread(self.job, days)
        for day in days:
            report = None
            for report in self.reread(day, opened.parts(callbacks)) if self.reread else ():
                yield day, report
            if report is None:
                yield day, None
        if drains:
            look = self.beside(context, opened.settings) if self.beside else lambda: None
            for batch in drained(context, opened, self.build(opened, callbacks), interval=self.interval):
                yield batch
                look()

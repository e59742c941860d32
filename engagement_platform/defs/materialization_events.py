"""Materializations and observations of the tables that batches write, made while a run goes on; a log line a batch.

One event for each table and run, with the sums of its batches. A run that drains for long makes one every
`dagster.report_interval`, so that the event log, from which open-source Dagster removes nothing, does not grow with the
batches. Those in between are observations: a check that reads tables is "Not evaluated" after each materialization.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import Any

import dagster as dg

from engagement_platform.defs.batches import BATCHES_SHOWN as HISTORY
from engagement_platform.defs.batches import Batch, Tables, log_line, nothing_recorded, table_metadata, total
from engagement_platform.defs.evaluations import evaluation
from engagement_platform.defs.platform import Opened
from engagement_platform.defs.specs import column_lineage, key_of
from engagement_platform.engine.job import BatchReport, Callbacks
from engagement_platform.lake import live_files
from engagement_platform.lake.contract import Table

Context = dg.AssetExecutionContext | dg.OpExecutionContext
Check = Callable[[Sequence[BatchReport], str | None], dg.AssetCheckResult | None]
"""Of the batches of a run, and why one more failed, if one did."""


def callbacks_of(context: Context) -> Callbacks:
    """A run that waits for a lease or for another job's batch says so in its log."""
    return Callbacks(
        on_wait=lambda lease, holder: context.log.info(f"Waiting for the lease {lease}: {holder}"),
        on_blocked=lambda why: context.log.info(f"Waiting: {why}"),
    )


class Recorder:
    """Records events for the tables of one job in one run: in the end, when the day changes, every report interval.

    The last are materializations at most once in `health.check_pause`, since checks look no more often, and where a
    table has none of this run yet.

    check: of all batches of the run so far. Evaluated after the first, so that it is not "In progress" for minutes, and
    with each event but the last, which is the run's own result.
    """

    def __init__(self, context: Context, tables: Tables, opened: Opened, check: Check | None = None) -> None:
        self._context, self._tables, self._opened, self._check = context, tables, opened, check
        self._every_s = opened.settings.dagster.report_interval.total_seconds()
        self._check_pause_s = opened.settings.health.check_pause.total_seconds()
        self._materialized, self._all_due = set[Table](), 0.0
        self._due = _first_event_due(context, self._every_s)
        self.reports = list[BatchReport]()
        """All batches of the run so far."""
        self._pending, self._day = list[Batch](), date.min
        self._evaluated, self._failed = 0, False

    def add_all(self, batches: Iterable[tuple[date, BatchReport | None]]) -> None:
        """Add batches as they come; the last event is recorded also when one fails."""
        try:
            for day, report in batches:
                self.add(day, report)
        finally:
            self.record()

    def add(self, day: date, report: BatchReport | None) -> None:
        """A batch, with the day that is the event's partition. None: no batch is of that day; it is observed, and stays
        unmaterialized."""
        if day != self._day:
            self.record()
        self._day = day
        if report is None:
            for table in self._tables.first:
                nothing = dg.AssetObservation(key_of(table), metadata=nothing_recorded(day), partition=day.isoformat())
                self._context.log_event(nothing)
            return
        self.reports.append(report)
        self._pending.append(_batch_of(report, self._opened))
        self._context.log.info(log_line(report))
        if is_due := time.monotonic() >= self._due:
            self.record(goes_on=True)
            self._due = time.monotonic() + self._every_s
        if is_due or self._failed or not self._evaluated:
            self.evaluate()

    def record(self, goes_on: bool = False) -> None:
        """An event for each table that batches since the last one changed. goes_on: more batches may come this day."""
        if not self._pending:
            return
        batch, day, tables, now = total(self._pending), self._day.isoformat(), self._tables, time.monotonic()
        # All of a job together: one look at its tables is enough for the checks of all.
        if are_all_due := not goes_on or now >= self._all_due:
            self._all_due = now + self._check_pause_s
        partition = day if tables.by_day else None
        for table in tables.changed(batch):
            metadata = {**table_metadata(batch, tables, table), **of_table(table, self._opened.settings.lake)}
            if table in tables.own and (are_all_due or table not in self._materialized):
                self._materialized.add(table)
                event = dg.AssetMaterialization(key_of(table), metadata=metadata, partition=partition)
                self._context.log_event(event)
            else:
                self._context.log_event(dg.AssetObservation(key_of(table), metadata=metadata, partition=day))
        self._pending.clear()

    def evaluate(self, failed: str | None = None, *, anew: bool = False) -> None:
        """A result of the check, when batches came since the last one. failed: why a batch failed. anew: always."""
        news = anew or failed is not None or len(self.reports) > self._evaluated
        if self._check is not None and news and (result := self._check(self.reports, failed)):
            # Accepted and stored, though its signature does not name it (Dagster 1.13).
            self._context.log_event(evaluation(result))  # type: ignore[arg-type]
        self._evaluated, self._failed = len(self.reports), failed is not None


def _first_event_due(context: Context, every_s: float) -> float:
    """At once until a run of the job has succeeded: a newcomer does not wait for minutes to see that batches come."""
    succeeded = dg.RunsFilter(job_name=context.run.job_name, statuses=[dg.DagsterRunStatus.SUCCESS])
    known = context.instance.get_run_records(succeeded, limit=1)
    return time.monotonic() + every_s if known else 0.0


def _batch_of(report: BatchReport, opened: Opened) -> Batch:
    """A report with what the stores know of the batch. Two small queries."""
    job, batch_id = report.manifest.job, report.manifest.batch_id
    states = opened.stores.metadata.get(job).values()
    processes = {state.process: state.counts for state in states if state.batch_id == batch_id}
    return Batch(report, processes, opened.stores.checkpoints.history(job, limit=HISTORY))


def of_table(table: Table, lake: str) -> dict[str, Any]:
    """Under Dagster's own names: where a table is, its rows as its log counts them now, and where columns come from."""
    uri = table.uri(lake)
    shown: dict[str, Any] = {"dagster/uri": dg.MetadataValue.text(uri)}
    if (rows := live_files.row_count(uri)) is not None:
        shown["dagster/row_count"] = rows
    if (lineage := column_lineage(table)) is not None:
        shown["dagster/column_lineage"] = lineage
    return shown

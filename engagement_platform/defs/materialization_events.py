"""Materializations and observations of the tables that batches write, made while a run goes on; a log line a batch.

One event for each table and run, with the sums of its batches. A run that drains for long makes one every
`dagster.report_interval`, so that the event log, from which open-source Dagster removes nothing, does not grow with the
batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date

import dagster as dg

from engagement_platform.defs.batches import BATCHES_SHOWN as HISTORY
from engagement_platform.defs.batches import Batch, Metadata, Tables, log_line, nothing_recorded, table_metadata, total
from engagement_platform.defs.evaluations import evaluation
from engagement_platform.defs.platform import Opened
from engagement_platform.defs.specs import key_of
from engagement_platform.engine.job import BatchReport, Callbacks
from engagement_platform.lake.contract import Table

Context = dg.AssetExecutionContext | dg.OpExecutionContext
Check = Callable[[Sequence[BatchReport]], dg.AssetCheckResult]


def callbacks_of(context: Context) -> Callbacks:
    """A run that waits for a lease or for another job's batch says so in its log."""
    return Callbacks(
        on_wait=lambda lease, holder: context.log.info(f"Waiting for the lease {lease}: {holder}"),
        on_blocked=lambda why: context.log.info(f"Waiting: {why}"),
    )


def record_batches(
    context: Context,
    tables: Tables,
    opened: Opened,
    batches: Iterable[tuple[date, BatchReport | None]],
    check: Check | None = None,
) -> Iterator[BatchReport]:
    """Pass batches on and record events for their tables: in the end, when the day changes, and every report interval.

    batches: each with its day, which is the event's partition; None: nothing was recorded on that day. check: of all
    batches of the run so far; evaluated with each event but the last, so that it is not "In progress" for minutes.
    """
    every_s = tables.every_s or opened.settings.dagster.report_interval.total_seconds()
    reports, pending, pending_day = list[BatchReport](), list[Batch](), date.min
    due = _first_event_due(context, every_s)

    def record() -> None:
        if pending:
            batch = total(pending)
            shown = {table: table_metadata(batch, tables, table) for table in tables.changed(batch)}
            _log_events(context, opened, pending_day, shown, tables)
            pending.clear()

    try:
        for day, report in batches:
            if day != pending_day:
                record()
            pending_day = day
            if report is None:
                _log_events(context, opened, day, dict.fromkeys(tables.first, nothing_recorded(day)), tables)
                continue
            reports.append(report)
            pending.append(_batch_of(report, opened))
            context.log.info(log_line(report))
            if time.monotonic() >= due:
                record()
                due = time.monotonic() + every_s
                if check is not None:
                    # Accepted and stored, though its signature does not name it (Dagster 1.13).
                    context.log_event(evaluation(check(reports)))  # type: ignore[arg-type]
            yield report
    finally:
        record()


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


def _log_events(context: Context, opened: Opened, day: date, shown: Mapping[Table, Metadata], tables: Tables) -> None:
    for table, metadata in shown.items():
        uri = {"dagster/uri": dg.MetadataValue.text(table.uri(opened.settings.lake))}
        event = dg.AssetMaterialization if table in tables.own else dg.AssetObservation
        context.log_event(event(key_of(table), metadata={**metadata, **uri}, partition=day.isoformat()))

"""Tells Dagster of batches while a run goes on: one event a table and one log line for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date

import dagster as dg

from engagement_platform.defs.batches import BATCHES_SHOWN as HISTORY
from engagement_platform.defs.batches import Batch, Metadata, log_line, nothing_recorded, table_metadata
from engagement_platform.defs.platform import Opened
from engagement_platform.defs.specs import DATA_TABLE, key_of
from engagement_platform.microbatch.job import BatchReport, Told
from engagement_platform.microbatch.lease import Holder
from engagement_platform.tables.contract import Table
from engagement_platform.tables.engagement import MAPPING, MUTATION_REQUEST, NOTIFICATION, QUARANTINE

Context = dg.AssetExecutionContext | dg.OpExecutionContext

ENGAGEMENT_TABLES: Mapping[str, Table] = {
    "quarantine": QUARANTINE, "mapping": MAPPING, "data": DATA_TABLE, "notification": NOTIFICATION,
}  # fmt: skip
"""Process -> the table it writes, for engagements; in the order of the processes."""
REQUEST_TABLES: Mapping[str, Table] = {"mutation_request": MUTATION_REQUEST, "quarantine": QUARANTINE}


def told_of(context: Context) -> Told:
    """A run that waits for a lease or for another job's batch says so in its log."""

    def on_wait(lease: str, holder: Holder) -> None:
        context.log.info(f"Waiting for the lease {lease}: {holder}")

    return Told(on_wait=on_wait, on_blocked=lambda why: context.log.info(f"Waiting: {why}"))


def tables_to_tell(tables: Mapping[str, Table], report: BatchReport) -> dict[str, Table]:
    """The tables that a batch has news of: its own, and quarantine where the batch rejected something.

    Engagement batches tell of quarantine always, for it is theirs: no rejected record is news, too.
    """
    own = tables is ENGAGEMENT_TABLES
    return {p: t for p, t in tables.items() if own or t is not QUARANTINE or report.counts.get("quarantined", 0)}


def tell(
    context: Context, tables: Mapping[str, Table], opened: Opened, done: Iterable[tuple[date, BatchReport | None]]
) -> Iterator[BatchReport]:
    """Pass batches on, each told of as soon as it is committed. Partition: the day that comes with it."""
    for day, report in done:
        if report is None:
            _tell_of_tables(context, opened, day, dict.fromkeys(tables.values(), nothing_recorded(day)), tables)
            continue
        batch = batch_of(report, opened)
        told = {t: table_metadata(batch, p) for p, t in tables_to_tell(tables, report).items()}
        _tell_of_tables(context, opened, day, told, tables)
        context.log.info(log_line(report))
        yield report


def batch_of(report: BatchReport, opened: Opened) -> Batch:
    """A report with what the stores know of the batch. Two small queries."""
    job, batch_id = report.manifest.job, report.manifest.batch_id
    states = opened.stores.metadata.get(job).values()
    processes = {state.process: state.counts for state in states if state.batch_id == batch_id}
    return Batch(report, processes, opened.stores.checkpoints.history(job, limit=HISTORY))


def _tell_of_tables(
    context: Context, opened: Opened, day: date, told: Mapping[Table, Metadata], tables: Mapping[str, Table]
) -> None:
    for table, metadata in told.items():
        uri = {"dagster/uri": dg.MetadataValue.text(table.uri(opened.settings.lake))}
        # Two jobs that materialize one asset side by side would take turns in making its checks "Not evaluated", so
        # rejected requests are an observation of quarantine.
        foreign = table is QUARANTINE and tables is not ENGAGEMENT_TABLES
        event = dg.AssetObservation if foreign else dg.AssetMaterialization
        context.log_event(event(key_of(table), metadata={**metadata, **uri}, partition=day.isoformat()))

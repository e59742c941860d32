"""Tells Dagster of batches while a run goes on: one event a table and one log line for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date

import dagster as dg

from engagement_platform.defs.applied import announced_metadata, moved_metadata
from engagement_platform.defs.batches import BATCHES_SHOWN as HISTORY
from engagement_platform.defs.batches import Batch, Metadata, log_line, nothing_recorded, table_metadata
from engagement_platform.defs.platform import Opened
from engagement_platform.defs.specs import DATA_TABLE, key_of
from engagement_platform.engine.job import BatchReport, Callbacks
from engagement_platform.engine.lease import Holder
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MAPPING, MUTATION_REQUEST, NOTIFICATION, QUARANTINE

Context = dg.AssetExecutionContext | dg.OpExecutionContext


@dataclass(frozen=True)
class Tables:
    """The tables that the batches of a job change, each with the process that writes it."""

    own: Mapping[Table, str]
    """Each batch materializes them."""
    others: Mapping[Table, str] = field(default_factory=dict)
    """Tables that are another job's assets: a batch that wrote into one is told of as an observation. Two jobs that
    materialize one asset side by side would take turns in making its checks "Not evaluated"."""
    metadata: Callable[[Batch, Table, str], Metadata] = table_metadata
    always: bool = False
    """Every batch has something to say of the others, too."""
    wrote: Mapping[Table, str] = field(default_factory=dict)
    """Which count of its process says that a batch wrote into a table; by default whether it made commits."""
    sparse: bool = False
    """A batch materializes of its own tables the first, and those that it wrote into."""

    @property
    def first(self) -> tuple[Table, ...]:
        """Of its own tables those that every batch has news of."""
        return tuple(self.own)[: 1 if self.sparse else None]


ENGAGEMENT_TABLES = Tables(
    {QUARANTINE: "tables", MAPPING: "tables", CHANGESET: "tables", DATA_TABLE: "tables", NOTIFICATION: "notification"}
)
REQUEST_TABLES = Tables(
    {ALIAS: "tables", MUTATION_REQUEST: "tables"}, {QUARANTINE: "tables"}, wrote={QUARANTINE: "quarantined"}
)
ANNOUNCED_TABLES = Tables({}, {NOTIFICATION: "notification"}, announced_metadata, always=True)
REMATERIALIZED_TABLES = Tables(
    {}, {DATA_TABLE: "base", MAPPING: "base", CHANGESET: "changeset"}, moved_metadata, always=True
)


def callbacks_of(context: Context) -> Callbacks:
    """A run that waits for a lease or for another job's batch says so in its log."""

    def on_wait(lease: str, holder: Holder) -> None:
        context.log.info(f"Waiting for the lease {lease}: {holder}")

    return Callbacks(on_wait=on_wait, on_blocked=lambda why: context.log.info(f"Waiting: {why}"))


def tables_to_tell(tables: Tables, batch: Batch) -> dict[Table, str]:
    """The tables that a batch has news of: its own, and of the others those that it wrote into.

    The job's own are told of always, unless they are many: no rejected record is news, too.
    """

    def wrote_into(table: Table, process: str) -> bool:
        return bool(batch.processes.get(process, {}).get(tables.wrote.get(table, "commits"), 0))

    others = {t: p for t, p in tables.others.items() if tables.always or wrote_into(t, p)}
    return {**{t: p for t, p in tables.own.items() if t in tables.first or wrote_into(t, p)}, **others}


def tell(
    context: Context, tables: Tables, opened: Opened, done: Iterable[tuple[date, BatchReport | None]]
) -> Iterator[BatchReport]:
    """Pass batches on, each told of as soon as it is committed. Partition: the day that comes with it."""
    for day, report in done:
        if report is None:
            _tell_of_tables(context, opened, day, dict.fromkeys(tables.first, nothing_recorded(day)), tables)
            continue
        batch = batch_of(report, opened)
        told = {t: tables.metadata(batch, t, p) for t, p in tables_to_tell(tables, batch).items()}
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
    context: Context, opened: Opened, day: date, told: Mapping[Table, Metadata], tables: Tables
) -> None:
    for table, metadata in told.items():
        uri = {"dagster/uri": dg.MetadataValue.text(table.uri(opened.settings.lake))}
        event = dg.AssetMaterialization if table in tables.own else dg.AssetObservation
        context.log_event(event(key_of(table), metadata={**metadata, **uri}, partition=day.isoformat()))

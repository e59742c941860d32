"""Tells Dagster of batches while a run goes on: one event a table and one log line for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date

import dagster as dg

from engagement_platform.defs.applied import mutation_metadata
from engagement_platform.defs.batches import BATCHES_SHOWN as HISTORY
from engagement_platform.defs.batches import Batch, Metadata, identified, log_line, nothing_recorded, table_metadata
from engagement_platform.defs.platform import Opened
from engagement_platform.defs.specs import DATA_TABLE, key_of
from engagement_platform.engine.job import BatchReport, Told
from engagement_platform.engine.lease import Holder
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    ALIAS,
    AMENDMENT,
    MAPPING,
    MUTATION_REQUEST,
    NOTIFICATION,
    OPERATION,
    ORIGINAL,
    PENDING,
    QUARANTINE,
    SAID_NAME,
    SUPERSEDED,
)

Context = dg.AssetExecutionContext | dg.OpExecutionContext


def _ingested(batch: Batch, table: Table, process: str) -> Metadata:
    # What their processes count is of the mapping, and of the Data Table.
    return identified(batch.report, {}) if table in {SAID_NAME, SUPERSEDED} else table_metadata(batch, process)


@dataclass(frozen=True)
class Tables:
    """The tables that the batches of a job change, each with the process that writes it."""

    own: Mapping[Table, str]
    """Each batch materializes them."""
    others: Mapping[Table, str] = field(default_factory=dict)
    """Tables that are another job's assets: a batch that wrote into one is told of as an observation. Two jobs that
    materialize one asset side by side would take turns in making its checks "Not evaluated"."""
    metadata: Callable[[Batch, Table, str], Metadata] = _ingested
    always: bool = False
    """Every batch has something to say of the others, too."""
    sparse: bool = False
    """A batch materializes of its own tables the first, and those that it wrote into."""

    @property
    def first(self) -> tuple[Table, ...]:
        """Of its own tables those that every batch has news of."""
        return tuple(self.own)[: 1 if self.sparse else None]


ENGAGEMENT_TABLES = Tables(
    {QUARANTINE: "quarantine", SAID_NAME: "mapping", MAPPING: "mapping", SUPERSEDED: "data", DATA_TABLE: "data",
     NOTIFICATION: "notification"}
)  # fmt: skip
REQUEST_TABLES = Tables({MUTATION_REQUEST: "mutation_request"}, {QUARANTINE: "quarantine"})
MUTATION_TABLES = Tables(
    {ORIGINAL: "data", AMENDMENT: "alias", ALIAS: "alias", OPERATION: "alias", PENDING: "alias"},
    {QUARANTINE: "quarantine", DATA_TABLE: "data", MAPPING: "mapping", NOTIFICATION: "notification"},
    mutation_metadata,
)
REMATERIALIZED_TABLES = Tables({}, {DATA_TABLE: "data", PENDING: "data"}, mutation_metadata, always=True)


def told_of(context: Context) -> Told:
    """A run that waits for a lease or for another job's batch says so in its log."""

    def on_wait(lease: str, holder: Holder) -> None:
        context.log.info(f"Waiting for the lease {lease}: {holder}")

    return Told(on_wait=on_wait, on_blocked=lambda why: context.log.info(f"Waiting: {why}"))


def tables_to_tell(tables: Tables, batch: Batch) -> dict[Table, str]:
    """The tables that a batch has news of: its own, and of the others those that it wrote into.

    The job's own are told of always, unless they are many: no rejected record is news, too.
    """

    def wrote_into(process: str) -> bool:
        return bool(batch.processes.get(process, {}).get("commits", 0))

    others = {t: p for t, p in tables.others.items() if tables.always or wrote_into(p)}
    return {**{t: p for t, p in tables.own.items() if t in tables.first or wrote_into(p)}, **others}


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

"""What a batch of mutations tells about itself in the UI: metadata for each table it changes. Values only."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg
from dagster import MetadataValue

from engagement_platform.defs.batches import (
    Batch,
    Metadata,
    identified,
    last_batches,
    rejections,
    whole_batch,
    written,
)
from engagement_platform.engine.job import BatchReport
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, AMENDMENT, OPERATION, ORIGINAL, PENDING, QUARANTINE
from engagement_platform.mutation.strategy import FIGURES

REQUESTED = ("conversions", "deletions", "renames", "patches")
RESOLVED = ("operations", "chains", "longest_chain")
APPLIED = ("inserted", "updated", "deleted", "changed", "files_rewritten", "bytes_changed", "bytes_rewritten", "purged")

_OF_LOGS: Mapping[Table, tuple[str, ...]] = {
    AMENDMENT: ("renames", "patches"),
    OPERATION: RESOLVED,
    ORIGINAL: ("patches",),
    PENDING: ("pending_organizations", "moved_organizations"),
}
"""What is worth saying on the pages of the smaller tables."""


def mutation_metadata(batch: Batch, table: Table, process: str) -> Metadata:
    """Of one table. On the aliases everything: requests, chains, rows, files and bytes, and what was chosen why."""
    report = batch.report
    if table == ALIAS:
        shown = {
            "last_batches": last_batches(batch.history),
            **counted(report, "rows_in", *REQUESTED),
            **resolved(report),
            **whole_batch(batch),
            **rejections(report),
        }
    elif table in _OF_LOGS:
        shown = counted(report, *_OF_LOGS[table])
    elif process == "data":
        shown = {**written(batch.processes.get(process, {})), **resolved(report)}
    else:
        shown = written(batch.processes.get(process, {}))
        shown |= rejections(report) if table == QUARANTINE else {}
    return identified(report, shown)


def counted(report: BatchReport, *names: str) -> Metadata:
    """Figures of a batch by their names, from its counts or its details; those that it does not have are left out."""
    found = {name: report.counts.get(name, report.details.get(name)) for name in names}
    return {name: MetadataValue.int(value) for name, value in found.items() if isinstance(value, int)}


def resolved(report: BatchReport) -> Metadata:
    """What requests came to: operations, chains, rows, bytes, and the strategies that were chosen."""
    shown = counted(report, *RESOLVED, *APPLIED, "pending_organizations")
    if (amplification := write_amplification(report)) is not None:
        shown["write_amplification"] = MetadataValue.float(round(amplification, 2))
    if strategies := report.details.get("strategies"):
        assert isinstance(strategies, Mapping)
        shown["strategies"] = strategies_table(strategies)
    return shown


def write_amplification(report: BatchReport) -> float | None:
    """Bytes written in place of old files, for each byte of a changed row; None where no row was moved."""
    changed = report.counts.get("bytes_changed", 0)
    return report.counts.get("bytes_rewritten", 0) / changed if changed else None


def strategies_table(strategies: Mapping[str, Mapping[str, object]]) -> dg.TableMetadataValue:
    """One row a strategy: organizations that got it, what was touched, expected and measured, and a reason."""
    records = [
        dg.TableRecord(
            {
                "strategy": name,
                **{figure: int(str(said.get(figure, 0))) for figure in FIGURES},
                "why": str(said.get("why", "")),
            }
        )
        for name, said in sorted(strategies.items())
    ]
    figures = [dg.TableColumn(figure, "int") for figure in FIGURES]
    columns = [dg.TableColumn("strategy"), *figures, dg.TableColumn("why")]
    return MetadataValue.table(records, dg.TableSchema(columns))

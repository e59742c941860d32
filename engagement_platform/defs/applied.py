"""What announced requests and moved changes tell about themselves in the UI: metadata for each table. Values only."""

from __future__ import annotations

from dagster import MetadataValue

from engagement_platform.defs.batches import Batch, Metadata, counted, identified, last_batches, whole_batch
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import CHANGESET, MAPPING
from engagement_platform.pipelines.snapshot import DATA

REQUESTED = ("conversions", "deletions", "renames", "patches")
SEEN = ("inserted", "updated", "deleted", "notifications", "files", "bytes")
MOVED = ("changed_rows", "tombstones", "files", "bytes", "files_rewritten", "bytes_rewritten")

_OF_TABLES = {DATA.name: MOVED, CHANGESET.name: ("images_removed",), MAPPING.name: ()}


def announced_metadata(batch: Batch, table: Table, process: str) -> Metadata:  # noqa: ARG001
    """Of the notifications of a batch of requests: what was asked, and what readers see otherwise."""
    counts = batch.processes.get(process, {})
    shown = {"last_batches": last_batches(batch.history), **whole_batch(batch), **counted(counts, *REQUESTED, *SEEN)}
    return identified(batch.report, shown)


def moved_metadata(batch: Batch, table: Table, process: str) -> Metadata:
    """Of a move: rows, files and bytes; on the Data Table the strategy with its reason; the watermark."""
    report = batch.report
    shown = counted(batch.processes.get(process, {}), *_OF_TABLES[table.name])
    if table.name == DATA.name:
        shown |= {n: MetadataValue.text(str(v)) for n in ("strategy", "why") if (v := report.details.get(n))}
        shown["seconds"] = MetadataValue.float(round(report.seconds, 2))
    if isinstance(watermark := report.details.get("watermark"), int):
        shown["watermark"] = MetadataValue.int(watermark)
    return identified(report, shown)

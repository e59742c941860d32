"""What batches of an entity's changes, and rematerializations, tell about themselves in the UI. Values only."""

from __future__ import annotations

from collections.abc import Sequence

from dagster import MarkdownMetadataValue, MetadataValue

from engagement_platform.defs.batches import (
    BATCHES_SHOWN,
    Batch,
    Metadata,
    figures_table,
    identified,
    rejections,
    summary,
    written,
)
from engagement_platform.defs.plot import Bar, series
from engagement_platform.engine.model import BatchRecord
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.pipelines.profiles.entity import Entity

CHANGES = ("inserts", "updates", "deletes")
MOVED = (
    *("changes", "batches", "files", "bytes", "files_rewritten", "bytes_rewritten", "batches_removed"),
    *("tombstones_removed", "find_ms", "rewrite_ms"),
)


def changes_metadata(entity: Entity, batch: Batch, table: Table, process: str) -> Metadata:
    """Of a batch that landed: what came, how fresh it is, and how much waits now (the UI draws that over time)."""
    counts, details = batch.processes.get(process, {}), batch.report.details
    shown: Metadata = {}
    if table == entity.changeset:
        shown = summary(batch)
        shown |= {name: MetadataValue.int(counts.get(name, 0)) for name in CHANGES}
        shown |= {
            n: MetadataValue.int(v) for n in ("pending_rows", "changeset_batch") if isinstance(v := details.get(n), int)
        }
    shown |= written(counts)
    shown |= rejections(batch.report) if table in {entity.changeset, QUARANTINE} else {}
    return identified(batch, shown)


def moved_metadata(entity: Entity, why: str, batch: Batch, table: Table, process: str) -> Metadata:
    """Of a rematerialization: why it ran, how, and what it cost."""
    if table != entity.base:
        return identified(batch, written(batch.processes.get(process, {})))
    report = batch.report
    details = report.details
    shown: Metadata = {"why": MetadataValue.text(why), "last_rounds": last_rounds(batch.history)}
    shown |= {name: MetadataValue.int(report.counts[name]) for name in MOVED if name in report.counts}
    for name, value in (("watermark", details.get("watermark")), ("pending_rows", details.get("pending_rows"))):
        if isinstance(value, int):
            shown[name] = MetadataValue.int(value)
    for name, detail in (("method", "method"), ("why_method", "why")):
        if isinstance(value := details.get(detail), str):
            shown[name] = MetadataValue.text(value)
    shown["seconds"] = MetadataValue.float(round(report.seconds, 2))
    rounded = {name: round(seconds, 2) for name, seconds in report.process_seconds.items()}
    shown["process_seconds"] = figures_table("process", "seconds", rounded)
    return identified(batch, shown)


def last_rounds(history: Sequence[BatchRecord]) -> MarkdownMetadataValue:
    """A picture of the newest rematerializations; history: newest first."""
    shown, bars = list(reversed(history[:BATCHES_SHOWN])), []
    for record in shown:
        seconds = record.details.get("process_seconds")
        bars.append(Bar(record.counts.get("changes", 0), seconds.get("base") if isinstance(seconds, dict) else None))
    line, numbers = "seconds to write the base", [record.manifest.batch_id for record in shown]
    return MetadataValue.md(series("changes moved", line, "rounds", numbers, bars))

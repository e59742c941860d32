"""What a batch tells about itself in the UI: metadata for each table, and one line for the log. Values only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import dagster as dg
from dagster import MetadataValue

from engagement_platform.defs.plot import Bar, series
from engagement_platform.engine.job import BatchReport
from engagement_platform.engine.model import BatchRecord, Counts, Offsets, accounted
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MAPPING, MUTATION_REQUEST, NOTIFICATION, QUARANTINE
from engagement_platform.pipelines.snapshot import DATA
from engagement_platform.status import freshness_quantiles

Metadata = dict[str, dg.MetadataValue]

BATCHES_SHOWN = 30

PUBLISHERS = frozenset({DATA.name, MUTATION_REQUEST.name})
"""Tables whose commit makes a batch visible: where people look for it."""
FIGURES: Mapping[str, Sequence[str]] = {
    QUARANTINE.name: ("quarantined",),
    MAPPING.name: ("names",),
    CHANGESET.name: ("images",),
    ALIAS.name: ("edges",),
    NOTIFICATION.name: ("notifications", "files", "bytes"),
}
"""Table -> which of its process's counts are about it."""
ROW_COUNTS = ("rows_in", "landed", "inserted", "updated", "duplicates", "quarantined", "unknown_fields")
"""Counts of a whole batch, in the order in which people ask for them."""


@dataclass(frozen=True)
class Batch:
    """A finished batch with what the stores know beside its report."""

    report: BatchReport
    processes: Mapping[str, Counts]
    """Process -> what it did."""
    history: Sequence[BatchRecord]
    """This batch and some before it, newest first."""
    batches: int = 1
    """How many batches these are the sums of."""

    @property
    def freshness(self) -> tuple[float | None, float | None]:
        """Seconds from produced to committed: p50, p95; None where nothing was read."""
        p50, p95 = freshness_quantiles(self.history[: self.batches], (0.5, 0.95))
        return p50, p95


def total(batches: Sequence[Batch]) -> Batch:
    """Batches of one run as one: sums of counts and seconds, offsets from the first start to the last end."""
    reports, last = [batch.report for batch in batches], batches[-1]
    start = {name: offset for report in reversed(reports) for name, offset in report.manifest.start.items()}
    rejected = _sums(rejected_of(report) for report in reports)
    report = replace(
        last.report,
        manifest=replace(last.report.manifest, start=start),
        counts=_sums(report.counts for report in reports),
        details={**last.report.details, **({"rejected": rejected} if rejected else {})},
        process_seconds=_sums(report.process_seconds for report in reports),
        seconds=sum(report.seconds for report in reports),
        replayed=any(report.replayed for report in reports),
    )
    names = dict.fromkeys(name for batch in batches for name in batch.processes)
    processes = {name: _sums(batch.processes.get(name, {}) for batch in batches) for name in names}
    return Batch(report, processes, last.history, len(batches))


def _sums(figures: Iterable[Mapping[str, int]] | Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """By name; those that are zero stay."""
    sums: Counter[str] = Counter()
    for each in figures:
        for name, figure in each.items():
            sums[name] += figure  # type: ignore[assignment]
    return dict(sums)


def table_metadata(batch: Batch, table: Table, process: str) -> Metadata:
    """Of one table: the batch and what was written. On the table that publishes a batch everything about it."""
    counts = batch.processes.get(process, {})
    if table.name in PUBLISHERS:
        return identified(batch, {**summary(batch), **written(counts), **rejections(batch.report)})
    shown = counted(counts, *FIGURES[table.name])
    return identified(batch, shown | (rejections(batch.report) if table == QUARANTINE else {}))


def summary(batch: Batch) -> Metadata:
    """The picture of the last batches, and everything about these."""
    return {"last_batches": last_batches(batch.history), **whole_batch(batch)}


def counted(counts: Counts, *names: str) -> Metadata:
    """Figures by their names; those that are not among the counts are left out."""
    return {name: MetadataValue.int(counts[name]) for name in names if name in counts}


def identified(batch: Batch, shown: Metadata) -> Metadata:
    """What is shown of the batches of a run, between the id of the last one and where they came from."""
    manifest = batch.report.manifest
    return {
        "batch_id": MetadataValue.int(manifest.batch_id),
        "batches": MetadataValue.int(batch.batches),
        **shown,
        "offsets": offsets_table(manifest.start, manifest.end),
        "job": MetadataValue.text(manifest.job),
        "resumed": MetadataValue.bool(batch.report.replayed),
    }


def last_batches(history: Sequence[BatchRecord]) -> dg.MarkdownMetadataValue:
    """A picture of the newest batches; history: newest first."""
    shown = list(reversed(history[:BATCHES_SHOWN]))
    bars = [Bar(record.counts.get("rows_in", 0), freshness_quantiles([record], (0.95,))[0]) for record in shown]
    numbers = [record.manifest.batch_id for record in shown]
    line = "freshness p95, seconds from produced to committed"
    return MetadataValue.md(series("rows in", line, "batches", numbers, bars))


def rejections(report: BatchReport) -> Metadata:
    """Reason codes and records, where any were rejected."""
    rejected = rejected_of(report)
    return {"rejected": figures_table("reason_code", "records", rejected)} if rejected else {}


def written(counts: Counts) -> Metadata:
    """All that a process counted; files and bytes also where it wrote nothing."""
    figures = {"files": 0, "bytes": 0, **{name: value for name, value in counts.items() if name != "commits"}}
    return {name: MetadataValue.int(value) for name, value in figures.items()}


def whole_batch(batch: Batch) -> Metadata:
    """Rows by what became of them, freshness, and where the time went."""
    report = batch.report
    shown: Metadata = {name: MetadataValue.int(report.counts[name]) for name in ROW_COUNTS if name in report.counts}
    for share, seconds in zip(("p50", "p95"), batch.freshness, strict=True):
        if seconds is not None:
            shown[f"freshness_{share}_s"] = MetadataValue.float(round(seconds, 1))
    shown["seconds"] = MetadataValue.float(round(report.seconds, 2))
    rounded = {name: round(seconds, 2) for name, seconds in report.process_seconds.items()}
    shown["process_seconds"] = figures_table("process", "seconds", rounded)
    return shown


def rejected_of(report: BatchReport) -> dict[str, int]:
    """Reason code -> records, of what the batch quarantined; empty too when a resumed batch no longer knows."""
    rejected = report.details.get("rejected")
    return {str(code): int(count) for code, count in rejected.items()} if isinstance(rejected, Mapping) else {}


def offsets_table(start: Offsets, end: Offsets) -> dg.TableMetadataValue:
    """One row a partition. Kafka partitions; a version where a table is the source."""
    records = [
        dg.TableRecord({"partition": name, "start": start.get(name, 0), "end": end[name]})
        for name in sorted(end, key=lambda name: (len(name), name))
    ]
    columns = [dg.TableColumn("partition"), dg.TableColumn("start", "int"), dg.TableColumn("end", "int")]
    return MetadataValue.table(records, dg.TableSchema(columns))


def figures_table(name: str, figure: str, values: Mapping[str, int | float]) -> dg.TableMetadataValue:
    """One row for each name, in their order."""
    records = [dg.TableRecord({name: key, figure: value}) for key, value in sorted(values.items())]
    return MetadataValue.table(records, dg.TableSchema([dg.TableColumn(name), dg.TableColumn(figure, "float")]))


def nothing_recorded(day: date) -> Metadata:
    """Of a day that was asked for again and on which nothing had been ingested, or of which nothing is left to do."""
    text = f"No batch was recorded on {day}; there was nothing to read again."
    return {"batches": MetadataValue.int(0), "note": MetadataValue.text(text)}


def log_line(report: BatchReport) -> str:
    """Id, range, rows, files and seconds of a batch; no content and no keys."""
    manifest, counts = report.manifest, report.counts
    ranges = ", ".join(
        f"{name}: {manifest.start.get(name, 0)}-{manifest.end[name]}"
        for name in sorted(manifest.end, key=lambda name: (len(name), name))
    )
    return (
        f"{manifest}{' (resumed)' if report.replayed else ''}: offsets [{ranges}], {counts.get('rows_in', 0)} in, "
        f"{counts.get('landed', 0)} landed, {counts.get('duplicates', 0)} known, "
        f"{counts.get('quarantined', 0)} quarantined, {_mutated(counts)}{counts.get('files', 0)} files, "
        f"{report.seconds:.1f} s"
    )


def _mutated(counts: Counts) -> str:
    """What announced requests did to readers, or what was moved; nothing to say of any other batch."""
    if "changed_rows" in counts:
        return f"{counts['changed_rows']} rows moved, "
    if "conversions" not in counts:
        return ""
    return "".join(f"{counts.get(kind, 0)} rows {kind}, " for kind in ("inserted", "updated", "deleted"))


def unbalanced(reports: Sequence[BatchReport]) -> list[str]:
    """Batches whose received records are not all landed, known duplicates or quarantined, as sentences."""
    return [
        f"{report.manifest} received {received} and accounts for {accounted(report.counts)}"
        for report in reports
        if (received := report.counts.get("rows_in", 0)) != accounted(report.counts)
    ]

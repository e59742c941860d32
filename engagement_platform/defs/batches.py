"""What the UI shows of the batches of a run: metadata for each table, and a line for the log. Values only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import dagster as dg
from dagster import MetadataValue

from engagement_platform.defs.plot import picture
from engagement_platform.engine.job import BatchReport
from engagement_platform.engine.model import BatchRecord, Counts, Offsets, accounted
from engagement_platform.lake.contract import Table
from engagement_platform.pipelines.status import freshness_quantiles

Metadata = dict[str, dg.MetadataValue | bool | int | float | str]
"""Figures and texts as they are; Dagster shows each by its type."""

BATCHES_SHOWN = 30

ROW_COUNTS = ("rows_in", "landed", "inserted", "updated", "duplicates", "quarantined", "unknown_fields")
"""Counts of a whole batch, in the order in which people ask for them."""


@dataclass(frozen=True)
class Tables:
    """The tables that the batches of a job change, each with the process that writes it."""

    own: Mapping[Table, str]
    """Runs materialize them."""
    others: Mapping[Table, str] = field(default_factory=dict)
    """Tables that are another job's assets: a run that wrote into one observes it. Two jobs that materialize one asset
    side by side would take turns in making its checks "Not evaluated"."""
    publishes: Table | None = None
    """See `summary`."""
    figures: Mapping[Table, Sequence[str]] = field(default_factory=dict)
    """Which counts of its process are about a table; of the others all."""
    always: bool = False
    """Every run observes the others, too."""
    wrote: Mapping[Table, str] = field(default_factory=dict)
    """Which count of its process says how many rows a batch wrote into a table; by default whether it made commits."""
    sparse: bool = False
    """A run materializes of its own tables the first, and those that it wrote into."""
    by_day: bool = False
    """Its own tables have a partition for each day, which can be read again."""

    @property
    def summary(self) -> Table:
        """The table that bears what is known of the whole batch, and the check of it; by default the first."""
        return self.publishes or next(iter({**self.own, **self.others}))

    @property
    def first(self) -> tuple[Table, ...]:
        """Of its own tables those that every run materializes: no rejected record is news, too."""
        return tuple(self.own)[: 1 if self.sparse else None]

    def changed(self, batch: Batch) -> list[Table]:
        """The tables for which there is an event."""

        def wrote_into(table: Table, process: str) -> bool:
            return bool(batch.processes.get(process, {}).get(self.wrote.get(table, "commits"), 0))

        own = [table for table, process in self.own.items() if table in self.first or wrote_into(table, process)]
        return own + [table for table, process in self.others.items() if self.always or wrote_into(table, process)]


@dataclass(frozen=True)
class Batch:
    """A finished batch, or the sums of several, with what the stores know beside its report."""

    report: BatchReport
    processes: Mapping[str, Counts]
    """Process -> what it did."""
    history: Sequence[BatchRecord]
    """This batch and some before it, newest first."""
    batches: int = 1
    """How many batches these are the sums of."""


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
        sums.update(each)
    return dict(sums)


def table_metadata(batch: Batch, tables: Tables, table: Table) -> Metadata:
    """Of one table: the batch, what was written, and on the table of the summary everything about the batch."""
    report, manifest = batch.report, batch.report.manifest
    counts = batch.processes.get({**tables.own, **tables.others}[table], {})
    shown: Metadata = {"batch_id": manifest.batch_id, "batches": batch.batches}
    if table == tables.summary:
        shown |= whole_batch(batch)
    if table in tables.wrote and tables.sparse:
        shown["rows_written"] = counts.get(tables.wrote[table], 0)
    else:
        all_counts = ("files", "bytes", *(name for name in counts if name != "commits"))
        names = tables.figures.get(table, all_counts)
        shown |= {name: counts.get(name, 0) for name in names}
    if (rejected := rejected_of(report)) and (table == tables.summary or table.key[-1].endswith("quarantine")):
        shown["rejected"] = figures_table("reason_code", "records", rejected)
    return shown | {
        "offsets": offsets_table(manifest.start, manifest.end),
        "job": manifest.job,
        "all_batches": f"engagement-platform batches --job {manifest.job}",
        "resumed": report.replayed,
    }


def whole_batch(batch: Batch) -> Metadata:
    """The picture of the last batches, rows by what became of them, freshness, where the time went, and details."""
    report = batch.report
    shown: Metadata = {"last_batches": last_batches(batch.history)}
    names = sorted(
        report.counts.keys() - {"commits"}, key=lambda n: (ROW_COUNTS.index(n) if n in ROW_COUNTS else 99, n)
    )
    shown |= {name: report.counts[name] for name in names}
    for share, seconds in zip((50, 95), freshness_quantiles(batch.history[: batch.batches], (0.5, 0.95)), strict=True):
        if seconds is not None:
            shown[f"freshness_p{share}_s"] = round(seconds, 1)
    shown |= {name: value for name, value in report.details.items() if isinstance(value, str | int | float)}
    shown["seconds"] = round(report.seconds, 2)
    rounded = {name: round(seconds, 2) for name, seconds in report.process_seconds.items()}
    shown["process_seconds"] = figures_table("process", "seconds", rounded)
    return shown


def last_batches(history: Sequence[BatchRecord]) -> dg.MarkdownMetadataValue:
    """A picture of the newest batches; history: newest first."""
    shown = list(reversed(history[:BATCHES_SHOWN]))
    numbers = [record.manifest.batch_id for record in shown]
    drawn = picture(
        "rows in",
        [record.rows for record in shown],
        footer=f"batches {numbers[0]} to {numbers[-1]}" if numbers else "",
        line=[freshness_quantiles([record], (0.95,))[0] for record in shown],
        line_title="freshness p95, seconds from produced to committed",
    )
    return MetadataValue.md(drawn)


def rejected_of(report: BatchReport) -> dict[str, int]:
    """Reason code -> records, of what the batch quarantined; empty too when a resumed batch no longer knows."""
    rejected = report.details.get("rejected")
    return {str(code): int(count) for code, count in rejected.items()} if isinstance(rejected, Mapping) else {}


def offsets_table(start: Offsets, end: Offsets) -> dg.TableMetadataValue:
    """One row a partition. Kafka partitions; a version where a table is the source."""
    names = sorted(end, key=lambda name: (len(name), name))
    records = [dg.TableRecord({"partition": name, "start": start.get(name, 0), "end": end[name]}) for name in names]
    columns = [dg.TableColumn("partition"), dg.TableColumn("start", "int"), dg.TableColumn("end", "int")]
    return MetadataValue.table(records, dg.TableSchema(columns))


def figures_table(name: str, figure: str, values: Mapping[str, int | float]) -> dg.TableMetadataValue:
    """One row for each name, in their order."""
    return rows_table([{name: key, figure: value} for key, value in sorted(values.items())], (name, figure))


def rows_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> dg.TableMetadataValue:
    """Rows as the UI shows them. columns: by default those of the first row."""
    names = columns or list(rows[0])
    schema = dg.TableSchema([dg.TableColumn(name) for name in names])
    return MetadataValue.table([dg.TableRecord(dict(row)) for row in rows], schema)


def nothing_recorded(day: date) -> Metadata:
    """Of a day that was asked for again and on which nothing was recorded."""
    return {"batches": 0, "why": f"No batch was recorded on {day}."}


def log_line(report: BatchReport) -> str:
    """Id, range, counts and seconds of a batch; no content and no keys."""
    manifest = report.manifest
    names = sorted(manifest.end, key=lambda name: (len(name), name))
    ranges = ", ".join(f"{name}: {manifest.start.get(name, 0)}-{manifest.end[name]}" for name in names)
    counts = ", ".join(f"{name} {count:,}" for name, count in report.counts.items() if count)
    resumed = " (resumed)" if report.replayed else ""
    return f"{manifest}{resumed}: offsets [{ranges}], {counts or 'no rows'}, {report.seconds:.1f} s"


def unbalanced(reports: Sequence[BatchReport]) -> list[str]:
    """Batches whose received records are not all landed, known duplicates or quarantined, as sentences.

    Where a batch counts `rows_written` from the logs of its tables, that is compared, too.
    """
    wrong = []
    for report in reports:
        counts = report.counts
        if (received := counts.get("rows_in", 0)) != accounted(counts):
            wrong.append(f"{report.manifest} received {received} and accounts for {accounted(counts)}")
        counted = counts.get("landed", 0) + counts.get("quarantined", 0)
        if (written := counts.get("rows_written", counted)) != counted:
            wrong.append(f"{report.manifest} counts {counted} rows for its tables, whose logs have {written}")
    return wrong

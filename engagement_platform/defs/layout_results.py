"""What an examination of a table's layout shows in the UI: a check result, figures over time, lists. Values only.

`layout/findings` decides what is unhealthy; `layout` decides when tables are examined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import dagster as dg
import pyarrow.compute as pc
from dagster import MetadataValue

from engagement_platform.defs.batches import Metadata, figures_table
from engagement_platform.defs.plot import histogram
from engagement_platform.layout.doctor import Examination
from engagement_platform.layout.finding import Finding
from engagement_platform.layout.findings import CODES
from engagement_platform.layout.statistics import named_buckets

LAYOUT = "layout"
"""Name of the check."""
NO_TABLE = "no table yet"
VERSION = "version"
_WORST = 10
"""Partitions listed with the pictures."""


@dataclass(frozen=True)
class Examined:
    """One table. Neither an examination nor a reason: there is no such table yet."""

    name: str
    examination: Examination | None = None
    unreadable: str | None = None

    @property
    def key(self) -> dg.AssetKey:
        """Of the asset."""
        return dg.AssetKey(self.name.split("/"))

    @property
    def findings(self) -> Sequence[Finding]:
        """All that is wrong with the table, most severe first."""
        return self.examination.findings if self.examination else ()

    @property
    def failing(self) -> list[Finding]:
        """Findings that fail the check; infos are shown and pass."""
        return [finding for finding in self.findings if finding.severity != "info"]


def layout_result(examined: Examined) -> dg.AssetCheckResult:
    """One result for all classes of findings: which, what to do, and the figures of the table."""
    examination, failing = examined.examination, examined.failing
    if examination is None:
        unreadable = examined.unreadable
        return dg.AssetCheckResult(
            passed=unreadable is None,
            asset_key=examined.key,
            check_name=LAYOUT,
            severity=dg.AssetCheckSeverity.WARN,
            description=NO_TABLE if unreadable is None else f"Nobody can tell: {unreadable}",
        )
    error = any(finding.severity == "error" for finding in failing)
    remedies = " ".join(dict.fromkeys(finding.remedy for finding in failing))
    return dg.AssetCheckResult(
        passed=not failing,
        asset_key=examined.key,
        check_name=LAYOUT,
        severity=dg.AssetCheckSeverity.ERROR if error else dg.AssetCheckSeverity.WARN,
        description="; ".join(f"{finding.code}: {finding.what}" for finding in failing) or None,
        metadata={
            **({"remedy": MetadataValue.text(remedies)} if remedies else {}),
            **({"findings": findings_table(examined.findings)} if examined.findings else {}),
            VERSION: MetadataValue.int(examination.statistics.version),
            **{name: MetadataValue.int(figure) for name, figure in figures(examination).items()},
            **_pictures(examination),
        },
    )


def figures(examination: Examination) -> dict[str, int]:
    """What is worth following over time of one table; percentages are whole."""
    totals = examination.statistics.totals
    return {
        "files": totals.files,
        "bytes": totals.bytes,
        "partitions": totals.partitions,
        "small_files": totals.small_files,
        "small_files_percent": round(100 * totals.small_files / totals.files) if totals.files else 0,
        "median_file_bytes": totals.median_file_bytes,
    }


def _pictures(examination: Examination) -> Metadata:
    """Files by size, and the partitions with most files; nothing of a table without files."""
    statistics = examination.statistics
    sizes = named_buckets(statistics.totals.histogram)
    shown: Metadata = {"file_sizes": MetadataValue.md(histogram("files by size", *sizes))} if sizes[0] else {}
    partitions = statistics.partitions
    if not partitions.num_rows:
        return shown
    order = [("files", "descending"), ("partition", "ascending")]
    worst = partitions.sort_by(order).slice(0, _WORST).select(["partition", "files", "small_files", "bytes"])
    columns = [dg.TableColumn("partition"), *(dg.TableColumn(name, "int") for name in worst.column_names[1:])]
    return {
        **shown,
        "most_files_in_a_partition": MetadataValue.int(int(pc.max(partitions.column("files")).as_py())),
        "worst_partitions": MetadataValue.table(
            [dg.TableRecord({**row, "partition": row["partition"] or "the table"}) for row in worst.to_pylist()],
            dg.TableSchema(columns),
        ),
    }


def health_metadata(tables: Sequence[Examined]) -> Metadata:
    """Figures of the lake, of each table, and findings by class, under names that stay, so that the UI plots them."""
    there = [examined.examination for examined in tables if examined.examination]
    found = [finding for examined in tables for finding in examined.findings]
    by_code = Counter(finding.code for finding in found)
    by_table = {
        f"{examination.target.name} {name}": MetadataValue.int(figure)
        for examination in there
        for name, figure in {**figures(examination), "findings": len(examination.findings)}.items()
    }
    unreadable = {examined.name: examined.unreadable for examined in tables if examined.unreadable}
    return {
        "findings": findings_table(found),
        "tables": MetadataValue.int(len(there)),
        **{
            name: MetadataValue.int(sum(figures(examination)[name] for examination in there))
            for name in ("files", "bytes", "small_files")
        },
        "failed": MetadataValue.int(sum(len(examined.failing) for examined in tables)),
        "findings_by_code": figures_table("code", "findings", {code: by_code[code] for code in CODES}),
        **({"unreadable": MetadataValue.json(unreadable)} if unreadable else {}),
        **{f"findings {code}": MetadataValue.int(by_code[code]) for code in CODES},
        **by_table,
    }


def findings_table(found: Iterable[Finding]) -> dg.TableMetadataValue:
    """One row for each finding, most severe first within its table."""
    names = ("severity", "code", "table", "partition", "what", "remedy")
    records = [
        dg.TableRecord(
            {name: getattr(finding, name) or "–" for name in names}
            | {"evidence": ", ".join(f"{name}={value}" for name, value in finding.evidence.items())}
            | {"gain": str(finding.gain or "–")}
        )
        for finding in found
    ]
    return MetadataValue.table(records, dg.TableSchema([dg.TableColumn(name) for name in (*names, "evidence", "gain")]))

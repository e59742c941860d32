"""What an examination of a table's layout shows in the UI: a check result, figures over time, lists. Values only.

`maintenance.layout.findings` decides what is unhealthy; `layout` decides when tables are examined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster import MetadataValue

from engagement_platform.defs.batches import Metadata, figures_table, rows_table
from engagement_platform.defs.evaluations import ERROR, WARN, cannot_tell, check_result
from engagement_platform.defs.plot import picture
from engagement_platform.maintenance.layout.doctor import Examination
from engagement_platform.maintenance.layout.finding import Finding
from engagement_platform.maintenance.layout.findings import CODES
from engagement_platform.maintenance.layout.statistics import named_buckets

LAYOUT = "layout"
"""Name of the check."""
NO_TABLE = "no table yet"
VERSION = "version"
_COLUMNS = ("severity", "code", "table", "partition", "what", "remedy")


@dataclass(frozen=True)
class Examined:
    """One table. Neither an examination nor a reason: there is no such table yet.

    unreadable: why its log cannot be read. version: the newest that it has then, by the names in its log.
    """

    name: str
    examination: Examination | None = None
    unreadable: str | None = None
    version: int | None = None

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
    if examined.unreadable is not None:
        # With the version, so that it is looked at again only once it has another.
        seen: Metadata = {} if examined.version is None else {VERSION: examined.version}
        return cannot_tell(examined.key, LAYOUT, examined.unreadable, seen)
    if examination is None:
        return dg.AssetCheckResult(passed=True, asset_key=examined.key, check_name=LAYOUT, description=NO_TABLE)
    error = any(finding.severity == "error" for finding in failing)
    remedies = " ".join(dict.fromkeys(finding.remedy for finding in failing))
    names, counts = named_buckets(examination.facts.totals.histogram)
    shown: Metadata = {VERSION: examination.facts.seen.shape.version, **figures(examination)}
    shown |= {"remedy": remedies} if remedies else {}
    shown |= {"findings": findings_table(examined.findings)} if examined.findings else {}
    shown |= {"file_sizes": MetadataValue.md(picture("files by size", counts, names=names))} if names else {}
    wrong = "; ".join(f"{finding.code}: {finding.what}" for finding in failing)
    return check_result(examined.key, LAYOUT, wrong, shown, severity=ERROR if error else WARN)


def figures(examination: Examination) -> dict[str, int]:
    """What is worth following over time of one table; percentages are whole."""
    totals = examination.facts.totals
    return {
        "files": totals.files,
        "bytes": totals.bytes,
        "partitions": totals.partitions,
        "small_files": totals.small_files,
        "small_files_percent": round(100 * totals.small_files / totals.files) if totals.files else 0,
        "median_file_bytes": totals.median_file_bytes,
    }


def health_metadata(tables: Sequence[Examined]) -> Metadata:
    """Figures of the lake, of each table, and findings by class, under names that stay, so that the UI plots them."""
    there = [examined.examination for examined in tables if examined.examination]
    found = [finding for examined in tables for finding in examined.findings]
    by_code = Counter(finding.code for finding in found)
    of_all = {name: sum(figures(one)[name] for one in there) for name in ("files", "bytes", "small_files")}
    of_each = {
        f"{one.facts.name} {name}": figure
        for one in there
        for name, figure in {**figures(one), "findings": len(one.findings)}.items()
    }
    failed = sum(len(examined.failing) for examined in tables)
    of_codes = {f"findings {code}": by_code[code] for code in CODES}
    unreadable = {examined.name: examined.unreadable for examined in tables if examined.unreadable}
    return {
        "findings": findings_table(found),
        "findings_by_code": figures_table("code", "findings", {code: by_code[code] for code in CODES}),
        "tables": len(there),
        "failed": failed,
        **of_all,
        **of_codes,
        **of_each,
        **({"unreadable": MetadataValue.json(unreadable)} if unreadable else {}),
    }


def findings_table(found: Iterable[Finding]) -> dg.TableMetadataValue:
    """One row for each finding, most severe first within its table."""
    rows = [
        {name: getattr(finding, name) or "–" for name in _COLUMNS}
        | {"evidence": ", ".join(f"{name}={value}" for name, value in finding.evidence.items())}
        | {"gain": str(finding.gain or "–")}
        for finding in found
    ]
    return rows_table(rows, (*_COLUMNS, "evidence", "gain"))

"""What an examination of a table's layout says in the UI: check results, figures over time, lists. Values only.

What is unhealthy is decided in `layout/findings`; when tables are examined is `layout`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import dagster as dg
import pyarrow.compute as pc
from dagster import MetadataValue

from engagement_platform.defs.batches import Metadata, figures_table
from engagement_platform.defs.histogram import markdown
from engagement_platform.layout.doctor import Examination
from engagement_platform.layout.finding import Finding
from engagement_platform.layout.findings import CODES
from engagement_platform.layout.statistics import doubling_buckets, named_buckets

NO_TABLE = "no table yet"
NOT_LOOKED_AT = "not looked at"
PICTURED = "small_files"
"""The check whose result carries the pictures."""
VERSION = "version"
WHOLE = "layout"
"""The one check of a table that is one of many: all findings in one result."""
_WORST = 10
"""Partitions listed with the pictures."""


@dataclass(frozen=True)
class Looked:
    """What a look at a table came to. Neither an examination nor a reason: there is no such table yet."""

    name: str
    examination: Examination | None = None
    unreadable: str | None = None

    @property
    def findings(self) -> Sequence[Finding]:
        """All that is wrong with the table, most severe first."""
        return self.examination.findings if self.examination else ()

    def of(self, code: str) -> list[Finding]:
        """Findings of one class, most severe first."""
        return [finding for finding in self.findings if finding.code == code]


def fails(finding: Finding) -> bool:
    """Whether a finding fails its check; infos are told and pass."""
    return finding.severity != "info"


def check_results(looked: Looked) -> list[dg.AssetCheckResult]:
    """One result for each class of findings, in the order of CODES."""
    return [_check_result(looked, code) for code in CODES]


def _check_result(looked: Looked, code: str) -> dg.AssetCheckResult:
    asset = dg.AssetKey(looked.name.split("/"))
    if looked.unreadable is not None:
        return dg.AssetCheckResult(
            passed=False,
            asset_key=asset,
            check_name=code,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"Nobody can tell: {looked.unreadable}",
        )
    if looked.examination is None:
        return dg.AssetCheckResult(passed=True, asset_key=asset, check_name=code, description=NO_TABLE)
    found, unseen = looked.of(code), looked.examination.not_looked_at.get(code)
    error = any(finding.severity == "error" for finding in found)
    says = [*(finding.what for finding in found), *([f"{NOT_LOOKED_AT}: {unseen}"] if unseen else [])]
    return dg.AssetCheckResult(
        # Green would say that all is well.
        passed=unseen is None and not any(map(fails, found)),
        asset_key=asset,
        check_name=code,
        severity=dg.AssetCheckSeverity.ERROR if error else dg.AssetCheckSeverity.WARN,
        description="; ".join(says) or None,
        metadata={
            **(_of_finding(found[0]) if found else {}),
            **({"also": MetadataValue.json([finding.as_json() for finding in found[1:]])} if found[1:] else {}),
            **_of_table(looked.examination),
            **(_pictures(looked.examination) if code == PICTURED else {}),
        },
    )


def whole_result(looked: Looked) -> dg.AssetCheckResult:
    """One result for all classes of findings: which, what to do, and the table's figures."""
    asset = dg.AssetKey(looked.name.split("/"))
    if looked.unreadable is not None or looked.examination is None:
        nobody = f"Nobody can tell: {looked.unreadable}"
        return dg.AssetCheckResult(
            passed=looked.unreadable is None,
            asset_key=asset,
            check_name=WHOLE,
            severity=dg.AssetCheckSeverity.WARN,
            description=NO_TABLE if looked.unreadable is None else nobody,
        )
    failing = [finding for finding in looked.findings if fails(finding)]
    unseen = [f"{code} {NOT_LOOKED_AT}: {why}" for code, why in looked.examination.not_looked_at.items()]
    error = any(finding.severity == "error" for finding in failing)
    return dg.AssetCheckResult(
        passed=not failing and not unseen,
        asset_key=asset,
        check_name=WHOLE,
        severity=dg.AssetCheckSeverity.ERROR if error else dg.AssetCheckSeverity.WARN,
        description="; ".join([*(f"{finding.code}: {finding.what}" for finding in failing), *unseen]) or None,
        metadata={
            **({"findings": findings_table(looked.findings)} if looked.findings else {}),
            **_of_table(looked.examination),
            **_sizes(looked.examination),
        },
    )


def _of_finding(finding: Finding) -> Metadata:
    shown: Metadata = {
        "what": MetadataValue.text(finding.what),
        "remedy": MetadataValue.text(finding.remedy),
        "severity": MetadataValue.text(finding.severity),
        "evidence": MetadataValue.json(dict(finding.evidence)),
    }
    if finding.partition:
        shown["worst_partition"] = MetadataValue.text(finding.partition)
    if finding.gain:
        shown["predicted_gain"] = MetadataValue.text(str(finding.gain))
        shown["predicted"] = MetadataValue.json(finding.gain.as_json())
    return shown


def _of_table(examination: Examination) -> Metadata:
    return {
        VERSION: MetadataValue.int(examination.statistics.version),
        **{name: MetadataValue.int(figure) for name, figure in figures(examination).items()},
    }


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
    """Files by size, partitions by files, and the partitions with most files; nothing of a table without files."""
    partitions = examination.statistics.partitions
    if not partitions.num_rows:
        return {}
    counts = doubling_buckets(partitions.column("files"))
    order = [("files", "descending"), ("partition", "ascending")]
    worst = partitions.sort_by(order).slice(0, _WORST).select(["partition", "files", "small_files", "bytes"])
    columns = [dg.TableColumn("partition"), *(dg.TableColumn(name, "int") for name in worst.column_names[1:])]
    return {
        **_sizes(examination),
        "files_per_partition": MetadataValue.md(markdown("partitions by number of files", *counts)),
        "most_files_in_a_partition": MetadataValue.int(int(pc.max(partitions.column("files")).as_py())),
        "worst_partitions": MetadataValue.table(
            [dg.TableRecord({**row, "partition": row["partition"] or "the table"}) for row in worst.to_pylist()],
            dg.TableSchema(columns),
        ),
    }


def _sizes(examination: Examination) -> Metadata:
    """A picture of files by size; nothing of a table without files."""
    sizes = named_buckets(examination.statistics.totals.histogram)
    return {"file_sizes": MetadataValue.md(markdown("files by size", *sizes))} if sizes[0] else {}


def health_metadata(looked: Sequence[Looked]) -> Metadata:
    """Figures of the lake, of each table, and findings by class, under names that stay, so that the UI plots them."""
    there = [look.examination for look in looked if look.examination]
    found = [finding for look in looked for finding in look.findings]
    by_code = Counter(finding.code for finding in found)
    by_table = {
        f"{examination.target.name} {name}": MetadataValue.int(figure)
        for examination in there
        for name, figure in {**figures(examination), "findings": len(examination.findings)}.items()
    }
    unreadable = {look.name: look.unreadable for look in looked if look.unreadable}
    unseen = {one.target.name: dict(one.not_looked_at) for one in there if one.not_looked_at}
    return {
        "findings": findings_table(found),
        "tables": MetadataValue.int(len(there)),
        "files": MetadataValue.int(sum(figures(examination)["files"] for examination in there)),
        "bytes": MetadataValue.int(sum(figures(examination)["bytes"] for examination in there)),
        "small_files": MetadataValue.int(sum(figures(examination)["small_files"] for examination in there)),
        "failed": MetadataValue.int(sum(map(fails, found))),
        "findings_by_code": figures_table("code", "findings", {code: by_code[code] for code in CODES}),
        **({"unreadable": MetadataValue.json(unreadable)} if unreadable else {}),
        **({"not_looked_at": MetadataValue.json(unseen)} if unseen else {}),
        **{f"findings {code}": MetadataValue.int(by_code[code]) for code in CODES},
        **by_table,
    }


def findings_table(found: Iterable[Finding]) -> dg.TableMetadataValue:
    """One row for each finding, most severe first within its table."""
    names = ("severity", "code", "table", "partition", "what", "remedy", "gain")
    records = [
        dg.TableRecord(
            {
                "severity": finding.severity,
                "code": finding.code,
                "table": finding.table,
                "partition": finding.partition or "–",
                "what": finding.what,
                "remedy": finding.remedy,
                "gain": str(finding.gain),
            }
        )
        for finding in found
    ]
    return MetadataValue.table(records, dg.TableSchema([dg.TableColumn(name) for name in names]))

"""Examines the layout of one table: measures, judges, predicts. Reads its log; writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow.compute as pc

from engagement_platform.maintenance.layout import files
from engagement_platform.maintenance.layout.files import UNNAMED
from engagement_platform.maintenance.layout.finding import Facts, Finding
from engagement_platform.maintenance.layout.findings import findings
from engagement_platform.maintenance.layout.statistics import BUCKETS, totals_of
from engagement_platform.maintenance.layout.survey import Survey, Target, clustering_column, in_lake, survey
from engagement_platform.settings import Settings

_WORST_BY = ("small_files", "files", "depth", "bytes")
"""What decides which partitions are listed when not all are; the first that differs."""


@dataclass(frozen=True)
class Examination:
    """What a table's log says of its layout, and what is wrong with it."""

    facts: Facts
    findings: tuple[Finding, ...]

    def as_json(self, worst: int = 0) -> dict[str, object]:
        """The table with the names that JSON output has; findings are listed apart. worst: at most so many partitions,
        the worst first.
        """
        seen, totals = self.facts.seen, self.facts.totals
        recent, z_ordered = seen.recent, seen.recent.z_ordered
        # Nulls, the depth of partitions without bounds, come last.
        order = [*((name, "descending") for name in _WORST_BY), ("partition", "ascending")]
        return {
            "table": seen.target.name,
            "uri": seen.target.uri,
            "version": seen.shape.version,
            "partitioned_by": list(seen.shape.partitioned_by),
            "clustered_by": [seen.clustering] if seen.clustering else [],
            **asdict(totals),
            "histogram": dict(zip(map(str, BUCKETS), totals.histogram, strict=True)),
            "largest_partition_files": int(pc.max(seen.partitions["files"]).as_py() or 0),
            "overlap_depth": pc.max(seen.partitions["depth"]).as_py(),
            "worst_partitions": [_as_json(row) for row in seen.partitions.sort_by(order).slice(0, worst).to_pylist()],
            "checkpoint_version": recent.checkpoint,
            "versions_since_optimize": recent.versions_since_optimize,
            "z_ordered_version": z_ordered.version if z_ordered else None,
            "z_ordered_at": z_ordered.at.isoformat() if z_ordered and z_ordered.at else None,
            "commits_looked_at": len(recent.commits),
            "removed_files_due": len(self.facts.due),
        }


def _as_json(row: Mapping[str, Any]) -> dict[str, object]:
    bounds = {end: row[end].isoformat() if isinstance(row[end], date) else row[end] for end in ("low", "high")}
    named = {name: row[name] for name in ("partition", "files", "bytes", "rows", "small_files")}
    texts = {end: None if bound is None else str(bound) for end, bound in bounds.items()}
    return {**named, "overlap_depth": row["depth"], **texts}


def examine(
    settings: Settings, table: Target, *, clustering: str | None = None, now: datetime | None = None
) -> Examination:
    """Measure and judge one table.

    clustering: the column whose ranges decide which files are skipped; default: see `survey`.
    Raises NotADeltaTable, LogNotReadable, UnknownColumn.
    """
    limits = settings.health
    seen = survey(settings, table, clustering=clustering)
    unnamed = seen.live.column("path").filter(pc.equal(seen.live.column("codec"), UNNAMED)).to_pylist()
    facts = Facts(
        seen=seen,
        totals=totals_of(seen.live, seen.partitions, limits.small_file_bytes),
        due=due(seen, now or datetime.now(UTC)),
        compressed=files.sample_footers(table.uri, unnamed, limits.footer_samples),
        shuffle_partitions=settings.spark.shuffle_partitions,
        ours=in_lake(settings, table),
        orders=seen.clustering == clustering_column(table, seen.shape, seen.recent, None),
    )
    return Examination(facts, tuple(findings(facts, limits)))


def due(seen: Survey, now: datetime) -> list[int]:
    """Bytes of each removed file that VACUUM would delete, as the log says, without those that the last one deleted.

    None of a table whose retention cannot be read, of which VACUUM is refused.
    """
    keep, last_vacuum = files.retention(seen.shape.properties), seen.recent.last_vacuum
    if keep is None:
        return []
    gone_before = 0.0 if last_vacuum is None else (last_vacuum - keep).timestamp() * 1000
    before = (now - keep).timestamp() * 1000
    return [removed.bytes for removed in seen.recent.removed.values() if gone_before <= removed.at_ms < before]

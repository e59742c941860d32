"""Examines the layout of one table: measures, judges, predicts. Reads its log; writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow.compute as pc

from engagement_platform.layout import files, statistics
from engagement_platform.layout.delta_log import Recent
from engagement_platform.layout.files import UNNAMED
from engagement_platform.layout.finding import Due, Facts, Finding
from engagement_platform.layout.findings import findings
from engagement_platform.layout.statistics import Statistics
from engagement_platform.layout.survey import Survey, Target, clustering_column, in_lake, survey
from engagement_platform.settings import Settings


@dataclass(frozen=True)
class Examination:
    """What a table's log says of its layout, and what is wrong with it."""

    target: Target
    statistics: Statistics
    recent: Recent
    due: Due
    findings: tuple[Finding, ...]

    def as_json(self, worst: int = 0) -> dict[str, object]:
        """The table with the names that JSON output has; findings are listed apart. worst: at most so many partitions,
        the worst first.
        """
        z_ordered = self.recent.z_ordered
        return {
            **self.statistics.as_json(worst),
            "checkpoint_version": self.recent.checkpoint,
            "versions_since_optimize": self.recent.versions_since_optimize,
            "z_ordered_version": z_ordered.version if z_ordered else None,
            "z_ordered_at": z_ordered.at.isoformat() if z_ordered and z_ordered.at else None,
            "commits_looked_at": len(self.recent.commits),
            "removed_files_due": self.due.files,
        }


def examine(
    settings: Settings, table: Target, *, clustering: str | None = None, now: datetime | None = None
) -> Examination:
    """Measure and judge one table.

    clustering: the column whose ranges decide which files are skipped; default: see `survey`.
    Raises NotADeltaTable, LogNotReadable, UnknownColumn.
    """
    limits = settings.health
    seen = survey(settings, table, clustering=clustering)
    summed = Statistics(
        table=table.name,
        uri=table.uri,
        version=seen.shape.version,
        partitioned_by=seen.shape.partitioned_by,
        clustering=(seen.clustering,) if seen.clustering else (),
        totals=statistics.totals_of(seen.live, seen.partitions, limits.small_file_bytes),
        partitions=seen.partitions,
    )
    unnamed = seen.live.column("path").filter(pc.equal(seen.live.column("codec"), UNNAMED)).to_pylist()
    facts = Facts(
        statistics=summed,
        shape=seen.shape,
        recent=seen.recent,
        due=due(seen, now or datetime.now(UTC)),
        footers=files.sample_footers(table.uri, unnamed, limits.footer_samples),
        shuffle_partitions=settings.spark.shuffle_partitions,
        ours=in_lake(settings, table),
        orders=seen.clustering == clustering_column(table, seen.shape, seen.recent, None),
    )
    return Examination(table, summed, seen.recent, facts.due, tuple(findings(facts, limits)))


def due(seen: Survey, now: datetime) -> Due:
    """Removed files that VACUUM would delete, as the log says; those that the last one deleted are left out."""
    keep, last_vacuum = files.retention(seen.shape.properties), seen.recent.last_vacuum
    gone_before = 0.0 if last_vacuum is None else (last_vacuum - keep).timestamp() * 1000
    before = (now - keep).timestamp() * 1000
    sizes = [removed.bytes for removed in seen.recent.removed.values() if gone_before <= removed.at_ms < before]
    return Due(len(sizes), sum(sizes))

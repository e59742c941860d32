"""Examines the layout of one table: measures, judges, predicts. Reads its log and lists its folder; writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow.compute as pc

from engagement_platform.layout import disk, files, statistics
from engagement_platform.layout.delta_log import Recent
from engagement_platform.layout.disk import Leftovers
from engagement_platform.layout.files import UNNAMED
from engagement_platform.layout.finding import Facts, Finding
from engagement_platform.layout.findings import findings
from engagement_platform.layout.statistics import Statistics
from engagement_platform.layout.survey import Survey, Target, clustering_column, in_lake, survey
from engagement_platform.settings import Settings


@dataclass(frozen=True)
class Examination:
    """What a table's log says of its layout, and what is wrong with it; every finding carries what mending gains."""

    target: Target
    statistics: Statistics
    recent: Recent
    leftovers: Leftovers
    findings: tuple[Finding, ...]
    since_optimize: Mapping[str, int]
    """Commits since the newest OPTIMIZE of a partition, by its name; not of those for which it is too long ago."""

    @property
    def not_looked_at(self) -> Mapping[str, str]:
        """Codes that nobody can tell anything about, with the reason: no finding of them is no good sign."""
        why = self.leftovers.unlisted
        return {} if why is None else {"orphan_files": why}

    def as_json(self, worst: int = 0) -> dict[str, object]:
        """The table with the names that JSON output has; findings are listed apart. worst: at most so many partitions,
        the worst first.
        """
        z_ordered = self.recent.z_ordered
        return {
            **self.statistics.as_json(worst, self.since_optimize),
            "checkpoint_version": self.recent.checkpoint,
            "versions_since_optimize": self.recent.versions_since_optimize,
            "z_ordered_version": z_ordered.version if z_ordered else None,
            "z_ordered_at": z_ordered.at.isoformat() if z_ordered and z_ordered.at else None,
            "commits_looked_at": len(self.recent.commits),
            "removed_files_waiting": self.leftovers.waiting.files,
            "removed_files_due": self.leftovers.due.files,
            "not_looked_at": dict(self.not_looked_at),
        }


def examine(
    settings: Settings, table: Target, *, clustering: str | None = None, now: datetime | None = None
) -> Examination:
    """Measure and judge one table.

    clustering: the column whose ranges decide which files are skipped; default: see `survey`. The folder is listed for
    orphans and removed files up to `health.listed_files` live files.
    Raises NotADeltaTable, LogNotReadable, UnknownColumn.
    """
    limits = settings.health
    seen = survey(settings, table, clustering=clustering)
    what, lately, live = seen.shape, seen.recent, seen.live
    summed = Statistics(
        table=table.name,
        uri=table.uri,
        version=what.version,
        partitioned_by=what.partitioned_by,
        clustering=(seen.clustering,) if seen.clustering else (),
        totals=statistics.totals_of(live, seen.partitions, limits.small_file_bytes),
        partitions=seen.partitions,
    )
    unnamed = live.column("path").filter(pc.equal(live.column("codec"), UNNAMED)).to_pylist()
    facts = Facts(
        statistics=summed,
        shape=what,
        recent=lately,
        leftovers=disk.leftovers_of(
            seen,
            keep=disk.retention(what.properties),
            orphan_age=limits.orphan_age,
            now=now or datetime.now(UTC),
            listed_files=limits.listed_files,
        ),
        footers=files.sample_footers(table.uri, unnamed, limits.footer_samples),
        shuffle_partitions=settings.spark.shuffle_partitions,
        ours=in_lake(settings, table),
        orders=seen.clustering == clustering_column(table, what, lately, None),
    )
    found = tuple(findings(facts, limits))
    return Examination(table, summed, lately, facts.leftovers, found, _since_optimize(seen))


def _since_optimize(seen: Survey) -> dict[str, int]:
    stored = [(name, seen.shape.leaves.get(name, name)) for name in seen.shape.partitioned_by]
    return {
        "/".join(f"{name}={dict(values).get(key) or files.NULL_PARTITION}" for name, key in stored): since
        for values, since in seen.recent.rewritten.items()
    }

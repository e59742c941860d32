"""What is unhealthy about a table's layout: every rule, from measured facts to findings with stable codes.

Pure. Measuring is `doctor`, what mending would gain is `remedies`. A figure exactly at a limit is healthy, and so is a
table without files. Each rule is called as the code of its findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.maintenance.layout import remedies
from engagement_platform.maintenance.layout.files import UNNAMED
from engagement_platform.maintenance.layout.finding import Facts, Finding, more_than_share
from engagement_platform.maintenance.layout.remedies import readable
from engagement_platform.maintenance.layout.statistics import total
from engagement_platform.settings import HealthSettings

FAR = 10
"""So many times a limit is an error and no longer a warning (a guess)."""

Rule = Callable[[Facts, HealthSettings], Iterator[Finding]]


def findings(facts: Facts, limits: HealthSettings) -> list[Finding]:
    """Everything that is wrong, most severe first, otherwise in the order of RULES."""
    found = [finding for rule in RULES for finding in rule(facts, limits)]
    return sorted(found, key=lambda finding: ("error", "warning", "info").index(finding.severity))


def _most(rows: pa.Table, by: str) -> dict[str, Any]:
    """The row with the largest figure; of equals the first by name."""
    first: dict[str, Any] = rows.sort_by([(by, "descending"), ("partition", "ascending")]).slice(0, 1).to_pylist()[0]
    return first


def small_files(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Partitions that are mostly small files, or a table cut into too fine partitions."""
    rows, totals = facts.seen.partitions, facts.totals
    count, small = rows.column("files"), rows.column("small_files")
    share = pc.multiply(count, round(limits.small_file_share * 1_000_000))
    mostly = pc.greater(pc.multiply(small, 1_000_000), share)
    affected = rows.filter(pc.and_(mostly, pc.greater_equal(small, limits.min_small_files)))
    flagged = total(affected["small_files"])
    if affected.num_rows:
        worst, files = _most(affected, "small_files"), total(affected["files"])
        partitions = f" of {affected.num_rows:,} of {totals.partitions:,} partitions"
        where = partitions if facts.partitioned_by else ""
        example = f"; {worst['partition']} has" if worst["partition"] else ":"
        yield facts.wrong(
            small_files,
            "warning" if worst["small_files"] >= limits.warn_small_files else "info",
            {
                "small_files": flagged,
                "files": files,
                "mean_bytes": total(affected["bytes"]) // files,
                "small_below_bytes": limits.small_file_bytes,
                **facts.worst(affected, "small_files"),
            },
            f"Most files{where} are smaller than {readable(limits.small_file_bytes)}{example} "
            f"{worst['small_files']:,} of {worst['files']:,}",
            f"Compact it: {facts.optimize()}; or switch on auto compaction for its writers",
            facts.rewriting(affected, limits),
            worst["partition"],
        )
    # Many small files that no compaction can merge, because each is nearly alone in its partition.
    lone, columns = totals.small_files - flagged, facts.partitioned_by
    if lone > limits.max_lone_small_files and more_than_share(lone, totals.files, limits.small_file_share):
        coarser = f"partition by {', '.join(columns[:-1])} only and Z-order by {columns[-1]}" if columns[1:] else ""
        mean = totals.small_bytes // totals.small_files
        yield facts.wrong(
            small_files,
            "warning" if coarser else "info",
            {"small_files": lone, "files": totals.files, "partitions": totals.partitions, "mean_bytes": mean},
            f"{lone:,} of {totals.files:,} files are small and (nearly) alone in their partitions, so OPTIMIZE cannot "
            "merge them: the partitions are too fine",
            "Rewrite the table with coarser partitions: "
            f"{coarser or 'none, with liquid clustering (CLUSTER BY) instead'}",
        )


def too_many_files(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Partitions with more files than a writer can list and rewrite quickly."""
    rows, limit = facts.seen.partitions, limits.max_files_per_partition
    affected = rows.filter(pc.greater(rows.column("mergeable_files"), limit))
    if not affected.num_rows:
        return
    worst = _most(affected, "mergeable_files")
    # The daily round leaves files of more than a third of the target: merging them saves fewer files than
    # `maintenance.max_rewrite_share` asks for.
    large = total(affected["mergeable_bytes"]) * 3 > total(affected["mergeable_files"]) * limits.target_file_bytes
    yield facts.wrong(
        too_many_files,
        "error" if worst["mergeable_files"] > FAR * limit else "warning",
        {"files": worst["files"], "limit": limit, **facts.worst(affected, "files")},
        f"{worst['files']:,} files in {worst['partition'] or 'the table'}; a mutation has to look into each of them",
        f"Compact it: {facts.optimize(' --second-round' if large else '')}",
        facts.rewriting(affected, limits),
        worst["partition"],
    )


def skewed_partitions(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """One partition that holds far more than the middle one: the task that rewrites it runs alone."""
    rows, median = facts.seen.partitions, max(1, facts.totals.median_partition_bytes)
    if rows.num_rows < 2:
        return
    worst = _most(rows, "bytes")
    if worst["bytes"] <= max(limits.skew_bytes, limits.skew_ratio * median):
        return
    yield facts.wrong(
        skewed_partitions,
        "info",
        {"bytes": worst["bytes"], "median_bytes": median, "ratio": round(worst["bytes"] / median, 1)},
        f"{worst['partition']} holds {readable(worst['bytes'])}, {worst['bytes'] / median:,.0f} times the median of "
        f"{readable(median)}; a task for it runs long after the others",
        "Cluster large partitions by a second column (ZORDER BY) so that jobs touch a part of them, or lay the table "
        "out by liquid clustering, which cuts by size",
        remedies.zorder(rows.filter(pc.equal(rows["partition"], worst["partition"])), limits.target_file_bytes),
        worst["partition"],
    )


def scattered_writes(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Writers that leave several small files in each partition they touch."""
    mean, worst = facts.seen.recent.scattered
    if worst is None or mean <= limits.scattered_files:
        return
    yield facts.wrong(
        scattered_writes,
        "warning",
        {
            "files_per_partition_and_commit": round(mean, 1),
            "worst_version": worst.version,
            "worst_files": worst.small_files_added,
            "worst_partitions": worst.small_partitions_touched,
            "commits_looked_at": len(facts.seen.recent.commits),
        },
        f"Each commit adds {mean:,.1f} small files to a partition it touches; a writer repartitioned by partition "
        "adds 1",
        f"Let the writer repartition by {', '.join(facts.partitioned_by) or 'fewer tasks'} before it "
        "writes, or set spark.databricks.delta.optimizeWrite.enabled=true",
    )


def parallelism_limit(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Too few tasks for the bytes: a rewrite of the table is bound by the number of shuffle partitions."""
    totals, tasks = facts.totals, facts.shuffle_partitions
    if totals.bytes <= limits.max_task_bytes * tasks:
        return
    wanted = -(-totals.bytes // limits.target_file_bytes)
    yield facts.wrong(
        parallelism_limit,
        "warning",
        {
            "setting": "spark.shuffle_partitions",
            "value": tasks,
            "suggested": wanted,
            "bytes_per_task": totals.bytes // tasks,
            "limit_bytes": limits.max_task_bytes,
            "largest_partition_bytes": pc.max(facts.seen.partitions["bytes"]).as_py(),
        },
        f"When the table is rewritten, {readable(totals.bytes)} go through {tasks} tasks, "
        f"{readable(totals.bytes // tasks)} each",
        f"Raise spark.shuffle_partitions towards {wanted:,}, and give Spark the cores to run them",
    )


def clustering_overlap(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Ranges of the clustering column that lie so deep on each other that few files can be skipped."""
    rows = facts.seen.partitions
    if facts.seen.clustering is None:
        return
    # Files of one same value do not differ by their ranges, they are only merged; of the others a curve through n
    # columns leaves each value in about files ** (1 - 1 / n).
    columns = max(1, len(facts.seen.recent.clustered_by))
    merged = pc.divide(rows["bytes"].cast(pa.float64()), float(limits.target_file_bytes))
    alone = pc.divide(rows["single_value_bytes"].cast(pa.float64()), float(limits.target_file_bytes))
    best = pc.max_element_wise(alone, pc.power(merged, 1 - 1 / columns), 1.0)
    deep = pc.greater(rows["depth"], limits.max_overlap_depth)
    gains = pc.greater_equal(rows["depth"], pc.multiply(best, 2))
    affected = rows.filter(pc.fill_null(pc.and_(deep, gains), False))
    if not affected.num_rows:
        return
    worst = _most(affected, "depth")
    # Few small files of one partition overlap between two compactions, always.
    passing = worst["depth"] < limits.warn_small_files and pc.max(affected["bytes"]).as_py() <= limits.target_file_bytes
    yield facts.wrong(
        clustering_overlap,
        "info" if passing else "warning",
        {
            "column": facts.seen.clustering,
            "depth": worst["depth"],
            "files": worst["files"],
            "versions_since_optimize": facts.seen.recent.versions_since_optimize,
            "z_ordered_version": facts.seen.recent.z_ordered.version if facts.seen.recent.z_ordered else None,
            **facts.worst(affected, "depth"),
        },
        f"Up to {worst['depth']:,} of {worst['files']:,} files in {worst['partition'] or 'the table'} may hold one "
        f"same {facts.seen.clustering}, so a read of one opens all of them",
        f"Cluster it: {facts.optimize()}",
        remedies.zorder(affected, limits.target_file_bytes),
        worst["partition"],
    )


def unindexed_clustering(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """A clustering column without bounds in the log: its files can never be skipped."""
    column, totals, properties = facts.seen.clustering, facts.totals, facts.seen.shape.properties
    if column is None:
        return
    indexed = column in facts.seen.shape.indexed
    if indexed and not more_than_share(totals.files_without_bounds, totals.files, limits.unindexed_file_share):
        return
    position = list(facts.seen.shape.leaves).index(column) + 1
    declare = (
        f"ALTER TABLE delta.`{facts.seen.target.uri}` SET TBLPROPERTIES "
        f"('delta.dataSkippingStatsColumns' = '{column}'), then "
    )
    most = properties.get("delta.dataSkippingNumIndexedCols", "32")
    yield facts.wrong(
        unindexed_clustering,
        "warning",
        {
            "column": column,
            "leaf_position": position,
            "indexed": indexed,
            "indexed_columns": properties.get("delta.dataSkippingStatsColumns", most),
            "files_without_bounds": totals.files_without_bounds,
            "files": totals.files,
        },
        f"{totals.files_without_bounds:,} of {totals.files:,} files have no bounds of {column}, so no read by it "
        "skips them"
        if indexed
        else f"{column}, leaf column {position}, is outside the columns that writers keep bounds of",
        f"{'' if indexed else declare}rewrite the files so that they get bounds: {facts.optimize_sql}",
        remedies.zorder(facts.seen.partitions, limits.target_file_bytes),
    )


def uncompressed(facts: Facts, _limits: HealthSettings) -> Iterator[Finding]:
    """Files that are not compressed, by their names and the footers of a sample."""
    read, plain, unnamed = len(facts.compressed), facts.compressed.count(False), facts.totals.codecs.get(UNNAMED, 0)
    if not plain:
        return
    yield facts.wrong(
        uncompressed,
        "warning",
        {"files_without_named_codec": unnamed, "footers_read": read, "footers_uncompressed": plain},
        f"{plain:,} of {read:,} footers that were read say UNCOMPRESSED; {unnamed:,} files do not name a codec",
        "Set spark.sql.parquet.compression.codec (zstd or snappy) for its writers, then rewrite the files: "
        f"REORG or {facts.optimize_sql}",
    )


def stale_checkpoint(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """A log whose readers must replay many commits."""
    lag, limit = facts.seen.recent.checkpoint_lag, limits.max_commits_without_checkpoint
    if lag <= limit:
        return
    yield facts.wrong(
        stale_checkpoint,
        "error" if lag > FAR * limit else "warning",
        {
            "version": facts.seen.recent.version,
            "checkpoint_version": facts.seen.recent.checkpoint,
            "commits_since": lag,
        },
        f"{lag:,} commits came after the newest checkpoint; every reader replays them one by one",
        "Make one (deltalake: DeltaTable(path).create_checkpoint()), and set delta.checkpointInterval; a writer that "
        "makes none may fail to each time: read its log",
    )


def vacuum_due(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Removed files that nobody may need any more and that still take up room."""
    due, size, live = len(facts.due), sum(facts.due), facts.totals.bytes
    if not due or not more_than_share(size, live, limits.vacuum_share):
        return
    yield facts.wrong(
        vacuum_due,
        "warning",
        {"due_files": due, "due_bytes": size, "live_bytes": live},
        f"{due:,} removed files of {readable(size)} are past their retention; the live ones hold {readable(live)}",
        f"Remove them: {facts.command('vacuum', f'VACUUM delta.`{facts.seen.target.uri}`')}; the command keeps what "
        "readers and restores may still need",
    )


RULES: tuple[Rule, ...] = (
    small_files,
    too_many_files,
    skewed_partitions,
    scattered_writes,
    parallelism_limit,
    clustering_overlap,
    unindexed_clustering,
    uncompressed,
    stale_checkpoint,
    vacuum_due,
)

CODES = tuple(rule.__name__ for rule in RULES)

"""Rules about how many files there are, how large they are, and how they are spread over partitions and ranges.

Pure. Rules about the log, the folder and the columns are in `log_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.layout import remedies
from engagement_platform.layout.finding import (
    FAR,
    Facts,
    Finding,
    more_than_share,
    most,
    partitions_of,
    readable,
    total,
)
from engagement_platform.layout.remedies import Prediction
from engagement_platform.settings import HealthSettings


def small_files(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Partitions that are mostly small files, or a table cut into too fine partitions."""
    rows = facts.statistics.partitions
    count, small = rows.column("files"), rows.column("small_files")
    share = pc.multiply(count.cast(pa.int64()), round(limits.small_file_share * 1_000_000))
    mostly = pc.greater(pc.multiply(small.cast(pa.int64()), 1_000_000), share)
    affected = rows.filter(pc.and_(mostly, pc.greater_equal(small, limits.min_small_files)))
    if affected.num_rows:
        worst = most(affected, "small_files")
        small_there = int(worst["small_files"])
        evidence = {
            "small_files": total(affected, "small_files"),
            "files": total(affected, "files"),
            "mean_bytes": total(affected, "bytes") // max(1, total(affected, "files")),
            "small_below_bytes": limits.small_file_bytes,
            **partitions_of(facts, affected, "small_files"),
        }
        yield Finding(
            "small_files",
            "warning" if small_there >= limits.warn_small_files else "info",
            facts.statistics.table,
            worst["partition"] or None,
            evidence,
            _mostly_small(facts, affected.num_rows, worst, limits),
            f"Compact it: {facts.optimize}; or switch on auto compaction for its writers",
            _rewriting(facts, affected, limits),
        )
    yield from _too_fine(facts, limits, flagged=total(affected, "small_files"))


def _mostly_small(facts: Facts, partitions: int, worst: Mapping[str, Any], limits: HealthSettings) -> str:
    where = (
        f"Most files of {partitions:,} of {facts.statistics.totals.partitions:,} partitions are"
        if facts.statistics.partitioned_by
        else "Most files are"
    )
    example = f"; {worst['partition']} has" if worst["partition"] else ":"
    counts = f"{worst['small_files']:,} of {worst['files']:,}"
    return f"{where} smaller than {readable(limits.small_file_bytes)}{example} {counts}"


def _too_fine(facts: Facts, limits: HealthSettings, flagged: int) -> Iterator[Finding]:
    """Many small files that no compaction can merge, because each stands nearly alone in its partition."""
    totals, columns = facts.statistics.totals, facts.statistics.partitioned_by
    lone = totals.small_files - flagged
    if lone <= limits.max_lone_small_files or not more_than_share(lone, totals.files, limits.small_file_share):
        return
    mean = totals.small_bytes // max(1, totals.small_files)
    coarser = f"partition by {', '.join(columns[:-1])} only and Z-order by {columns[-1]}" if len(columns) > 1 else ""
    kept = max(1, totals.bytes // limits.target_file_bytes)
    yield Finding(
        "small_files",
        "warning" if coarser else "info",
        facts.statistics.table,
        None,
        {"small_files": lone, "files": totals.files, "partitions": totals.partitions, "mean_bytes": mean},
        f"{lone:,} of {totals.files:,} files are small and (nearly) alone in their partitions, so OPTIMIZE cannot "
        "merge them: the partitions are too fine",
        f"Rewrite the table with coarser partitions: {coarser or 'none, with liquid clustering (CLUSTER BY) instead'}",
        Prediction("repartition_table", totals.partitions, totals.files, kept, totals.bytes),
    )


def too_many_files(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Partitions with more files than a writer can list and rewrite quickly."""
    rows = facts.statistics.partitions
    affected = rows.filter(pc.greater(rows.column("mergeable_files"), limits.max_files_per_partition))
    if not affected.num_rows:
        return
    worst = most(affected, "mergeable_files")
    far = worst["mergeable_files"] > FAR * limits.max_files_per_partition
    yield Finding(
        "too_many_files",
        "error" if far else "warning",
        facts.statistics.table,
        worst["partition"] or None,
        {
            "files": worst["files"],
            "limit": limits.max_files_per_partition,
            **partitions_of(facts, affected, "files"),
        },
        f"{worst['files']:,} files in {worst['partition'] or 'the table'}; a mutation has to look into each of them",
        f"Compact it: {_by_round(facts, affected, limits)}",
        _rewriting(facts, affected, limits),
    )


def _by_round(facts: Facts, affected: pa.Table, limits: HealthSettings) -> str:
    """OPTIMIZE, in the round that would do it: files near the target are left by the daily one.

    Merging files of more than a third of the target saves fewer files than `maintenance.max_rewrite_share` asks for.
    """
    size, files = total(affected, "mergeable_bytes"), total(affected, "mergeable_files")
    return facts.optimize_further if size * 3 > files * limits.target_file_bytes else facts.optimize


def skewed_partitions(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """One partition that holds far more than the middle one: the task that rewrites it runs alone."""
    rows, totals = facts.statistics.partitions, facts.statistics.totals
    if rows.num_rows < 2:
        return
    worst = most(rows, "bytes")
    median = max(1, totals.median_partition_bytes)
    if worst["bytes"] <= limits.skew_bytes or worst["bytes"] <= limits.skew_ratio * median:
        return
    yield Finding(
        "skewed_partitions",
        "info",
        facts.statistics.table,
        worst["partition"],
        {"bytes": worst["bytes"], "median_bytes": median, "ratio": round(worst["bytes"] / median, 1)},
        f"{worst['partition']} holds {readable(worst['bytes'])}, {worst['bytes'] / median:,.0f} times the median of "
        f"{readable(median)}; a task for it runs long after the others",
        "Cluster large partitions by a second column (ZORDER BY) so that jobs touch a part of them, or lay the table "
        "out by liquid clustering, which cuts by size",
        remedies.zorder(rows.filter(pc.equal(rows.column("partition"), worst["partition"])), limits.target_file_bytes),
    )


def scattered_writes(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Writers that leave several small files in each partition they touch."""
    mean, worst = facts.recent.scattered
    if worst is None or mean <= limits.scattered_files:
        return
    yield Finding(
        "scattered_writes",
        "warning",
        facts.statistics.table,
        None,
        {
            "files_per_partition_and_commit": round(mean, 1),
            "worst_version": worst.version,
            "worst_files": worst.small_files_added,
            "worst_partitions": worst.small_partitions_touched,
            "commits_looked_at": len(facts.recent.commits),
        },
        f"Each commit adds {mean:,.1f} small files to a partition it touches; a writer repartitioned by partition "
        "adds 1",
        f"Let the writer repartition by {', '.join(facts.statistics.partitioned_by) or 'fewer tasks'} before it "
        "writes, or set spark.databricks.delta.optimizeWrite.enabled=true",
        Prediction(
            "repartition_writer",
            worst.small_partitions_touched,
            files_per_commit_before=round(mean, 1),
            files_per_commit_after=1.0,
        ),
    )


def parallelism_limit(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Too few tasks for the bytes: a rewrite of the table is bound by the number of shuffle partitions."""
    totals, tasks = facts.statistics.totals, facts.shuffle_partitions
    if totals.bytes <= limits.max_task_bytes * tasks:
        return
    wanted = -(-totals.bytes // limits.target_file_bytes)
    yield Finding(
        "parallelism_limit",
        "warning",
        facts.statistics.table,
        None,
        {
            "setting": "spark.shuffle_partitions",
            "value": tasks,
            "suggested": wanted,
            "bytes_per_task": totals.bytes // tasks,
            "limit_bytes": limits.max_task_bytes,
            "largest_partition_bytes": _largest(facts.statistics.partitions),
        },
        f"When the table is rewritten, {readable(totals.bytes)} go through {tasks} tasks, "
        f"{readable(totals.bytes // tasks)} each",
        f"Raise spark.shuffle_partitions towards {wanted:,}, and give Spark the cores to run them",
        Prediction(
            "raise_parallelism",
            totals.partitions,
            task_bytes_before=totals.bytes // tasks,
            task_bytes_after=totals.bytes // wanted,
        ),
    )


def clustering_overlap(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Ranges of the clustering column that lie so deep on each other that few files can be skipped."""
    rows = facts.statistics.partitions
    if facts.clustering is None:
        return
    # Files that hold a single value each cannot be told apart by ranges, only merged.
    ordered = pc.if_else(pc.equal(pc.fill_null(rows.column("span_days"), 1.0), 0.0), _zordered(rows, limits), 1)
    gains = pc.greater_equal(rows.column("depth"), pc.multiply(ordered, 2))
    deep = pc.and_(pc.greater(rows.column("depth"), limits.max_overlap_depth), gains)
    affected = rows.filter(pc.fill_null(deep, False))
    if not affected.num_rows:
        return
    worst = most(affected, "depth")
    where = worst["partition"] or "the table"
    # Few small files of one partition overlap between two compactions, always.
    passing = worst["depth"] < limits.warn_small_files and _largest(affected) <= limits.target_file_bytes
    yield Finding(
        "clustering_overlap",
        "info" if passing else "warning",
        facts.statistics.table,
        worst["partition"] or None,
        {
            "column": facts.clustering,
            "depth": worst["depth"],
            "mean_depth": round(worst["mean_depth"], 2),
            "files": worst["files"],
            "versions_since_optimize": facts.recent.versions_since_optimize,
            "z_ordered_version": facts.recent.z_ordered.version if facts.recent.z_ordered else None,
            **partitions_of(facts, affected, "depth"),
        },
        f"Up to {worst['depth']:,} of {worst['files']:,} files in {where} may hold one same {facts.clustering}, so a "
        "read of one opens all of them",
        f"Cluster it: {facts.optimize}",
        remedies.zorder(affected, limits.target_file_bytes),
    )


def _largest(rows: pa.Table) -> int:
    return int(pc.max(rows.column("bytes")).as_py() or 0)


def _zordered(rows: pa.Table, limits: HealthSettings) -> pa.ChunkedArray:
    """Files that Z-order would leave in each partition."""
    return pc.max_element_wise(pc.divide(rows.column("bytes").cast(pa.int64()), limits.target_file_bytes), 1)


def _rewriting(facts: Facts, affected: pa.Table, limits: HealthSettings) -> Prediction:
    way = remedies.zorder if facts.clustering and not facts.recent.clustered_by else remedies.optimize
    return way(affected, limits.target_file_bytes)

"""How tables are laid out, and when they count as unhealthy."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from engagement_platform.settings.section import Section

_KIB, _MIB = 1024, 1024**2

LayoutScheme = Literal["organization", "organization_date", "liquid"]


class LayoutSettings(Section):
    scheme: LayoutScheme = Field(
        default="liquid",
        description="How the Data Table is laid out: `organization` (partitioned by organization), "
        "`organization_date` (partitioned by both: many small files) or `liquid`. A table that has another one "
        "is given this one by `engagement-platform migrate`.",
    )
    auto_compact: bool = Field(
        default=True,
        description="Compact a partition after a write that left it with many small files: Spark's own auto compaction "
        "(spark.databricks.delta.autoCompact.enabled), and the same for commits through delta-rs.",
    )
    auto_compact_min_files: int = Field(
        default=50, ge=2, description="Small files in one partition that start an auto compaction."
    )
    optimize_write: bool = Field(
        default=True,
        description="Both keys for optimized writes (autoOptimize.optimizeWrite, optimizeWrite.enabled): one task "
        "writes a partition.",
    )
    evolve: bool = Field(
        default=False,
        description="Add columns that a contract has and the table lacks. Any other difference always stops the job.",
    )


class HealthSettings(Section):
    """When the layout of a table's files counts as unhealthy. A figure exactly at a limit is healthy."""

    small_file_bytes: int = Field(
        default=500 * _KIB,
        ge=1,
        description="Files below this are small. 500 KB of 1,024 bytes: below it, opening a file costs more than "
        "reading it.",
    )
    small_file_share: float = Field(
        default=0.6,
        ge=0,
        le=1,
        description="`small_files`: a partition with a larger share of small files is flagged (60 % is what the source "
        "met in its old store).",
    )
    min_small_files: int = Field(
        default=10,
        ge=2,
        description="`small_files`: fewer small files in a partition are never flagged. One small file cannot be "
        "compacted any further, and a handful costs less to read than to rewrite.",
    )
    warn_small_files: int = Field(
        default=50,
        ge=2,
        description="`small_files`: fewer in each partition are for information only; auto compaction, which waits for "
        "`layout.auto_compact_min_files`, would merge them soon.",
    )
    max_lone_small_files: int = Field(
        default=1000,
        ge=1,
        description="`small_files`: more small files than this in a table, most of them with few others in their "
        "partition, mean that the partitions are too fine; compaction cannot mend that.",
    )
    max_files_per_partition: int = Field(
        default=200,
        ge=1,
        description="`too_many_files`: more files in one partition are flagged, whatever their size, unless they are "
        "as large as `target_file_bytes` asks for.",
    )
    target_file_bytes: int = Field(
        default=128 * _MIB,
        ge=1,
        description="Size up to which OPTIMIZE is taken to merge files (Spark's auto compaction uses 128 MB, a full "
        "OPTIMIZE 1 GB unless told otherwise). What a remedy would gain is predicted with it.",
    )
    skew_ratio: float = Field(
        default=10.0,
        gt=1,
        description="`skewed_partitions`: flagged when the largest partition has more than this many times the bytes "
        "of the median one.",
    )
    skew_bytes: int = Field(
        default=128 * _MIB,
        ge=0,
        description="`skewed_partitions`: not flagged while the largest partition has at most so many bytes, since one "
        "task reads it in seconds.",
    )
    scattered_files: float = Field(
        default=4.0,
        ge=1,
        description="`scattered_writes`: more small files than this per partition and commit, on average, mean that "
        "the writer is not repartitioned by partition (a repartitioned one writes 1).",
    )
    max_task_bytes: int = Field(
        default=512 * _MIB,
        ge=1,
        description="`parallelism_limit`: bytes of the table, or of its largest partition, for each of "
        "`spark.shuffle_partitions`. More makes a task of a rewrite spill or run alone (a guess).",
    )
    max_overlap_depth: int = Field(
        default=10,
        ge=1,
        description="`clustering_overlap`: more files of one partition whose ranges of the clustering column hold one "
        "same value are flagged, when clustering would at least halve that (a guess).",
    )
    unindexed_file_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="`unindexed_clustering`: a larger share of files without bounds of the clustering column is "
        "flagged; such files can never be skipped.",
    )
    max_commits_without_checkpoint: int = Field(
        default=100,
        ge=1,
        description="`stale_checkpoint`: more commits after the newest checkpoint are flagged. delta-rs makes one "
        "every 100, Spark every 10; every reader replays the rest.",
    )
    vacuum_share: float = Field(
        default=0.2,
        ge=0,
        description="`vacuum_due`: flagged when removed files whose retention is over hold more than this share of the "
        "bytes of the live ones (a guess: what is worth an extra run).",
    )
    history_commits: int = Field(
        default=50,
        ge=1,
        description="Newest commits that are looked at for how tables are written and maintained; each is one small "
        "file to read.",
    )
    worst_partitions: int = Field(
        default=1000,
        ge=1,
        description="Most partitions of a table that `doctor --json` lists: those with most small files, files, "
        "overlap, bytes.",
    )
    footer_samples: int = Field(
        default=8, ge=0, description="Footers read to learn the codec of files whose names do not tell it."
    )
    check_pause: timedelta = Field(
        default=timedelta(minutes=4),
        description="In Dagster: after writes, tables that changed are examined together, in one run at most every so "
        "long. A run costs about 3 s and a fraction of a second for each table.",
    )
    reports_kept: int = Field(
        default=30, ge=1, description="Nightly reports kept in <home>/reports; each is a page of about 5 MB."
    )

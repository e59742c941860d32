"""How tables are laid out, when they count as unhealthy, and what maintenance does."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from engagement_platform.settings.section import GIB, KIB, MIB, Duration, Section

LayoutScheme = Literal["organization", "organization_date", "liquid"]


class LayoutSettings(Section):
    scheme: LayoutScheme = "liquid"
    """How the Data Table is laid out: `organization` (partitioned by organization), `organization_date` (partitioned by
    both: many small files) or `liquid`. A table that has another one is given this one by `engagement-platform
    migrate`."""
    auto_compact: bool = True
    """Compact a partition after a write that left it with many small files: Delta's auto compaction, of tables with
    partitions whose rows change (delta.autoOptimize.autoCompact). All others are left to maintenance."""
    auto_compact_min_files: int = Field(50, ge=2)
    """Small files in one partition that start an auto compaction."""
    optimize_write: bool = True
    """Both keys for optimized writes (autoOptimize.optimizeWrite, optimizeWrite.enabled): one task writes a partition.
    """
    evolve: bool = False
    """Add columns that a contract has and the table lacks. Any other difference always stops the job."""


class HealthSettings(Section):
    """When the layout of a table's files counts as unhealthy. A figure exactly at a limit is healthy."""

    small_file_bytes: int = Field(500 * KIB, ge=1)
    """Files below this are small. 500 KB of 1,024 bytes: below it, opening a file costs more than reading it."""
    small_file_share: float = Field(0.6, ge=0, le=1)
    """`small_files`: a partition with a larger share of small files is flagged (60 % is what the source met in its old
    store)."""
    min_small_files: int = Field(10, ge=2)
    """`small_files`: fewer small files in a partition are never flagged. One small file cannot be compacted any
    further, and a handful costs less to read than to rewrite."""
    warn_small_files: int = Field(50, ge=2)
    """`small_files`: fewer in each partition are for information only; maintenance, or auto compaction, would merge
    them soon."""
    max_lone_small_files: int = Field(1000, ge=1)
    """`small_files`: more small files than this in a table, most of them with few others in their partition, mean that
    the partitions are too fine; compaction cannot mend that."""
    max_files_per_partition: int = Field(200, ge=1)
    """`too_many_files`: more files in one partition are flagged, whatever their size, unless they are as large as
    `target_file_bytes` asks for."""
    target_file_bytes: int = Field(128 * MIB, ge=1)
    """Size up to which OPTIMIZE is taken to merge files (Spark's auto compaction uses 128 MB, a full OPTIMIZE 1 GB by
    default). What a remedy would gain is predicted with it."""
    skew_ratio: float = Field(10.0, gt=1)
    """`skewed_partitions`: flagged when the largest partition has more than this many times the bytes of the median
    one."""
    skew_bytes: int = Field(128 * MIB, ge=0)
    """`skewed_partitions`: not flagged while the largest partition has at most so many bytes, since one task reads it
    in seconds."""
    scattered_files: float = Field(4.0, ge=1)
    """`scattered_writes`: more small files than this per partition and commit, on average, mean that the writer is not
    repartitioned by partition (a repartitioned one writes 1)."""
    max_task_bytes: int = Field(512 * MIB, ge=1)
    """`parallelism_limit`: bytes of the table for each of `spark.shuffle_partitions`.
    More makes a task of a rewrite spill or run alone (a guess)."""
    max_overlap_depth: int = Field(10, ge=1)
    """`clustering_overlap`: more files of one partition whose ranges of the clustering column hold one same value are
    flagged, when clustering would at least halve that (a guess)."""
    unindexed_file_share: float = Field(0.1, ge=0, le=1)
    """`unindexed_clustering`: a larger share of files without bounds of the clustering column is flagged; such files
    can never be skipped."""
    max_commits_without_checkpoint: int = Field(100, ge=1)
    """`stale_checkpoint`: more commits after the newest checkpoint are flagged. delta-rs makes one every 100, Spark
    every 10; every reader replays the rest."""
    vacuum_share: float = Field(0.2, ge=0)
    """`vacuum_due`: flagged when removed files whose retention is over hold more than this share of the bytes of the
    live ones (a guess: what is worth an extra run)."""
    history_commits: int = Field(50, ge=1)
    """Newest commits that are looked at for how tables are written and maintained; each is one small file to read."""
    worst_partitions: int = Field(1000, ge=1)
    """Most partitions of a table that `doctor --json` lists: those with most small files, files, overlap, bytes."""
    footer_samples: int = Field(8, ge=0)
    """Footers read to learn the codec of files whose names do not tell it."""
    check_pause: Duration = timedelta(minutes=15)
    """In Dagster: after writes, tables that changed are examined together, in one run at most every so long. A run
    costs about 3 s and a fraction of a second for each table. A run that drains for long materializes no table more
    often, since a result that is older than that shows as "Not evaluated"."""
    reports_kept: int = Field(30, ge=1)
    """Nightly reports kept in <home>/reports; each is a page of about 5 MB."""


class MaintenanceSettings(Section):
    """How much upkeep of files a run does, and what it never removes."""

    target_file_bytes: int = Field(128 * MIB, ge=1)
    """Size up to which the daily OPTIMIZE merges files. 128 MB is Spark's own target for auto compaction; larger files
    make each later mutation rewrite more."""
    second_round_file_bytes: int = Field(1 * GIB, ge=1)
    """Size up to which the weekly second round merges what the daily one left (1 GB is Spark's default of a full
    OPTIMIZE)."""
    budget: Duration = timedelta(minutes=15)
    """A run takes no new slice after this long; the next one plans anew and goes on with what gains most. Longer than a
    run can be without anybody missing the machine (a guess)."""
    max_rewrite_share: float = Field(0.5, gt=0)
    """A partition is left alone while each file that is saved would cost rewriting more than this share of the target
    size: merging one small file into a large one every day writes the large one every day."""
    files_by_day: int = Field(100, ge=2)
    """In Dagster, also between two nights: a table or partition is merged as soon as that saves so many files, and ten
    for each second that its writers would wait. A batch opens every file of its tables, each about 1.5 ms."""
    attempts: int = Field(4, ge=1)
    """How often a slice is tried when other commits changed its files meanwhile. After that it is left for the next
    run."""
    backoff: Duration = timedelta(seconds=1)
    """Pause before the second attempt at a slice; doubled before each more."""
    nightly_vacuum: bool = False
    """Whether the schedule of VACUUM is loaded as running, too, where `dagster.automation` is `running`. Deleted files
    do not come back, so this is off until it is asked for, by this setting or in the UI."""
    rollback_window: Duration = timedelta(days=7)
    """Versions younger than this stay readable: VACUUM refuses to go below it, so that a bad batch can be rolled back
    after a long weekend."""

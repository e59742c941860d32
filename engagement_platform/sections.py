"""The base of a group of settings, and the groups that are long: what `settings` puts together.

Values and reasons only. Where they are read from is `settings`.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

_KIB, _MIB, _GIB = 1024, 1024**2, 1024**3


class Section(BaseModel):
    """A group of settings; unknown names are refused so that a typing error is not silently a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class GamesSettings(Section):
    """Events of games: where they come from, and which are taken."""

    bucket: str | None = Field(
        default=None, description="Bucket that the ingest server, or Firehose, writes events into; replays list it."
    )
    prefix: str = Field(
        default="events/",
        description="Keys of events begin so, and go on with the hour of arrival, YYYY/MM/DD/HH/, in UTC.",
    )
    queue_url: str | None = Field(
        default=None,
        description="SQS queue in which S3 announces new objects. Not set: no game event is read. Credentials, region "
        "and AWS_ENDPOINT_URL are found where AWS's own tools look.",
    )
    declarations: Path | None = Field(
        default=None,
        description="Folder of declared types of events, one TOML file each, beside those that ship. Read when the "
        "code is loaded: restart the code server after a change.",
    )
    max_objects: int = Field(default=1000, ge=1, description="Most objects in one batch.")
    max_bytes: int = Field(
        default=16 * _MIB,
        ge=1,
        description="Most bytes of objects in one batch, as they lie in the bucket; a larger one makes a batch alone. "
        "JSON lines are about ten times as large unpacked.",
    )
    max_lateness: timedelta = Field(
        default=timedelta(days=7),
        description="Events further back than this when their object arrived are quarantined as `late`. With it the "
        "partitions that a batch writes, and so its files, are bounded.",
    )
    max_ahead: timedelta = Field(
        default=timedelta(hours=1),
        description="Events further ahead than this when their object arrived are quarantined as `future`: clocks of "
        "devices are wrong.",
    )
    duplicate_window: timedelta = Field(
        default=timedelta(hours=1),
        description="Two events of a type with one event_id are the same, and the second is dropped, when their times "
        "are at most so far apart. A sender that repeats an event repeats its time as well; the window is for those "
        "that stamp it anew.",
    )
    visibility: timedelta = Field(
        default=timedelta(minutes=5),
        description="How long a message stays with a run that has received it; prolonged while the run lives. After "
        "a crash it takes so long until SQS hands it out again, to no harm.",
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
    orphan_age: timedelta = Field(
        default=timedelta(hours=1),
        description="`orphan_files`: younger files that the log does not know may belong to a write that is not "
        "committed yet, and are not flagged.",
    )
    history_commits: int = Field(
        default=50,
        ge=1,
        description="Newest commits that are looked at for how tables are written and maintained; each is one small "
        "file to read.",
    )
    files_in_process: int = Field(
        default=500_000,
        ge=0,
        description="Tables with more files are summed up by Spark; each file takes about 1 KB of this process.",
    )
    worst_partitions: int = Field(
        default=1000,
        ge=1,
        description="Most partitions that come from Spark, and that `doctor --json` tells of a table: those with most "
        "files, bytes, overlap.",
    )
    listed_files: int = Field(
        default=50_000,
        ge=0,
        description="Folders of tables with more live files are not listed for orphans and removed files; "
        "`orphan_files` then says that nobody looked. An object store takes a request for each thousand files.",
    )
    footer_samples: int = Field(
        default=8, ge=0, description="Footers read to learn the codec of files whose names do not tell it."
    )
    check_pause: timedelta = Field(
        default=timedelta(minutes=10),
        description="In Dagster: after writes, tables that changed are examined together, in one run at most every so "
        "long. A run costs about 3 s and a fraction of a second for each table.",
    )
    reports_kept: int = Field(
        default=30, ge=1, description="Nightly reports kept in <home>/reports; each is a page of about 5 MB."
    )


class MaintenanceSettings(Section):
    """How much upkeep of files a run does, and what it never removes."""

    target_file_bytes: int = Field(
        default=128 * _MIB,
        ge=1,
        description="Size up to which the daily OPTIMIZE merges files. 128 MB is Spark's own target for auto "
        "compaction; larger files make each later mutation rewrite more.",
    )
    second_round_file_bytes: int = Field(
        default=1 * _GIB,
        ge=1,
        description="Size up to which the weekly second round merges what the daily one left (1 GB is Spark's default "
        "of a full OPTIMIZE).",
    )
    budget: timedelta = Field(
        default=timedelta(minutes=15),
        description="A run takes no new slice after this long; the next one plans anew and goes on with what gains "
        "most. Longer than a run can be without anybody missing the machine (a guess).",
    )
    max_rewrite_share: float = Field(
        default=0.5,
        gt=0,
        description="A partition is left alone while each file that is saved would cost rewriting more than this share "
        "of the target size: merging one small file into a large one every day writes the large one every day.",
    )
    max_slice_bytes: int = Field(
        default=2 * _GIB,
        ge=1,
        description="Most that one slice of a mutable table rewrites, since its writers wait meanwhile: of more small "
        "files the smallest come first and the others with the next run, and a partition that would have to be ordered "
        "anew is left and told of. 2 GB take Spark about 80 s (a guess), less than `stores.lease_wait`. At least two "
        "files of the target size have to fit.",
    )
    attempts: int = Field(
        default=4,
        ge=1,
        description="How often a slice is tried when other commits changed its files meanwhile. After that it is left "
        "for the next run.",
    )
    backoff: timedelta = Field(
        default=timedelta(seconds=1),
        description="Pause before the second attempt at a slice; doubled before each more.",
    )
    patience: timedelta = Field(
        default=timedelta(seconds=20),
        description="Maintenance takes the lease of a mutable table only when nobody holds or awaits it. After so long "
        "without such a moment it stands in the line once, for one slice, so that a busy table is looked after too.",
    )
    rollback_window: timedelta = Field(
        default=timedelta(days=7),
        description="Versions younger than this stay readable: VACUUM refuses to go below it, so that a bad batch can "
        "be rolled back after a long weekend.",
    )
    checkpoint_commits: int = Field(
        default=20,
        ge=1,
        description="The maintenance of logs makes a checkpoint where more commits than this came after the newest.",
    )


class ConsumerSettings(Section):
    """How long a consumer of changes may be behind, and what is kept for it meanwhile."""

    max_lag: timedelta = Field(
        default=timedelta(hours=1),
        description="The check `consumers_keep_up` warns when the oldest change that a consumer has not read is older.",
    )
    keep_for: timedelta = Field(
        default=timedelta(days=14),
        description="What a consumer has yet to read is kept from VACUUM until it has committed nothing for so long; "
        "from then on its next read may be refused, with the advice to take a snapshot. One that nobody runs any more "
        "would otherwise keep files for ever.",
    )
    poll: timedelta = Field(
        default=timedelta(seconds=1),
        description="How often `consume --follow` looks for new changes; one small request.",
    )


class ReplicaSettings(Section):
    """The replica in DuckDB."""

    path: Path | None = Field(
        default=None, description="Its file, on this machine. Not set: <home>/replica/engagement.duckdb."
    )
    wait: timedelta = Field(
        default=timedelta(seconds=30),
        description="How long to wait for another process that has the file open. A refresh has it open for a second "
        "or two, a new replica for as long as everything takes to be read.",
    )


ViewStrategy = Literal["auto", "double_rank_over", "full_outer_join", "left_join_anti_join", "left_join_union_inserts"]
RematerializeMethod = Literal["merge", "overwrite", "replace_where"]
UnknownUpdate = Literal["upsert", "ignore", "quarantine"]


class MergeOnReadSettings(Section):
    """How partial updates of profiles are taken in and read."""

    unknown_update: UnknownUpdate = Field(
        default="upsert",
        description="An UPDATE of a profile that nobody has inserted: `upsert` makes a row, `ignore` keeps it out of "
        "sight until an INSERT comes, `quarantine` refuses it (looks the ids up in the tables, which costs time).",
    )
    inserts_are_new: bool = Field(
        default=False,
        description="Producers promise that an INSERT never names a profile that is known. Checked as changes land "
        "(`insert_not_new` in quarantine); only then `left_join_union_inserts` may be used.",
    )
    view: ViewStrategy = Field(
        default="auto",
        description="How base and changeset are joined. `auto`: `left_join_union_inserts` where it is valid, else "
        "`left_join_anti_join`, and `full_outer_join` when the changes are too many to broadcast.",
    )
    broadcast_max_rows: int = Field(
        default=2_800_000,
        ge=0,
        description="Most folded changes that are broadcast. The source's figure: 1 GiB at 364 bytes a row, rounded "
        "down; exactly so many are broadcast.",
    )
    broadcast_row_bytes: int = Field(default=364, ge=1, description="Bytes that a folded change is taken to have.")
    broadcast_budget_bytes: int = Field(
        default=1 * _GIB, ge=0, description="Most bytes of folded changes that are broadcast."
    )


class RematerializeSettings(Section):
    """How and when pending changes are moved into the base."""

    method: RematerializeMethod = Field(
        default="overwrite",
        description="`overwrite` writes the whole base anew (best without partitions), `merge` rewrites the files that "
        "changes touch, `replace_where` the partitions that they touch; that one needs a partitioned entity.",
    )
    cadence: Literal["auto"] | timedelta = Field(
        default="auto",
        description="Time between two rematerializations. `auto` chooses it: often enough that reading through pending "
        "changes costs no more than writing the base, from what the last ones took and what reads take now.",
    )
    shortest: timedelta = Field(
        default=timedelta(minutes=2), description="`auto` never goes below it: a run costs some seconds in any case."
    )
    longest: timedelta = Field(default=timedelta(hours=6), description="`auto` never waits longer while changes wait.")
    reads_per_hour: float = Field(
        default=60.0, ge=0, description="How often the view is read, for `auto` (a guess until somebody measures it)."
    )
    max_pending_rows: int = Field(
        default=500_000,
        ge=1,
        description="More pending changes than this are moved at once, whatever the cadence. Far below "
        "`merge_on_read.broadcast_max_rows`, above which joins shuffle the base.",
    )
    max_view_latency: timedelta = Field(
        default=timedelta(seconds=10),
        description="When reading one profile through the view took longer than this, changes are moved at once.",
    )
    tombstone_retention: timedelta | None = Field(
        default=None,
        description="Deleted profiles are forgotten so long after their DELETE landed. A change from before the DELETE "
        "that comes later than that makes the profile anew. Not set: tombstones are kept.",
    )

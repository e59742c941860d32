"""Rules about bounds and codecs of files, the log, and what lies in the folder beside the live files.

Pure. Rules about the number, size and spread of files are in `file_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engagement_platform.layout import remedies
from engagement_platform.layout.files import UNNAMED
from engagement_platform.layout.finding import FAR, Facts, Finding, more_than_share, readable
from engagement_platform.layout.remedies import Prediction
from engagement_platform.settings import HealthSettings


def unindexed_clustering(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """A clustering column without bounds in the log: its files can never be skipped."""
    column, totals = facts.clustering, facts.statistics.totals
    if column is None:
        return
    indexed = column in facts.shape.indexed
    if indexed and not more_than_share(totals.files_without_bounds, totals.files, limits.unindexed_file_share):
        return
    rows = facts.statistics.partitions
    first = "" if indexed else f"ALTER TABLE delta.`{facts.statistics.uri}` SET TBLPROPERTIES "
    first += "" if indexed else f"('delta.dataSkippingStatsColumns' = '{column}'), then "
    position = list(facts.shape.leaves).index(column) + 1
    yield Finding(
        "unindexed_clustering",
        "warning",
        facts.statistics.table,
        None,
        {
            "column": column,
            "leaf_position": position,
            "indexed": indexed,
            "indexed_columns": facts.shape.properties.get(
                "delta.dataSkippingStatsColumns",
                facts.shape.properties.get("delta.dataSkippingNumIndexedCols", "32"),
            ),
            "files_without_bounds": totals.files_without_bounds,
            "files": totals.files,
        },
        f"{column}, leaf column {position}, is outside the columns that writers keep bounds of"
        if not indexed
        else f"{totals.files_without_bounds:,} of {totals.files:,} files have no bounds of {column}, so no read by it "
        "skips them",
        f"{first}rewrite the files so that they get bounds: {facts.optimize_sql}",
        replace(remedies.zorder(rows, limits.target_file_bytes), action="zorder" if indexed else "set_property"),
    )


def uncompressed(facts: Facts, _limits: HealthSettings) -> Iterator[Finding]:
    """Files that are not compressed, by their names and the footers of a sample."""
    footers, unnamed = facts.footers, facts.statistics.totals.codecs.get(UNNAMED, 0)
    if not footers.uncompressed:
        return
    yield Finding(
        "uncompressed",
        "warning",
        facts.statistics.table,
        None,
        {
            "files_without_named_codec": unnamed,
            "footers_read": footers.read,
            "footers_uncompressed": footers.uncompressed,
        },
        f"{footers.uncompressed:,} of {footers.read:,} footers that were read say UNCOMPRESSED; {unnamed:,} files do "
        "not name a codec",
        "Set spark.sql.parquet.compression.codec (zstd or snappy) for its writers, then rewrite the files: "
        f"REORG or {facts.optimize_sql}",
        # By how much files shrink nobody knows before, nor, of a sample, how many are concerned: at most all of them.
        Prediction(
            "compress",
            facts.statistics.totals.partitions,
            files_before=facts.statistics.totals.files,
            files_after=facts.statistics.totals.files,
            bytes_to_rewrite=facts.statistics.totals.bytes,
        ),
    )


def stale_checkpoint(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """A log whose readers must replay many commits."""
    lag, limit = facts.recent.checkpoint_lag, limits.max_commits_without_checkpoint
    if lag <= limit:
        return
    yield Finding(
        "stale_checkpoint",
        "error" if lag > FAR * limit else "warning",
        facts.statistics.table,
        None,
        {"version": facts.recent.version, "checkpoint_version": facts.recent.checkpoint, "commits_since": lag},
        f"{lag:,} commits came after the newest checkpoint; every reader replays them one by one",
        f"Make one ({_checkpoint(facts)}), and set delta.checkpointInterval; a writer that makes none may fail to each "
        "time: read its log",
        Prediction("checkpoint", 0, commits_replayed_before=lag, commits_replayed_after=0),
    )


def _checkpoint(facts: Facts) -> str:
    by_hand = "deltalake: DeltaTable(path).create_checkpoint()"
    return f"in Dagster: the job checkpoint_logs, daily or when launched; {by_hand}" if facts.ours else by_hand


def vacuum_due(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Removed files that nobody may need any more and that still take up room."""
    due, live = facts.leftovers.due, facts.statistics.totals.bytes
    if not due.files or not more_than_share(due.bytes, live, limits.vacuum_share):
        return
    yield Finding(
        "vacuum_due",
        "warning",
        facts.statistics.table,
        None,
        {
            "due_files": due.files,
            "due_bytes": due.bytes,
            "waiting_files": facts.leftovers.waiting.files,
            "waiting_bytes": facts.leftovers.waiting.bytes,
            "live_bytes": live,
            "seen_on_disk": facts.leftovers.listed,
        },
        f"{due.files:,} removed files of {readable(due.bytes)} are past their retention; the live ones hold "
        f"{readable(live)}",
        f"Remove them: {facts.vacuum}; the command keeps what readers and restores may still need",
        Prediction("vacuum", 0, bytes_freed=due.bytes, files_freed=due.files),
    )


def orphan_files(facts: Facts, limits: HealthSettings) -> Iterator[Finding]:
    """Files in the folder that the log does not know: of writes that failed, or that VACUUM has not seen for long."""
    orphans, young, live = facts.leftovers.orphans, facts.leftovers.young_orphans, facts.statistics.totals.bytes
    if not orphans.files:
        return
    oldest = facts.leftovers.oldest_orphan
    yield Finding(
        "orphan_files",
        "warning" if more_than_share(orphans.bytes, live, limits.vacuum_share) else "info",
        facts.statistics.table,
        None,
        {
            "files": orphans.files + young.files,
            "old_files": orphans.files,
            "old_after_s": int(limits.orphan_age.total_seconds()),
            "bytes": orphans.bytes,
            "oldest": oldest.isoformat() if oldest else None,
        },
        f"{orphans.files:,} files of {readable(orphans.bytes)} lie in the folder and the log knows nothing of them: "
        "left by writes that failed, or removed so long ago that the log forgot",
        f"Remove those past the retention: {facts.vacuum}; look at what writes here and fails",
        Prediction("vacuum", 0, bytes_freed=orphans.bytes, files_freed=orphans.files),
    )

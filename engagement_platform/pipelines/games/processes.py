"""The processes of game events: refused ones first, then one for each declared type, by name.

Each commits rows that the batch has made, and only where there are any; so a batch that failed at the seventeenth
table goes on with the seventeenth.
"""

from __future__ import annotations

from dataclasses import dataclass

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Counts, Transaction
from engagement_platform.lake.contract import Table
from engagement_platform.pipelines.games.batch import GameBatch
from engagement_platform.pipelines.games.event_type import QUARANTINE_NAME


@dataclass(frozen=True)
class RefusedProcess:
    """Refused lines, whole."""

    name: str = QUARANTINE_NAME
    commits: tuple[str, ...] = ("append",)

    def run(self, work: GameBatch, commit: Committer) -> Counts:
        """Counts: rows_in, bytes_in, quarantined, duplicates, erased, unknown_fields, rows_written, files, bytes."""
        counts = {
            "rows_in": work.rows_in,
            "bytes_in": work.bytes_in,
            "quarantined": len(work.refused),
            "duplicates": work.refused_before,
            "erased": work.erased,
            "unknown_fields": work.unknown_fields,
        }
        if not work.refused:
            return counts
        with commit("append") as txn:
            work.lake.append(work.refused_rows(), work.feed.quarantine, txn, rows=len(work.refused))
        return {**counts, **_written(work, work.feed.quarantine, txn)}


@dataclass(frozen=True)
class EventsProcess:
    """Events of one type."""

    name: str
    """Of the type, and so of its table."""
    commits: tuple[str, ...] = ("append",)

    def run(self, work: GameBatch, commit: Committer) -> Counts:
        """Counts: landed, duplicates, rows_written, files, bytes. Nothing where the batch has no such event."""
        kept = work.kept.get(self.name)
        if kept is None:
            return {}
        counts = {"landed": len(kept.rows), "duplicates": kept.duplicates}
        if not kept.rows:
            return counts
        table = work.feed.types[self.name].table
        with commit("append") as txn:
            work.lake.append(work.rows(self.name), table, txn, rows=len(kept.rows))
        return {**counts, **_written(work, table, txn)}


def _written(work: GameBatch, table: Table, txn: Transaction) -> Counts:
    """What the table's log says was written, also when that was before a crash: rows are held against the counts."""
    commit = work.lake.commit_of(table, txn)
    if commit is None:
        return {}
    return {"files": commit.files_added, "bytes": commit.bytes_added, "commits": 1, "rows_written": commit.rows_added}

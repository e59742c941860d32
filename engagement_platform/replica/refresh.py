"""Brings a replica up to now through `consumers.Changes`: what changed, or everything when that can no longer be told.

The rows and the position they came from are committed by DuckDB together, and the consumer's cursor moves after that.
So the file itself says how far it is: a crash between the two makes the same changes come again, over themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from engagement_platform.consumers import Batch, Changes
from engagement_platform.consumers.changes import MAX_ROWS, lake_root
from engagement_platform.consumers.notified import KEY, TooFarBehind
from engagement_platform.consumers.position import Position, batch_of
from engagement_platform.lake import log
from engagement_platform.lake.added_rows import is_restore
from engagement_platform.lake.checksums import quoted
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW
from engagement_platform.pipelines.snapshot import DATA
from engagement_platform.replica.file import FORMAT, NotAReplica, State, make_engagement, opened, put_state, state
from engagement_platform.settings import Settings

NAME = "replica"
"""Of the consumer, unless another is asked for."""

_MATCHED = " AND ".join(f"engagement.{name} = gone.{name}" for name in KEY)
_COLUMNS = ", ".join(quoted(name) for name in CURRENT_ROW.names)


@dataclass(frozen=True)
class Place:
    """Which replica: its file, the consumer's name, and how long to wait for others who have the file open."""

    path: Path
    name: str = NAME
    wait_s: float = 30.0


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did, and where it led."""

    batches: int
    inserted: int
    updated: int
    deleted: int
    snapshot: str | None
    """Why all rows were replaced first; None when only changes were read."""
    rows: int
    """In the replica now."""
    state: State


@dataclass(frozen=True)
class _Tables:
    """What the lake's logs say before anything is read."""

    data_table: str | None
    data_version: int
    notification_table: str | None
    newest: Position


def place_of(settings: Settings, path: Path | None = None, name: str = NAME) -> Place:
    """The replica of the settings, or another file or name."""
    return Place(path or settings.replica_path, name, settings.replica.wait.total_seconds())


def refresh(settings: Settings, place: Place, *, resnapshot: bool = False, max_rows: int = MAX_ROWS) -> Refreshed:
    """Read all that changed since last time into the replica; a new one is filled with everything that stands.

    resnapshot: replace all rows first. That is also done when changes were missed, when a table was put in the place of
    another or restored from outside, and when the file is not the one whose changes were last committed.
    Raises NothingToRead, ReplicaInUse, NotAReplica, CursorMoved, StoresUnavailable.
    """
    root = lake_root(settings.lake)
    with opened(place.path, read_only=False, wait_s=place.wait_s) as connection:
        before = state(connection, place.path)
        if before is not None and (before.lake, before.name) != (root, place.name):
            raise NotAReplica(place.path, f"it is {before.name} of {before.lake}, and not {place.name} of {root}")
        changes = Changes(root, name=place.name, start="now", max_rows=max_rows, store_url=settings.store_url)
        now = _tables(root)
        why = "it was asked for" if resnapshot else _why_not_go_on(before, changes.committed, now, root)
        writer = _Writer(connection, root, place.name, now)
        if before is not None and why is None:
            try:
                return writer.follow(changes, before, None)
            except TooFarBehind as error:
                why = error.why
        return writer.follow(changes, writer.replace(changes), why)


def _tables(root: str) -> _Tables:
    data, notification = log.open_log(DATA.uri(root)), log.open_log(NOTIFICATION.uri(root))
    return _Tables(
        data_table=None if data is None else str(data.metadata().id),
        data_version=-1 if data is None else int(data.version()),
        notification_table=None if notification is None else str(notification.metadata().id),
        newest=Position() if notification is None else Position(int(notification.version())),
    )


def _why_not_go_on(before: State | None, committed: Position, now: _Tables, root: str) -> str | None:
    """Why changes after `committed` do not lead from what the file has to what stands; None when they do."""
    if before is None:
        return "the replica is new"
    if before.format != FORMAT:
        return "the file has another format"
    if before.position < committed:
        return "the file is older than its consumer's cursor"
    if (before.data_table, before.notification_table) != (now.data_table, now.notification_table):
        return "a table was made anew"
    if before.position > now.newest or before.data_version > now.data_version:
        return "a table has fewer versions than before"
    return _restored(DATA.uri(root), before.data_version, now.data_version)


def _restored(uri: str, after: int, through: int) -> str | None:
    """Whether somebody restored the table without telling those who follow it, as our own job does."""
    for version in range(after + 1, through + 1):
        actions = log.entry(uri, version) or []
        info: Mapping[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        if info.get("operation") == "RESTORE" and not is_restore(info.get("userMetadata")):
            return f"version {version} of {DATA.name} restored an earlier one, and nobody announced what changed"
    return None


@dataclass(frozen=True)
class _Writer:
    """Puts batches and snapshots into an open file."""

    connection: duckdb.DuckDBPyConnection
    root: str
    name: str
    seen: _Tables

    def follow(self, changes: Changes, before: State, snapshot: str | None) -> Refreshed:
        """All batches that wait, each in one transaction with its position, and the cursor after it."""
        inserted = updated = deleted = batches = 0
        for batch in changes:
            before = self._apply(batch, before)
            changes.commit()
            batches += 1
            inserted += batch.inserts.num_rows
            updated += batch.updates.num_rows
            deleted += batch.deletes.num_rows
        last = self._stamped(
            replace(before, data_version=self.seen.data_version), max(before.position, changes.committed)
        )
        self._commit([], last)
        (rows,) = self.connection.execute("SELECT count(*) FROM engagement").fetchone() or (0,)
        return Refreshed(batches, inserted, updated, deleted, snapshot, int(rows), last)

    def replace(self, changes: Changes) -> State:
        """Everything that stands instead of what the file has, in one transaction. The cursor goes on after it."""
        taken, now = changes.resnapshot(), datetime.now(UTC)
        made = State(
            lake=self.root, name=self.name, version=0, rows=0, batch=None, announced_ts=None,
            data_table=self.seen.data_table, data_version=self.seen.data_version,
            notification_table=self.seen.notification_table, refreshed_ts=now, snapshot_ts=now,
        )  # fmt: skip
        self.connection.execute("BEGIN")
        try:
            make_engagement(self.connection, "CREATE OR REPLACE TABLE")
            for rows in taken:
                self._insert(rows)
            made = self._stamped(made, taken.position)
            put_state(self.connection, made)
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
        changes.commit()
        return made

    def _apply(self, batch: Batch, before: State) -> State:
        """One batch over what is there. It may have been applied before: then the file keeps the later position."""
        after = self._stamped(before, max(before.position, batch.position))
        changed = [batch.inserts, batch.updates.select(CURRENT_ROW.names)]
        self._commit([*changed, batch.deletes], after)
        return after

    def _commit(self, parts: Iterable[pa.Table], after: State) -> None:
        """Rows by key in place of those with the same key; those without columns beyond the key only go."""
        self.connection.execute("BEGIN")
        try:
            for rows in parts:
                self._remove(rows)
                if rows.column_names == CURRENT_ROW.names:
                    self._insert(rows)
            put_state(self.connection, after)
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def _remove(self, rows: pa.Table) -> None:
        self.connection.register("gone", rows.select(list(KEY)))
        self.connection.execute(f"DELETE FROM engagement USING gone WHERE {_MATCHED}")
        self.connection.unregister("gone")

    def _insert(self, rows: pa.Table) -> None:
        self.connection.register("come", rows.cast(CURRENT_ROW))
        self.connection.execute(f"INSERT INTO engagement ({_COLUMNS}) SELECT {_COLUMNS} FROM come")
        self.connection.unregister("come")

    def _stamped(self, of: State, position: Position) -> State:
        """The same at this position, with what the log says of it."""
        batch, announced = batch_of(NOTIFICATION.uri(self.root), position.version)
        return replace(
            of, version=position.version, rows=position.rows, batch=batch, announced_ts=announced,
            refreshed_ts=datetime.now(UTC),
        )  # fmt: skip

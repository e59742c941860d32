"""Incremental read without a JVM: batches of changed engagements as they are now, and a durable cursor.

Where a consumer begins is `position`, what was announced `notified`, what stands `standing`. Lag is `lag`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.consumers.notified import KEY, by_engagement, notified, refuse_replaced
from engagement_platform.consumers.position import CursorReader, Position, Start
from engagement_platform.consumers.standing import Standing, schema_of_rows, standing_now
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.added_rows import BEFORE_ALL
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW

CHANGE_TYPES = ("INSERT", "UPDATE", "DELETE")
MAX_ROWS = 100_000
"""Notifications in one batch; with as many rows of the Data Table that is some 50 MB in memory (a guess)."""

_DELETED = ("organization_id", "engagement_id", "engagement_date", "previous_person_id")
_PREVIOUS = pa.field("previous_person_id", pa.string())


class UnknownChoice(PlatformError):
    """A column or a change type that there is none of."""

    def __init__(self, what: str, names: Sequence[str], there: Sequence[str]) -> None:
        super().__init__(
            f"There is no {what} called {', '.join(names)}; there are {', '.join(there)}. Nothing was read."
        )


class NothingToRead(PlatformError):
    """A snapshot was asked of a lake without engagements."""

    def __init__(self, lake: str) -> None:
        super().__init__(
            f"There are no engagements under {lake} yet. Nothing was read and no cursor was moved. Is it the right "
            "lake? Its first table is made by `engagement-platform run ingest-engagements --until-idle`."
        )


def lake_root(lake_uri: str | Path) -> str:
    """A lake's root as cursors know it, however it was written: an absolute path or a URI, no slash at its end."""
    uri = str(lake_uri)
    root = uri if "://" in uri else str(Path(uri).expanduser().absolute())
    return log.storage_uri(root.rstrip("/"))


@dataclass(frozen=True)
class Batch:
    """What changed in one stretch of notifications; each engagement stands in one of the three tables, once."""

    inserts: pa.Table
    """Rows as they are now, with the columns that were asked for."""
    updates: pa.Table
    """The same, and previous_person_id: who the person was before the stretch."""
    deletes: pa.Table
    """organization_id, engagement_id, engagement_date, previous_person_id (null: inserted within the stretch)."""
    position: Position
    """Where the stretch ends."""
    notifications: int

    def __len__(self) -> int:
        return int(self.inserts.num_rows + self.updates.num_rows + self.deletes.num_rows)


@dataclass(frozen=True)
class Snapshot:
    """Everything that stands at one moment. Replace by it what you have, then `commit()` what it came from."""

    position: Position
    standing: Standing
    columns: Sequence[str]
    organizations: Collection[str] | None

    def __iter__(self) -> Iterator[pa.Table]:
        """The rows, some at a time; none at all where nothing stands."""
        return self.standing.every(self.columns, self.organizations)

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return schema_of_rows(*self.columns)

    def table(self) -> pa.Table:
        """All rows at once."""
        return pa.concat_tables([self.schema.empty_table(), *self])


class Changes(CursorReader):
    """What changed since a consumer committed last. Iterate it, apply each batch, then `commit()`.

    lake_uri: root of the tables. name: of the consumer, unique in the lake; one process at a time reads under it.
    organizations, change_types (INSERT, UPDATE, DELETE), columns (of `engagement/current`; ids always come along): less
    than everything. start: where a new consumer begins, see `position.Start`; a known one goes on where it is.
    max_rows: at most so many notifications in a batch. follow: wait for more instead of ending, looking every `poll`.
    store_url: database of the cursor. Default: that of the settings, so that the platform sees the consumer, and keeps
    what it has yet to read.

    A row is as it is now, and not as it was when the change was announced, so that applying a batch twice, or one that
    others have overtaken, does no harm: put inserts and updates over what you have by (organization_id,
    engagement_id), remove deletes. After a crash everything since the last commit comes once more; nothing is skipped.
    Raises UnknownChoice, UnknownStart, StoresUnavailable.
    """

    def __init__(
        self,
        lake_uri: str | Path,
        *,
        name: str,
        organizations: Collection[str] | None = None,
        change_types: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
        start: Start = "beginning",
        max_rows: int = MAX_ROWS,
        follow: bool = False,
        poll: timedelta = timedelta(seconds=1),
        store_url: str | None = None,
    ) -> None:
        self.root = lake_root(lake_uri)
        self.organizations = None if organizations is None else frozenset(organizations)
        self.change_types, self.columns = chosen(change_types, columns)
        self.follow, self.poll = follow, poll
        uri = NOTIFICATION.uri(self.root)
        super().__init__(self.root, uri, name=name, start=start, max_rows=max_rows, store_url=store_url)
        self._delivered: Position | None = None
        """Where the last batch ended that was handed out and not committed."""

    def __repr__(self) -> str:
        return f"Changes({self.root!r}, name={self.name!r})"

    def __iter__(self) -> Iterator[Batch]:
        """Batches until all is read, or, with follow, for ever. Those without a row for this consumer are left out.

        Raises TooFarBehind, CursorMoved.
        """
        while True:
            batch = self._next()
            if batch is None:
                self._commit_silence()
                if not self.follow:
                    return
                time.sleep(self.poll.total_seconds())
            elif len(batch):
                self._delivered = batch.position
                yield batch

    def commit(self) -> None:
        """Go on from the end of the last batch (or snapshot) from now on. Raises CursorMoved, StoresUnavailable."""
        self._delivered = None
        super().commit()

    def resnapshot(self) -> Snapshot:
        """Everything that stands now; `commit()` then goes on after it. Later batches may repeat some of it.

        Reads the whole Data Table while the snapshot is iterated. Raises NothingToRead.
        """
        # In this order: a change that was announced by then is in the view.
        newest = log.version(self._uri)
        standing = standing_now(self.root)
        if standing is None:
            raise NothingToRead(self.root)
        self._position = Position(BEFORE_ALL if newest is None else newest)
        self._delivered = self._position
        return Snapshot(self._position, standing, self.columns, self.organizations)

    def _next(self) -> Batch | None:
        """The next stretch of notifications, also when nothing of it is for this consumer; None: all is read."""
        # Not `log.version`: that reads what the log has of all files, at each look of a consumer that waits.
        newest = log.newest_entry(self._uri)
        refuse_replaced(self.name, self._position, newest)
        if newest is None or newest == self._position.version:
            return None
        found = notified(
            self._uri, self.name, self._position,
            through=newest, most=self.max_rows, organizations=self.organizations,
        )  # fmt: skip
        batch = self._as_now(found.rows, found.position)
        self._position = found.position
        self._rows_read += batch.notifications
        return batch

    def _as_now(self, rows: pa.Table, position: Position) -> Batch:
        changed = by_engagement(rows)
        standing = standing_now(self.root) if changed.num_rows else None
        now = schema_of_rows(*self.columns).empty_table()
        if standing is not None:
            now = standing.find(changed, self.columns)
        previous, gone = _told_apart(changed, now)
        inserted, updated = pc.is_null(previous), pc.is_valid(previous)
        with_previous = now.append_column(_PREVIOUS, previous)
        return Batch(
            inserts=self._wanted("INSERT", now.filter(inserted)),
            updates=self._wanted("UPDATE", with_previous.filter(updated)),
            deletes=self._wanted("DELETE", gone),
            position=position,
            notifications=rows.num_rows,
        )

    def _wanted(self, change_type: str, rows: pa.Table) -> pa.Table:
        return rows if change_type in self.change_types else rows.slice(0, 0)

    def _commit_silence(self) -> None:
        """Step over what held nothing for this consumer, when all that it was given is committed."""
        if self._delivered is None and self._position != self.committed:
            self.commit()


def _told_apart(changed: pa.Table, now: pa.Table) -> tuple[pa.Array, pa.Table]:
    """(previous_person_id of each row of `now`, those of `changed` that `now` lacks)."""
    keys = zip(*(changed[name].to_pylist() for name in KEY), strict=True)
    before = dict(zip(keys, changed["previous_person_id"].to_pylist(), strict=True))
    standing = list(zip(*(now[name].to_pylist() for name in KEY), strict=True))
    previous = pa.array([before[key] for key in standing], pa.string())
    there = set(standing)
    mask = pa.array([key not in there for key in before], pa.bool_())
    return previous, changed.filter(mask).select(list(_DELETED))


def chosen(
    change_types: Collection[str] | None, columns: Sequence[str] | None
) -> tuple[frozenset[str], tuple[str, ...]]:
    """The change types, and the columns of `engagement/current`, ids first. Raises UnknownChoice."""
    types = frozenset(change_types or CHANGE_TYPES)
    _refuse_unknown("change type", types, CHANGE_TYPES)
    _refuse_unknown("column", columns or (), CURRENT_ROW.names)
    return types, tuple(CURRENT_ROW.names if columns is None else dict.fromkeys([*KEY, *columns]))


def _refuse_unknown(what: str, names: Collection[str], there: Sequence[str]) -> None:
    if unknown := sorted(set(names).difference(there)):
        raise UnknownChoice(what, unknown, there)

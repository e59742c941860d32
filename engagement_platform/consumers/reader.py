"""A durable cursor in one table: where its consumer is, where a new one begins, and the rows after that. No JVM."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from engagement_platform.engine.cursors import CursorStore
from engagement_platform.engine.database import open_engine
from engagement_platform.errors import PlatformError
from engagement_platform.lake import added_rows, log
from engagement_platform.lake.added_rows import BEFORE_ALL, AddedRowsUnknown
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.settings import Settings

Start = str | datetime
"""`beginning`, `now`, or a time with a zone."""

MAX_ROWS = 100_000
"""Notifications in one batch; with as many rows of the Data Table that is some 50 MB in memory (a guess)."""

_READ_AT_ONCE, _AHEAD = 16, 256
"""Entries of a log that are read side by side, since on an object store those of a week take half an hour one after the
other; and how many before it is known whether they are needed."""


class ConsumerRefused(PlatformError):
    """What was asked of a consumer cannot be done. Nothing was read, and no cursor was made or moved."""

    def __init__(self, why: str, do: str) -> None:
        super().__init__(f"{why} Nothing was read and no cursor was moved. {do}")


class TooFarBehind(PlatformError):
    """What a consumer has not read yet can no longer be read one by one."""

    def __init__(self, name: str, position: Position, why: str, table: str, *, stream: bool = False) -> None:
        self.name, self.position, self.why = name, position, why
        super().__init__(
            f"{'The stream' if stream else 'Consumer'} {name} cannot go on after version {position.version} of {table}:"
            f" {why}. Its cursor was not moved. {remedy(name, table, stream=stream)}"
        )


def remedy(name: str, table: str, *, stream: bool = False) -> str:
    """How a consumer goes on that what is left no longer leads to what stands."""
    if stream:
        return (
            "Replace what it has by `engagement/current`, then `engagement-platform consumers --forget-stream "
            f"{name}`, and start it with a new checkpoint folder: what the table has comes once more."
        )
    if table == NOTIFICATION.name:
        return (
            "Replace what it has by a snapshot and go on from there: `resnapshot()`, or `engagement-platform consume "
            f"--name {name} --resnapshot --out FILE`."
        )
    return (
        f"Begin anew at what is written from now on: `engagement-platform consumers --forget {name} --table {table}`, "
        f"then `engagement-platform consume --table {table} --name {name} --start now`. After that replace what it has "
        f"by the rows that stand, `engagement-platform read {table} --out FILE`; what is written meanwhile comes twice."
    )


@dataclass(frozen=True, order=True)
class Position:
    """All commits of a table up to `version` were read, and of the next one the first `rows` rows."""

    version: int = BEFORE_ALL
    rows: int = 0
    table_id: str | None = field(default=None, compare=False)
    """Of the table that was read, by which one that was made anew is known, however far it has grown; None: of none."""


def lake_root(lake_uri: str | Path) -> str:
    """A lake's root as cursors know it, however it was written: as `Settings.lake`, a URI of this machine as a path."""
    uri = re.sub(r"^file:(//)?(?=/)", "", str(lake_uri))
    root = uri if "://" in uri else str(Path(uri).expanduser().resolve())
    return log.storage_uri(root.rstrip("/"))


class Rows(Protocol):
    """What a reader hands out at a time; never without a row."""

    def __len__(self) -> int: ...

    def table(self) -> pa.Table: ...


B = TypeVar("B", bound=Rows)


@dataclass(kw_only=True, repr=False, eq=False)
class CursorReader(Generic[B]):
    """A reader of one table with a durable cursor. Iterate, keep each batch, then `commit()`.

    What the parameters mean is in `Changes`. A subclass calls `_open` with what it reads when it is made.
    """

    lake_uri: str | Path = field(kw_only=False)
    name: str
    start: Start = "beginning"
    max_rows: int = MAX_ROWS
    follow: bool = False
    poll: timedelta = timedelta(seconds=1)
    store_url: str | None = None

    def _open(self, table: Table, columns: Sequence[str], lake: str) -> None:
        """Go to the cursor in a table; a new consumer's is stored. lake: under which its cursors are kept.

        Raises ConsumerRefused, StoresUnavailable.
        """
        if self.max_rows < 1:
            raise ValueError("max_rows is at least 1")
        self._table, self._columns, self._uri, self._lake = table, columns, table.uri(self.root), lake
        self._cursors = CursorStore(open_engine(self.store_url or Settings().store_url))
        self._cursor = self._cursors.get(lake, self.name) or self._cursors.begin(
            lake, self.name, asdict(first_position(self._uri, self.start))
        )
        self._position, self._rows_read = self.committed, 0
        self._delivered = False
        """Whether a batch was handed out and not committed."""
        self._is_known = False
        """Whether the table was compared with the one that was read; again when it has something new."""
        self._looked_at = self._erased_at = BEFORE_ALL
        """Up to which version erasures were looked for, and the last one."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r}, name={self.name!r})"

    @cached_property
    def root(self) -> str:
        """Of the lake, as cursors know it."""
        return lake_root(self.lake_uri)

    @property
    def committed(self) -> Position:
        """Where a crash now would lead back to."""
        return Position(**self._cursor.position)

    def __iter__(self) -> Iterator[B]:
        """Batches until all is read, or, with follow, for ever. Raises TooFarBehind, CursorMoved."""
        while True:
            batch = self._next()
            if batch is not None:
                yield batch
            elif not self.follow:
                return
            else:
                time.sleep(self.poll.total_seconds())

    def commit(self) -> None:
        """Go on from the end of the last batch (or snapshot) from now on. Raises CursorMoved, StoresUnavailable."""
        self._delivered = False
        if asdict(self._position) != asdict(self.committed):
            self._cursor = self._cursors.move(self._cursor, asdict(self._position), self._rows_read)
        self._rows_read = 0

    def forget(self) -> None:
        """Give up the cursor: nothing is kept for this consumer any more."""
        self._cursors.forget(self._lake, self.name)

    def _next(self) -> B | None:
        """The next batch that has rows; None when all is read."""
        while (unread := self._unread()) is not None:
            newest, table_id = unread
            rows, position = self._stretch(newest)
            position = replace(position, table_id=table_id)
            batch = self._batch(rows, position)
            # Not before: where a look at the rows of now fails, they are read again.
            self._position, self._rows_read = position, self._rows_read + rows.num_rows
            if len(batch):
                self._delivered = True
                return batch
        if not self._delivered:
            # What held nothing for this consumer needs no commit of its own.
            self.commit()
        return None

    def _batch(self, rows: pa.Table, position: Position) -> B:
        """What is handed out for a stretch of the table that ends at `position`."""
        raise NotImplementedError

    def _unread(self) -> tuple[int, str | None] | None:
        """The newest version where it was not read yet, and the table's id. Raises TooFarBehind for another table."""
        # Not `log.version`: that reads what the log has of all files, at each look of a consumer that waits.
        newest = log.newest_entry(self._uri)
        if newest == self._position.version and self._is_known:
            return None
        table_id = log.table_id(self._uri)
        if (why := made_anew(self._position, newest, table_id)) is not None:
            raise TooFarBehind(self.name, self._position, why, self._table.name)
        self._is_known = True
        return None if newest in (None, self._position.version) else (newest, table_id)

    def _stretch(self, through: int) -> tuple[pa.Table, Position]:
        """At most `max_rows` rows after the position, in the order of their commits, and the position after them.

        Files that OPTIMIZE merged hold no new rows. What is before a commit that cannot be read is handed out first.
        Raises TooFarBehind.
        """
        parts, position, left = [schema_of(self._table, *self._columns).empty_table()], self._position, self.max_rows
        while left and position.version < through:
            try:
                rows, after = self._commit_after(position, left)
            except AddedRowsUnknown as error:
                if left < self.max_rows:
                    break
                raise TooFarBehind(self.name, self._position, error.why, self._table.name) from error
            parts.append(rows)
            position, left = after, left - rows.num_rows
        return pa.concat_tables(parts), position

    def _erasure_ahead(self, through: int) -> int | None:
        """The last version up to `through` in which an erasure changed the table, where it was not read yet.

        What it took away still stands in the files of versions before it. Looks at each entry of the log once.
        """
        for version in range(max(self._position.version, self._looked_at) + 1, through + 1):
            if added_rows.erases(self._uri, version):
                self._erased_at = version
        self._looked_at = max(self._looked_at, through)
        return self._erased_at if self._erased_at > self._position.version else None

    def _commit_after(self, position: Position, most: int) -> tuple[pa.Table, Position]:
        """At most so many rows of the commit that a position is in or before, and the position after them."""
        version, taken = position.version + 1, [schema_of(self._table, *self._columns).empty_table()]
        files = added_rows.added(self._uri, version)
        counts = [added_rows.rows_in(self._uri, file) for file in files]
        skip, left = position.rows, most
        for file, count in zip(files, counts, strict=True):
            if skip < count and left:
                rows = added_rows.read_here(self._uri, self._table, [file], self._columns)
                taken.append(rows.slice(skip, left))
                left -= taken[-1].num_rows
            skip = max(0, skip - count)
        read = position.rows + most - left
        return pa.concat_tables(taken), Position(version) if read >= sum(counts) else Position(version - 1, read)


def made_anew(position: Position, newest: int | None, table_id: str | None) -> str | None:
    """Why the table is another one than was read: it has fewer versions, or another id; None when it is the same."""
    if position.version > (BEFORE_ALL if newest is None else newest) or (newest is None and position.table_id):
        return f"{'there is no table' if newest is None else f'its newest version is {newest}'}, so it was made anew"
    if position.table_id not in (None, table_id):
        return f"it has another id than the table that was read ({table_id}, not {position.table_id}): it was made anew"
    return None


def first_position(uri: str, start: Start) -> Position:
    """Where a new consumer of the table at `uri` begins. Raises ConsumerRefused.

    Cost: nothing for `beginning` and `now`; each entry of the log before it for a time.
    """
    if start == "beginning":
        return Position()
    # Before the log is looked at, so that a mistake shows in an empty lake, too.
    moment = None if start == "now" else _moment(start)
    newest = log.version(uri)
    if newest is None:
        # Everything that is asked for is still to come.
        return Position()
    begin = Position(newest) if moment is None else _before_time(uri, moment, newest)
    return replace(begin, table_id=log.table_id(uri))


def _unknown(start: object, why: str) -> ConsumerRefused:
    return ConsumerRefused(
        f"A consumer cannot start at {start!r}: {why}.",
        "Start at `beginning`, `now`, or a time with a zone such as 2026-11-21T09:30:00+00:00.",
    )


def _moment(start: str | datetime) -> datetime:
    try:
        moment = datetime.fromisoformat(start) if isinstance(start, str) else start
    except ValueError:
        raise _unknown(start, "it is no starting point") from None
    if moment.tzinfo is None:
        raise _unknown(str(start), "it has no zone, and a guess could skip hours")
    return moment.astimezone(UTC)


def _before_time(uri: str, moment: datetime, newest: int) -> Position:
    """Before the first commit at or after a moment. Not by bisection: a clock that was set back would hide commits."""
    oldest = log.next_entry(uri, BEFORE_ALL)
    versions = range(newest + 1 if oldest is None else oldest, newest + 1)

    def is_since(version: int) -> bool:
        committed = log.committed(uri, version)
        return committed is not None and committed >= moment

    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        parts = (versions[begin : begin + _AHEAD] for begin in range(0, len(versions), _AHEAD))
        found = (next(compress(some, pool.map(is_since, some)), None) for some in parts)
        first = next((version for version in found if version is not None), versions.stop)
    # When it is older than the oldest entry, what was before that is needed, and reading it says what is gone.
    return Position(BEFORE_ALL if first == oldest and first > 0 else first - 1)

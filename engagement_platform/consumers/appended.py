"""Incremental read of an append-only table: each row once, in the order of its commits, and a durable cursor. No JVM.

For engagements, whose rows change, there is `changes`; here rows are as they were written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from engagement_platform.consumers.changes import MAX_ROWS, lake_root
from engagement_platform.consumers.position import CursorReader, Position, Start
from engagement_platform.errors import PlatformError
from engagement_platform.lake import added_rows, log
from engagement_platform.lake.added_rows import FilesVacuumed, TableReplaced
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.erased import is_erasure, is_erasure_of_players


class NotReadIncrementally(PlatformError):
    """A table was asked for that is not there, or whose rows change."""

    def __init__(self, table: str, why: str) -> None:
        self.table = table
        super().__init__(
            f"{table} cannot be read incrementally: {why}. Nothing was read and no cursor was made. Tables that are "
            "declared as engagement_platform.KafkaTable can; of engagements, whose rows change, `consume` without "
            "--table tells what changed."
        )


@dataclass(frozen=True)
class Appended:
    """Some rows, and the position after them."""

    rows: pa.Table
    position: Position


class Appends(CursorReader):
    """Rows that were added to a table since a consumer committed last. Iterate, keep each batch, then `commit()`.

    lake_uri: root of the tables. table: such as `shop/click`; append-only. name: of the consumer, unique among those of
    the table; one process at a time reads under it. start: where a new consumer begins, as for `Changes`. max_rows: at
    most so many rows in a batch. follow: wait for more instead of ending, looking every `poll`. store_url: database of
    the cursor; default: that of the settings. erases: the consumer takes erased players out of what it keeps by itself,
    so that it goes on behind their erasure. past_restores: go on behind a restore of the table: rows that it undid have
    been handed out, and come once more when they are read again. Without the two, RowsTakenAway says so.

    After a crash everything since the last commit comes once more, in the same batches; nothing is skipped. Files that
    OPTIMIZE merged hold no new rows and are passed by. VACUUM keeps what a consumer has yet to read.
    Raises NotReadIncrementally, UnknownStart, StoresUnavailable.
    """

    def __init__(
        self,
        lake_uri: str | Path,
        table: str,
        *,
        name: str,
        start: Start = "beginning",
        max_rows: int = MAX_ROWS,
        follow: bool = False,
        poll: timedelta = timedelta(seconds=1),
        store_url: str | None = None,
        erases: bool = False,
        past_restores: bool = False,
    ) -> None:
        self.root, self.table = lake_root(lake_uri), table
        self.follow, self.poll = follow, poll
        self._passed = _passed(erases=erases, past_restores=past_restores)
        self._contract = _contract(self.root, table)
        uri, lake = self._contract.uri(self.root), cursor_root(self.root, table)
        super().__init__(lake, uri, name=name, start=start, max_rows=max_rows, store_url=store_url)

    def __iter__(self) -> Iterator[Appended]:
        """Batches until all is read, or, with follow, for ever.

        Raises CursorMoved, and what following a table raises: CommitsExpired, FilesVacuumed, RowsTakenAway,
        TableReplaced.
        """
        while True:
            found = self._next()
            if found is not None:
                yield found
            elif not self.follow:
                return
            else:
                time.sleep(self.poll.total_seconds())

    def _next(self) -> Appended | None:
        newest = log.version(self._uri)
        if newest is None or newest < self._position.version:
            raise TableReplaced(self._uri, self._position.version, newest)
        for version in range(self._position.version + 1, newest + 1):
            files = added_rows.added(self._uri, version, passed=self._passed)
            left = sum(added_rows.rows_in(self._uri, file) for file in files) - self._position.rows
            if left <= 0:
                self._position = Position(version)
                continue
            taken = min(left, self.max_rows)
            rows = self._rows(files).slice(self._position.rows, taken)
            end = Position(version) if taken == left else Position(version - 1, self._position.rows + taken)
            self._position, self._rows_read = end, self._rows_read + taken
            return Appended(rows, end)
        return None

    def _rows(self, files: list[added_rows.Added]) -> pa.Table:
        try:
            return added_rows.read_here(self._uri, self._contract, files, self._contract.column_names)
        except FileNotFoundError:
            first = files[0].version
            committed = log.committed(self._uri, first)
            raise FilesVacuumed(self._uri, first, committed, [file.path for file in files]) from None


def _passed(*, erases: bool, past_restores: bool) -> Callable[[str | None], bool]:
    """Which commits that take rows away are passed by, by their user metadata."""
    return lambda marker: (
        is_erasure(marker)
        or (erases and is_erasure_of_players(marker))
        or (past_restores and added_rows.is_restore(marker))
    )


def cursor_root(root: str, table: str) -> str:
    """Under which the cursors of a table's consumers are kept; those of notifications go by the lake itself."""
    return f"{root}/{table}"


def _contract(root: str, table: str) -> Table:
    """What the table says of itself. Raises NotReadIncrementally."""
    found = log.describe(f"{root}/{table}")
    if found is None:
        raise NotReadIncrementally(table, f"there is no such table under {root} yet")
    if found.properties.get("delta.appendOnly", "false") != "true":
        raise NotReadIncrementally(table, "rows that were written may change")
    return Table(
        key=tuple(table.split("/")),
        description="",
        mode=Mode.APPEND_ONLY,
        partitioned_by=found.partitioned_by,
        columns=tuple(Column(name, kind, "") for name, kind in found.columns.items()),
    )

"""Incremental read of an append-only table: each row once, in the order of its commits, and a durable cursor. No JVM.

For engagements, whose rows change, there is `changes`; here rows are as they were written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from deltalake.exceptions import DeltaError

from engagement_platform.consumers.reader import ConsumerRefused, CursorReader, Position, TooFarBehind
from engagement_platform.errors import first_line
from engagement_platform.lake import log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import OPENED, TABLE_NAME, Column, Found, Mode, Table
from engagement_platform.lake.engagement import NOTIFICATION

_MAPPING = "delta.columnMapping.mode"
_UNDERSTOOD = frozenset({"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features of tables that leave added rows as they are, or that are looked at by the table's mode and types."""


@dataclass(frozen=True)
class Appended:
    """Some rows, and the position after them."""

    rows: pa.Table
    position: Position

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def table(self) -> pa.Table:
        return self.rows


@dataclass(kw_only=True, repr=False, eq=False)
class Appends(CursorReader[Appended]):
    """Rows that were added to a table since a consumer committed last. Iterate, keep each batch, then `commit()`.

    table: such as `shop/click`; append-only. name: of the consumer, unique among those of the table. The other
    parameters are those of `Changes`. A restore of the table ends with TooFarBehind once it is reached; an erasure that
    takes rows out of it does at once, since former files still have them.

    After a crash everything since the last commit comes once more; nothing is skipped. VACUUM keeps what a consumer has
    yet to read. Raises ConsumerRefused, StoresUnavailable.
    """

    table: str = field(kw_only=False)

    def __post_init__(self) -> None:
        contract = _contract(self.root, self.table)
        self._open(contract, contract.column_names, cursor_root(self.root, self.table))

    def _unread(self) -> tuple[int, str | None] | None:
        unread = super()._unread()
        if unread is not None and (found := log.describe(self._uri)) is not None:
            # A declared table gains columns while its rows are followed. While an erasure is at work it is not
            # append-only, which is nothing to this reader.
            self._table = _named(self.table, self._uri, found)
            self._columns = self._table.column_names
        return unread

    def _stretch(self, through: int) -> tuple[pa.Table, Position]:
        """As of every reader. Raises TooFarBehind also where an erasure is in what was not read yet."""
        if (version := self._erasure_ahead(through)) is not None:
            why = f"an erasure took rows away in version {version}, and what is before it may have them"
            raise TooFarBehind(self.name, self._position, why, self._table.name)
        return super()._stretch(through)

    def _batch(self, rows: pa.Table, position: Position) -> Appended:
        return Appended(rows, position)


def cursor_root(root: str, table: str) -> str:
    """Under which the cursors of a table's consumers are kept; those of what changed go by the lake itself."""
    return f"{root}/{table}"


def _contract(root: str, table: str) -> Table:
    """The table as its log describes it. Raises ConsumerRefused."""
    if not TABLE_NAME.fullmatch(table):
        raise ConsumerRefused(f"{table!r} is no name of a table.", "Write it like shop/click.")
    uri, notified = f"{root}/{table}", table == NOTIFICATION.name
    try:
        found = log.describe(uri)
    except DeltaError as error:
        raise _not_understood(table, first_line(error)) from error
    if notified or found is None or "true" not in map(found.properties.get, ("delta.appendOnly", OPENED)):
        why = f"there is no such table under {root} yet" if found is None else "rows that were written may change"
        # What VACUUM keeps of it goes by cursors of those that read what became of the engagements that it names.
        why = "it only names what changed" if notified else why
        raise ConsumerRefused(
            f"{table} cannot be read incrementally: {why}.",
            "Append-only tables can, such as those that you declare; for engagements call `consume` without --table.",
        )
    return _named(table, uri, found)


def _named(table: str, uri: str, found: Found) -> Table:
    """The contract. Raises ConsumerRefused where rows may not be in the table's files as its schema says."""
    named = Table(
        key=tuple(table.split("/")),
        description="",
        mode=Mode.APPEND_ONLY,
        partitioned_by=found.partitioned_by,
        columns=tuple(Column(name, kind, "") for name, kind in found.columns.items()),
    )
    if found.properties.get(_MAPPING, "none") != "none":
        raise _not_understood(table, f"its files have other names of columns ({_MAPPING})")
    if features := set(log.open_version(uri).protocol().reader_features or ()) - _UNDERSTOOD:
        raise _not_understood(table, f"it has {', '.join(sorted(features))}")
    try:
        schema_of(named)
    except ValueError as error:
        raise _not_understood(table, str(error)) from error
    return named


def _not_understood(table: str, why: str) -> ConsumerRefused:
    return ConsumerRefused(f"{table} cannot be read without Spark: {why}.", "Stream it by Spark.")

"""Declares tables (name, columns, partitioning, mode) and compares a declaration with an existing table.

The platform's own tables are in `engagement`; creating and writing them is `lake`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from engagement_platform.errors import PlatformError

PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
"""A declared name, of a column or a part of a table's: SQL takes it without quotes, and no two differ by case alone."""

TABLE_NAME = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)+")
"""A table of the lake, also one that others write, spelled in the one way by which cursors and locks know it."""

OPENED = "engagement_platform.opened_by_erasure"
"""Property of an append-only table while an erasure removes rows from it, and after one that died meanwhile."""

AUTO_COMPACT = "delta.autoOptimize.autoCompact"
"""Property of a table whose partitions Delta merges after a write that left one with many small files. Looking for them
is two more Spark jobs for each write: of thirty game tables they took a third of a batch (2 cores). In a liquid table
it would write each new file twice (Delta 4.4.0)."""


class Mode(StrEnum):
    """How rows may change. Only append-only tables may be streamed from."""

    APPEND_ONLY = "append-only"
    MUTABLE = "mutable"


@dataclass(frozen=True)
class Column:
    """One column: its Spark SQL type, and what it holds."""

    name: str
    type: str
    comment: str


@dataclass(frozen=True)
class Table:
    """The contract of one Delta table under the lake's root."""

    key: tuple[str, ...]
    description: str
    columns: tuple[Column, ...]
    mode: Mode
    partitioned_by: tuple[str, ...] = ()
    liquid_by: tuple[str, ...] = ()
    subject_columns: tuple[str, ...] = ()
    """Columns with ids of the subject of a row, by which an erasure finds the row."""
    bounds: int = 32
    """How many leading columns have their bounds in the log, which keeps them after rows are gone."""

    @property
    def name(self) -> str:
        """The path below the lake's root, such as `engagement/data`."""
        return "/".join(self.key)

    def uri(self, lake: str) -> str:
        """Where the table is, given the lake's root."""
        return f"{lake}/{self.name}"

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns in their declared order; the leading ones carry the statistics."""
        return tuple(column.name for column in self.columns)

    @property
    def ddl(self) -> str:
        """The columns as a Spark DDL string, without comments."""
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)

    def place_of(self, column: Column) -> str:
        """The position of a column, in the syntax of ADD COLUMNS."""
        place = self.columns.index(column)
        return f"AFTER `{self.columns[place - 1].name}`" if place else "FIRST"

    @property
    def properties(self) -> Mapping[str, str]:
        """Delta table properties that the mode asks for."""
        # A checkpoint costs its commit a CPU second more (2 cores, local disk), and until the next each commit reads
        # all entries of the log since; 30 weighs both (a guess).
        properties = {
            "delta.dataSkippingNumIndexedCols": str(self.bounds),
            "delta.checkpointInterval": "30",
            # Delta's default, 30 days, is 260,000 commits at one each ten seconds, of 16 KB; every listing of the log
            # on a disk takes the longer the more there are. As long as VACUUM keeps files.
            "delta.logRetentionDuration": "interval 7 days",
        }
        if self.mode is Mode.APPEND_ONLY:
            properties["delta.appendOnly"] = "true"
        elif self.partitioned_by:
            properties[AUTO_COMPACT] = "true"
        return properties


def refuse_partitions_of_subjects(table: str, subject: str | None, partitioned_by: Sequence[str]) -> None:
    """Raise ValueError where a table is to be partitioned by the column with its subjects' ids."""
    if subject in partitioned_by:
        raise ValueError(
            f"{table} cannot be partitioned by {subject}, which has the ids of persons: names of folders, logs and "
            "layout/history would keep them after an erasure. Leave it out of partitioned_by, and look rows up by it "
            "as the key"
        )


class ContractBroken(PlatformError):
    """An existing table is not what its contract says."""

    def __init__(self, table: str, differences: Sequence[str]) -> None:
        self.table, self.differences = table, tuple(differences)
        lines = "; ".join(differences)
        super().__init__(
            f"The table {table} differs from its contract: {lines}. Nothing was written. Missing columns can be added "
            "with ENGAGEMENT_PLATFORM_LAYOUT__EVOLVE=true. Another partitioning: set the layout.scheme that the table "
            "has, or give it the one that is set with `engagement-platform migrate`. For anything else move the table "
            "away (it is rebuilt by `engagement-platform reset` and a new run)."
        )


class NotAStreamSource(PlatformError):
    """A table whose rows change was asked for as a stream."""

    def __init__(self, table: Table) -> None:
        self.table = table.name
        super().__init__(
            f"The table {table.name} changes rows that were written, so it cannot be streamed from: a stream would "
            "fail at the first change, or miss it. Nothing was started. Stream engagement/notification, which has a "
            "row for every change, and fetch the rows it names from the table."
        )


@dataclass(frozen=True)
class Found:
    """An existing table's own declaration: columns as name -> Spark SQL type, in order."""

    columns: Mapping[str, str]
    partitioned_by: tuple[str, ...]
    properties: Mapping[str, str]


def differences(contract: Table, found: Found) -> tuple[list[Column], list[str]]:
    """(columns that could be added, differences that cannot be healed) between a contract and a table.

    Extra columns in the table are a difference, since a writer that does not know them leaves them null. So is their
    order, since statistics cover leading columns.
    """
    missing = [column for column in contract.columns if column.name not in found.columns]
    problems = [
        f"column {column.name} is {found.columns[column.name]}, declared {column.type}"
        for column in contract.columns
        if column.name in found.columns and _plain(found.columns[column.name]) != _plain(column.type)
    ]
    problems += undeclared(contract, found.columns)
    common = [name for name in contract.column_names if name in found.columns]
    if not problems and common != [name for name in found.columns if name in contract.column_names]:
        problems.append(f"the order of columns is {', '.join(found.columns)}")
    if tuple(found.partitioned_by) != contract.partitioned_by:
        problems.append(partitioned_otherwise(found.partitioned_by, contract))
    append_only = found.properties.get("delta.appendOnly", "false") == "true"
    # A table that an erasure has opened is closed by it, or by the erasure that is made again.
    opened = found.properties.get(OPENED) == "true" and contract.mode is Mode.APPEND_ONLY
    if append_only != (contract.mode is Mode.APPEND_ONLY) and not opened:
        problems.append(f"delta.appendOnly is {str(append_only).lower()}, declared {contract.mode}")
    return missing, problems


def undeclared(contract: Table, columns: Iterable[str]) -> list[str]:
    """Each column that a table has and its contract does not, as a sentence."""
    return [f"column {name} is not declared" for name in columns if name not in contract.column_names]


def partitioned_otherwise(partitioned_by: Sequence[str], contract: Table) -> str:
    """The difference as a sentence, of a table that is not partitioned as declared."""
    return f"partitioned by ({', '.join(partitioned_by)}), declared ({', '.join(contract.partitioned_by)})"


def declared(columns: Iterable[Column]) -> str:
    """Columns as DDL. Comments are in single quotes, so those inside become typographic ones."""
    return ", ".join(f"`{c.name}` {c.type} COMMENT '{c.comment.replace(chr(39), '’')}'" for c in columns)


def _plain(spark_type: str) -> str:
    return "".join(spark_type.lower().split()).replace("bigint", "long").replace("integer", "int")

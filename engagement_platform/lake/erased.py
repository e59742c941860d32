"""Takes rows out of a table for good, also of an append-only one, and without a word of whom in the log; for erasures.

Former versions have the rows until VACUUM; which files those are is told here too. Who is erased is `pii`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from pyspark.sql import functions as F

from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.lake import light, log
from engagement_platform.lake.contract import Found, Mode, Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.turns import turn

ERASE_SUBJECTS = "erase-subjects"
"""The job that erases somebody from the tables of engagements and entities."""

ERASE_PLAYERS = "pii-erasure"
"""Under which players are erased from tables of games, and anybody from declared ones; a transaction each time."""

PSEUDONYM = "\x1aerased:"
"""How ids begin that stand in the place of an erased person's; messages cannot say it, for its control character."""

_APPEND_ONLY = "delta.appendOnly"


def is_erasure(marker: str | None) -> bool:
    """Whether a commit, by its user metadata, is of that job: where it takes files away, what it adds is not new."""
    return (marker or "").startswith(f"{ERASE_SUBJECTS}@")


def is_erasure_of_players(marker: str | None) -> bool:
    """Whether a commit, by its user metadata, took an erased player's rows out of a table of games, or of a declared
    one."""
    return (marker or "").startswith(f"{ERASE_PLAYERS}/")


def is_pseudonym(person_id: str | None) -> bool:
    """Whether an id stands in the place of an erased person's."""
    return person_id is not None and person_id.startswith(PSEUDONYM)


class RowsNotTakenOut(PlatformError):
    """A table has features with which rows can only be taken out by Spark, which is not at hand."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"Rows cannot be taken out of {table} without Spark: it has deletion vectors, random folder names or some "
            "other feature that delta-rs does not write. Keys are destroyed, and what the erasure came to before is "
            "done; nothing of this table was changed. Switch the feature off on the table and erase again."
        )


def opened(root: str, table: Table) -> DeltaTable | None:
    """The table as it is now, None where there is none. Raises RowsNotTakenOut."""
    uri = table.uri(root)
    if not DeltaTable.is_deltatable(uri):
        return None
    found = light.opened(uri, table)
    if found is None:
        raise RowsNotTakenOut(table.name)
    return found


def take_out(root: str, table: Table, rows: pa.Table, txn: Transaction, lake: Lake | None = None) -> int:
    """Remove the rows that equal one of `rows` in all of its columns; how many, where delta-rs did it.

    An append-only table is open for it meanwhile: one commit opens it, one closes it. A process that dies in between
    leaves a table that its contract refuses, until the same call is made again, be it with nothing to remove.
    Skipped when this transaction is in the table already. lake: by it Spark does what delta-rs cannot; without it
    that raises RowsNotTakenOut. Its streams stop at the removal, unless they pass by changes. Raises TableBusy.
    """
    if lake is not None and needs_spark(lake.root, table):
        return _in_spark(lake, table, rows, txn, rows.column_names)
    return _in_place(root, table, rows, txn, lambda found: light.take_out(found, rows, txn))


def change(
    root: str, table: Table, rows: pa.Table, txn: Transaction, lake: Lake | None = None, *, on: Sequence[str]
) -> int:
    """Give the rows that equal one of `rows` in the columns `on` its other columns; otherwise as `take_out`.

    rows: one for each value of `on`.
    """
    if lake is not None and needs_spark(lake.root, table):
        return _in_spark(lake, table, rows, txn, on)
    return _in_place(root, table, rows, txn, lambda found: light.change(found, rows, txn, on=on))


def needs_spark(root: str, table: Table) -> bool:
    """Whether rows of a table that is there can be taken out by Spark only."""
    if "://" in root:
        return True
    uri = table.uri(root)
    return DeltaTable.is_deltatable(uri) and light.opened(uri, table) is None


def _in_spark(lake: Lake, table: Table, rows: pa.Table, txn: Transaction, on: Sequence[str]) -> int:
    """Both of it, by a MERGE whose condition names columns only; rows that are only marked leave their files, too."""
    name = lake.sql_name(table)
    if log.version(lake.uri(table)) is None:
        return 0
    with turn(lake.root, table.name):
        properties = (log.describe(lake.uri(table)) or _NOTHING).properties
        append_only = table.mode is Mode.APPEND_ONLY
        try:
            if rows.num_rows:
                txn.guard()
                if append_only and properties.get(_APPEND_ONLY) == "true":
                    lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_APPEND_ONLY}' = 'false')").collect()
                source = lake.frame(rows).select(*(F.col(each).alias(f"new_{each}") for each in rows.column_names))
                matched = reduce(and_, (F.col(each) == F.col(f"new_{each}") for each in on))
                merge = source.mergeInto(name, matched)
                taken = {each: F.col(f"new_{each}") for each in rows.column_names if each not in on}
                merge = merge.whenMatched().update(taken) if taken else merge.whenMatched().delete()
                with lake.transaction(txn):
                    merge.merge()
                if properties.get("delta.enableDeletionVectors") == "true":
                    lake.spark.sql(f"REORG TABLE {name} APPLY (PURGE)").collect()
        finally:
            now = (log.describe(lake.uri(table)) or _NOTHING).properties
            if append_only and now.get(_APPEND_ONLY) != "true":
                lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_APPEND_ONLY}' = 'true')").collect()
    return 0


_NOTHING = Found({}, (), {})


def _in_place(root: str, table: Table, rows: pa.Table, txn: Transaction, work: Callable[[DeltaTable], int]) -> int:
    with turn(root, table.name):
        found = opened(root, table)
        if found is None:
            return 0
        done = 0
        try:
            if rows.num_rows and not light.written(found, txn):
                txn.guard()
                _set_append_only(found, table, open_to_removals=True)
                done = work(found)
        finally:
            _set_append_only(DeltaTable(table.uri(root)), table, open_to_removals=False)
    return done


def current_files(root: str, table: Table) -> set[Path]:
    """The files of the newest version, on this machine's disk; none where there is no table."""
    uri = table.uri(root)
    if not DeltaTable.is_deltatable(uri):
        return set()
    return {_on_disk(each) for each in DeltaTable(uri).file_uris()}


def _on_disk(uri: str) -> Path:
    return Path(unquote(urlparse(uri).path)) if uri.startswith("file:") else Path(uri)


def _set_append_only(found: DeltaTable, table: Table, *, open_to_removals: bool) -> None:
    wanted = "false" if open_to_removals else "true"
    if table.mode is Mode.APPEND_ONLY and found.metadata().configuration.get(_APPEND_ONLY, "false") != wanted:
        found.alter.set_table_properties(
            {_APPEND_ONLY: wanted}, commit_properties=CommitProperties(max_commit_retries=0)
        )

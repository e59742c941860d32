"""Takes rows out of a table for good, also of an append-only one, and without a word of whom in the log; for erasures.

Former versions have the rows until VACUUM; which files those are is told here too. Who is erased is `pii`'s business.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from engagement_platform.errors import PlatformError
from engagement_platform.microbatch.model import Transaction
from engagement_platform.tables import light
from engagement_platform.tables.contract import Mode, Table
from engagement_platform.tables.turns import turn

_APPEND_ONLY = "delta.appendOnly"


class RowsNotTakenOut(PlatformError):
    """A table has features with which rows can only be taken out by Spark."""

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


def take_out(root: str, table: Table, rows: pa.Table, txn: Transaction) -> int:
    """Remove the rows that equal one of `rows` in all of its columns; how many that were.

    An append-only table is open for it meanwhile: one commit opens it, one closes it. A process that dies in between
    leaves a table that its contract refuses, until the same call is made again, be it with nothing to remove.
    Its streams stop at the removal. Raises RowsNotTakenOut, TableBusy.
    """
    with turn(root, table.name):
        found = opened(root, table)
        if found is None:
            return 0
        gone = 0
        try:
            if rows.num_rows:
                _set_append_only(found, table, open_to_removals=True)
                gone = light.take_out(found, rows, txn)
        finally:
            _set_append_only(DeltaTable(table.uri(root)), table, open_to_removals=False)
    return gone


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

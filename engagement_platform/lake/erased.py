"""Removes rows from a table for an erasure, also from an append-only one, and leaves no id in the log.

Former versions have the rows until VACUUM. `pii` and `erasing` decide who is erased.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
from pyspark.sql import functions as F

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import log
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import OPENED, Mode, Table
from engagement_platform.lake.lake import Lake

ERASE_SUBJECTS = "erase-subjects"
"""The job that erases a person from the tables of engagements and entities."""

ERASE_PLAYERS = "pii-erasure"
"""Application id of erasures of players from tables of games, and of subjects from declared tables."""

PSEUDONYM = "\x1aerased:"
"""Prefix of the ids that replace an erased person's; its control character is refused in messages."""

_APPEND_ONLY = "delta.appendOnly"
_IS_GONE = "is_gone"
_SKIPS_FILES = ("organization_id", "engagement_date")
"""Of these columns the first and last value may appear in a log."""


def is_erasure(marker: str | None) -> bool:
    """Whether a commit, by its user metadata, is of that job: where it takes files away, what it adds is not new."""
    return (marker or "").startswith(f"{ERASE_SUBJECTS}@")


def is_erasure_of_players(marker: str | None) -> bool:
    """Whether a commit, by its user metadata, took an erased player's rows out of a table of games, or of a declared
    one."""
    return (marker or "").startswith(f"{ERASE_PLAYERS}/")


def rewrite(
    lake: Lake,
    table: Table,
    txn: Transaction,
    *,
    on: Sequence[str],
    gone: pa.Table | None = None,
    changed: pa.Table | None = None,
    where: str = "TRUE",
) -> None:
    """In one commit of Spark remove the rows that equal one of `gone` in the columns `on`, and give those that equal
    one of `changed` its other columns, as far as `where` holds.

    Each key is in one of both, in `changed` once. The condition of the MERGE names columns, and of organizations and
    days the first and the last. An append-only table is opened for it by one commit and closed by another; where the
    process dies in between it stays open, which its property `OPENED` says, until the same call is made again, be it
    with nothing to remove. Streams stop at the removal unless they skip changes. Skipped when this transaction is in
    the table already, or there is no table. Raises TableBusy, StoresBehind.
    """
    uri, name = lake.uri(table), lake.sql_name(table)
    with commit_lock(lake.root, table.name):
        found = log.describe(uri)
        if found is None:
            return
        try:
            if sum(rows.num_rows for rows in (gone, changed) if rows is not None):
                if not lake.holds(table, txn):
                    txn.guard()
                    if table.mode is Mode.APPEND_ONLY:
                        _alter(lake, table, open_to_removals=True)
                    with lake.transaction(txn):
                        _merge(lake, table, on, gone, changed, where)
                if found.properties.get("delta.enableDeletionVectors") == "true":
                    # Rows that are only marked as removed leave their files, too.
                    lake.spark.sql(f"REORG TABLE {name} APPLY (PURGE)").collect()
        finally:
            if table.mode is Mode.APPEND_ONLY:
                _alter(lake, table, open_to_removals=False)


def _merge(
    lake: Lake, table: Table, on: Sequence[str], gone: pa.Table | None, changed: pa.Table | None, where: str
) -> None:
    parts = [
        rows.append_column(_IS_GONE, pa.repeat(pa.scalar(is_gone), rows.num_rows))
        for rows, is_gone in ((changed, False), (gone, True))
        if rows is not None
    ]
    rows = pa.concat_tables(parts, promote_options="default")
    source = lake.frame(rows).select(*(F.col(each).alias(f"new_{each}") for each in rows.column_names))
    matched = [F.col(each) == F.col(f"new_{each}") for each in on]
    for each in set(_SKIPS_FILES).intersection(on):
        values = set(rows.column(each).to_pylist())
        matched.append(F.col(each).between(min(values), max(values)))
    merge = source.mergeInto(lake.sql_name(table), reduce(and_, matched))
    merge = merge.whenMatched(F.col(f"new_{_IS_GONE}")).delete()
    if changed is not None:
        taken = {each: F.col(f"new_{each}") for each in changed.column_names if each not in on}
        merge = merge.whenMatched(F.expr(where)).update(taken)
    merge.merge()


def _alter(lake: Lake, table: Table, *, open_to_removals: bool) -> None:
    wanted = "false" if open_to_removals else "true"
    found = log.describe(lake.uri(table))
    if found is not None and found.properties.get(_APPEND_ONLY, "false") != wanted:
        name = lake.sql_name(table)
        opened = str(open_to_removals).lower()
        lake.spark.sql(
            f"ALTER TABLE {name} SET TBLPROPERTIES ('{_APPEND_ONLY}' = '{wanted}', '{OPENED}' = '{opened}')"
        ).collect()


def current_files(root: str, table: Table) -> set[Path]:
    """The files of the newest version, on this machine's disk; none where there is no table."""
    found = log.open_log(table.uri(root))
    uris = [] if found is None else found.file_uris()
    return {Path(unquote(urlparse(uri).path)) if uri.startswith("file:") else Path(uri) for uri in uris}

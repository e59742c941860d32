"""The timer table: one row for each permutation that was measured. Kept through delta-rs; who measures is `run`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.perftest.spec import Permutation
from engagement_platform.engine.model import Transaction
from engagement_platform.lake import log, scan, store_tables
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import Column, Mode, Table

TIMER = Table(
    key=("perftest", "timer"),
    description="One row for each permutation that `engagement-platform perftest` measured.",
    mode=Mode.APPEND_ONLY,
    columns=(
        Column("perftest_id", "string", "Stands for the parameters; the same parameters have the same."),
        Column("name", "string", "Of the spec."),
        Column("run", "long", "From 1."),
        Column("operation", "string", "read or write."),
        Column("method", "string", "How base and changeset were joined."),
        Column("query", "string", "Predicate of a read; empty for a write."),
        Column("seconds", "double", "From asking for the view until its rows were shown, or committed."),
        Column("start_s", "double", "Seconds that Spark took to start, before that."),
        Column("rows", "long", "Rows that were found or written."),
        Column("checksum", "string", "Sum over the hashes of these rows."),
        Column("pending_rows", "long", "Changes that waited in the changeset."),
        Column("broadcast", "boolean", "Whether folded changes were sent to every task."),
        Column("started_ts", "timestamp", "When the process was started, UTC."),
        Column("parameters", "string", "Everything else that a figure depends on, as JSON; without secrets."),
    ),
)

Row = Mapping[str, Any]


def rows_of(root: str, perftest_id: str) -> list[Row]:
    """What was measured under these parameters, in the order of measurement; empty where the table is not there."""
    uri = TIMER.uri(root)
    if log.version(uri) is None:
        return []
    found = scan.find(DeltaTable(log.storage_uri(uri)), TIMER.column_names, {"perftest_id": [perftest_id]})
    return sorted(found.to_pylist(), key=lambda row: row["started_ts"])


def permutation_of(row: Row) -> Permutation:
    """Which one a row is about."""
    return Permutation(row["run"], row["operation"], row["method"], row["query"])


def add(root: str, row: Row) -> None:
    """Append one row; nothing happens when this permutation has one."""
    uri = log.storage_uri(TIMER.uri(root))
    if "://" not in root:
        Path(root).mkdir(parents=True, exist_ok=True)
    with commit_lock(root, TIMER.name):
        store_tables.create(uri, TIMER)
        found = DeltaTable(uri)
        txn = Transaction(f"perftest/{row['perftest_id']}/{permutation_of(row)}", 0)
        if not store_tables.written(found, txn):
            rows: pa.Table = table_of([row], TIMER)
            store_tables.append(found, rows, txn)

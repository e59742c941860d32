"""Makes, fills and empties the stores that are Delta tables, through delta-rs: the vault's and the timer's.

The ingest server fills the vault and has no JVM. Callers hold the lock of the table. Tables of pipelines are Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, WriterProperties, write_deltalake
from deltalake import Transaction as TxnAction

from engagement_platform.engine.model import Transaction
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.scan import MAX_LITERALS, condition

_STATISTICS_LENGTH = 32
_COMPACT_FILES = 50
_STRAY_HOURS = 24
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


def create(uri: str, table: Table) -> None:
    """Make an empty table where there is none."""
    commented = [
        field.with_metadata({"comment": column.comment})
        for field, column in zip(schema_of(table), table.columns, strict=True)
    ]
    by, properties = list(table.partitioned_by), dict(table.properties)
    DeltaTable.create(uri, pa.schema(commented), mode="ignore", partition_by=by, configuration=properties)


def written(found: DeltaTable, txn: Transaction) -> bool:
    """Whether the table holds this transaction, or a later one of its application."""
    last = found.transaction_version(txn.app_id)
    return last is not None and last >= txn.version


def append(found: DeltaTable, rows: pa.Table, txn: Transaction) -> None:
    """Add rows with the table's columns; then a day that has many small files gets them merged."""
    write_deltalake(found, rows, mode="append", writer_properties=_writer(), **_named(txn))
    if "received_date" not in rows.column_names:
        return
    found.update_incremental()
    for day in {str(day) for day in rows.column("received_date").to_pylist()}:
        of_day = [("received_date", "=", day)]
        if len(found.file_uris(of_day)) >= _COMPACT_FILES:
            found.optimize.compact(partition_filters=of_day, writer_properties=_writer())


def remove(found: DeltaTable, where: Mapping[str, Sequence[Any]], txn: Transaction) -> int:
    """Remove the rows whose columns have one of the given values, at most MAX_LITERALS each; how many that were.

    Files with such rows are written anew without them; the old ones stay until `purge`.
    """
    if any(len(values) > MAX_LITERALS for values in where.values()):
        raise ValueError("bounds are no condition for removing rows")
    done = found.delete(condition(where, {}), writer_properties=_writer(), **_named(txn))
    return int(done["num_deleted_rows"] or 0)


def replace(found: DeltaTable, where: Mapping[str, Sequence[Any]], rows: pa.Table, txn: Transaction) -> None:
    """Put rows in the place of those whose partition columns have one of the given values."""
    predicate = condition(where, {})
    write_deltalake(found, rows, mode="overwrite", predicate=predicate, writer_properties=_writer(), **_named(txn))


def purge(found: DeltaTable) -> None:
    """Delete every file that the table does not have now: nobody reads former versions of these tables.

    On an object store no lock keeps an append away, whose files are there before its commit: what the log has never had
    stays there for a day.
    """
    is_alone = found.table_uri.startswith(("/", "file:"))
    found.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=is_alone)
    if not is_alone:
        found.vacuum(_STRAY_HOURS, dry_run=False, enforce_retention_duration=False, full=True)


def _writer() -> WriterProperties:
    return WriterProperties(compression="SNAPPY", statistics_truncate_length=_STATISTICS_LENGTH)


def _named(txn: Transaction) -> dict[str, Any]:
    named = CommitProperties(
        custom_metadata={"userMetadata": txn.metadata},
        app_transactions=[TxnAction(txn.app_id, txn.version)],
        # Writers hold the table's lock; a conflict means that one does not, and has to be an error.
        max_commit_retries=0,
    )
    return {"commit_properties": named, "post_commithook_properties": _NO_HOOKS}

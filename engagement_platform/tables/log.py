"""What the Delta log says of a table, read without a JVM: version, schema, commits and their metrics.

Reading only, through delta-rs; a Spark job for the same answers costs a few tenths of a second each, and a batch
asks a dozen times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from engagement_platform.tables.contract import Found

_SPARK_TYPES = {"integer": "int", "short": "smallint", "byte": "tinyint"}

HISTORY_LOOKBACK = 50
"""Commits searched for a batch's own commit. Between a batch's commit and the look there are its other commits and
compactions, a handful; 50 leaves room for a maintenance run in between."""


@dataclass(frozen=True)
class Commit:
    """One commit of a table: version, operation, and what it wrote (files, bytes, rows; 0 where not said)."""

    version: int
    operation: str
    files_added: int
    files_removed: int
    bytes_added: int
    rows_added: int
    rows_updated: int
    rows_deleted: int


def storage_uri(uri: str) -> str:
    """The same place in delta-rs's spelling: it says s3:// where Hadoop says s3a://."""
    return "s3://" + uri.removeprefix("s3a://") if uri.startswith("s3a://") else uri


def open_log(uri: str) -> DeltaTable | None:
    """The table as its log has it now, or None where there is no table."""
    try:
        return DeltaTable(storage_uri(uri))
    except TableNotFoundError:
        return None


def version(uri: str) -> int | None:
    """The table's current version, or None where there is no table."""
    table = open_log(uri)
    return None if table is None else int(table.version())


def describe(uri: str) -> Found | None:
    """Columns, partitioning and properties of an existing table, or None."""
    table = open_log(uri)
    if table is None:
        return None
    fields = json.loads(table.schema().to_json())["fields"]
    metadata = table.metadata()
    return Found(
        columns={field["name"]: spark_type(field["type"]) for field in fields},
        partitioned_by=tuple(metadata.partition_columns),
        properties=dict(metadata.configuration),
    )


def spark_type(delta_type: str | Mapping[str, Any]) -> str:
    """Spark's simple spelling of a type in the Delta protocol's schema JSON."""
    if isinstance(delta_type, str):
        return _SPARK_TYPES.get(delta_type, delta_type)
    kind = delta_type["type"]
    if kind == "struct":
        fields = ",".join(f"{field['name']}:{spark_type(field['type'])}" for field in delta_type["fields"])
        return f"struct<{fields}>"
    if kind == "array":
        return f"array<{spark_type(delta_type['elementType'])}>"
    return f"map<{spark_type(delta_type['keyType'])},{spark_type(delta_type['valueType'])}>"


def find_commit(uri: str, marker: str) -> Commit | None:
    """The newest commit whose user metadata is `marker`, among the last HISTORY_LOOKBACK; None when there is none.

    This is how a process learns what it wrote, also when the write happened before a crash and was skipped now.
    """
    table = open_log(uri)
    if table is None:
        return None
    for entry in table.history(limit=HISTORY_LOOKBACK):
        if entry.get("userMetadata") == marker:
            return _commit(entry)
    return None


def _commit(entry: Mapping[str, Any]) -> Commit:
    metrics = entry.get("operationMetrics") or {}

    def figure(*names: str) -> int:
        return next((int(metrics[name]) for name in names if name in metrics), 0)

    return Commit(
        version=int(entry["version"]),
        operation=str(entry.get("operation", "")),
        files_added=figure("numFiles", "numTargetFilesAdded", "numAddedFiles"),
        files_removed=figure("numTargetFilesRemoved", "numRemovedFiles"),
        bytes_added=figure("numOutputBytes", "numTargetBytesAdded", "numAddedBytes"),
        rows_added=figure("numTargetRowsInserted") if "numTargetRowsInserted" in metrics else figure("numOutputRows"),
        rows_updated=figure("numTargetRowsUpdated"),
        rows_deleted=figure("numTargetRowsDeleted", "numDeletedRows"),
    )

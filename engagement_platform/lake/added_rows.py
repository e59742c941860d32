"""The rows that each commit of an append-only table added, whatever was compacted since: which files, and their rows.

For consumers that follow a table without Spark; everything else in a log is read by `log`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import is_erasure, is_erasure_of_players

BEFORE_ALL = -1
"""The version after which everything is new; Delta's first one is 0."""


class AddedRowsUnknown(PlatformError):
    """Which rows a table gained can no longer be read: its log or files are gone, or rows were taken away."""

    def __init__(self, uri: str, why: str) -> None:
        self.why = why
        super().__init__(
            f"The rows added to the table at {uri} can no longer be followed: {why}. No table was changed. Begin anew "
            "from the rows that are there now."
        )


@dataclass(frozen=True)
class Added:
    """One Parquet file with rows that are new in a version."""

    path: str
    """As in the log: URL-encoded, relative to the table or absolute."""
    partition_values: Mapping[str, str | None]
    records: int | None
    """None where the log does not say; `rows_in` looks into the file."""
    version: int


def added(uri: str, version: int) -> list[Added]:
    """Files whose rows are new in a version; compactions and erasures add none. Cost: one entry of the log.

    Raises AddedRowsUnknown; `refuse_vacuumed` checks whether the files are there.
    """
    actions = log.entry(uri, version)
    if actions is None:
        kept = log.next_entry(uri, version)
        begins = "has none after it" if kept is None else f"begins at {_named(uri, kept)}"
        raise AddedRowsUnknown(
            uri,
            f"version {version} is needed, but its log {begins} (a longer delta.logRetentionDuration of the table "
            "prevents that)",
        )
    if _takes_rows(actions):
        if is_erasure(log.marker_in(actions)):
            # What it writes are rows from before, without those of the erased subject.
            return []
        operation = next((action["commitInfo"].get("operation") for action in actions if "commitInfo" in action), None)
        raise AddedRowsUnknown(uri, f"{_named(uri, version)} took rows away ({operation})")
    files = []
    for add in (action["add"] for action in actions if "add" in action):
        if add.get("dataChange", True):
            records = json.loads(add.get("stats") or "{}").get("numRecords")
            files.append(Added(add["path"], add.get("partitionValues") or {}, records, version))
    return files


def erases(uri: str, version: int) -> bool:
    """Whether an erasure took rows away in a version, or changed them; False where the log no longer has it.

    Cost: one entry of the log.
    """
    actions = log.entry(uri, version) or []
    marker = log.marker_in(actions)
    return (is_erasure(marker) or is_erasure_of_players(marker)) and _takes_rows(actions)


def _takes_rows(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a commit removes files for more than to have their rows in others."""
    return any(action["remove"].get("dataChange", True) for action in actions if "remove" in action)


def rows_in(uri: str, file: Added) -> int:
    """How many rows a file has; from its footer where the log does not say. Raises AddedRowsUnknown."""
    if file.records is not None:
        return file.records
    refuse_vacuumed(uri, [file])
    filesystem, path = log.opened(log.location(uri, file.path))
    with filesystem.open_input_file(path) as opened:
        return int(pq.ParquetFile(opened).metadata.num_rows)


def refuse_vacuumed(uri: str, files: Iterable[Added]) -> None:
    """Raise AddedRowsUnknown when one of the files is gone. Cost: a look at each."""

    def is_gone(file: Added) -> bool:
        filesystem, path = log.opened(log.location(uri, file.path))
        return bool(filesystem.get_file_info(path).type != pafs.FileType.File)

    if missing := list(filter(is_gone, files)):
        raise AddedRowsUnknown(
            uri,
            f"{len(missing)} files that {_named(uri, missing[0].version)} and later ones added were removed by VACUUM, "
            f"the first is {missing[0].path} (a longer delta.deletedFileRetentionDuration of the table prevents that)",
        )


def read_here(uri: str, table: Table, files: Sequence[Added], columns: Sequence[str]) -> pa.Table:
    """The rows of these files in this process, file after file, with the given columns in the contract's types.

    Partition columns are from the log; columns that a file is too old to have are null. Reads only what is asked for.
    Raises AddedRowsUnknown.
    """
    schema = schema_of(table, *columns)
    try:
        return pa.concat_tables([schema.empty_table(), *(_rows_of(uri, table, file, schema) for file in files)])
    except FileNotFoundError:
        refuse_vacuumed(uri, files)
        raise


def _rows_of(uri: str, table: Table, file: Added, schema: pa.Schema) -> pa.Table:
    filesystem, path = log.opened(log.location(uri, file.path))
    with filesystem.open_input_file(path) as opened:
        # Spark writes INT96, which Arrow else takes for nanoseconds, and those end in 2262.
        parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        there = set(parquet.schema_arrow.names).difference(table.partitioned_by)
        count = parquet.metadata.num_rows
        rows = parquet.read(columns=[name for name in schema.names if name in there])

    def column(field: pa.Field) -> pa.Array | pa.ChunkedArray:
        if field.name in there:
            return rows.column(field.name).cast(field.type)
        # An empty string is the protocol's second spelling of null.
        value = file.partition_values.get(field.name) or None
        return pa.nulls(count, field.type) if value is None else pa.repeat(pa.scalar(value).cast(field.type), count)

    return pa.table([column(field) for field in schema], schema=schema)


def _named(uri: str, version: int) -> str:
    committed = log.committed(uri, version)
    return f"version {version}" + ("" if committed is None else f" of {committed:%Y-%m-%d %H:%M:%S} UTC")

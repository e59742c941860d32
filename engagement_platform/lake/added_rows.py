"""The rows that each commit of an append-only table added, whatever was compacted since: which files, and their rows.

For consumers that follow a table, with and without Spark; what else a log says of a table is `log`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import is_erasure

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BEFORE_ALL = -1
"""The version after which everything is new; Delta's first one is 0."""

_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_GLOB = re.compile(r"([{}\[\]*?\\])")
_RESET = "Begin anew, from the rows that stand now: engagement-platform consumers --forget NAME --table TABLE"


class CommitsExpired(PlatformError):
    """Commits that were not read yet are no longer in the table's log: lost_from (included) to lost_to (excluded)."""

    def __init__(self, uri: str, lost_from: int, lost_to: int | None, since: datetime | None) -> None:
        self.uri, self.lost_from, self.lost_to, self.since = uri, lost_from, lost_to, since
        kept = "has none after it" if lost_to is None else f"begins at version {lost_to}{_said(since)}"
        super().__init__(
            f"Version {lost_from} of the table at {uri} is needed, but its log {kept}: which rows the versions between "
            f"added can no longer be told. No table was changed. {_RESET}. A longer delta.logRetentionDuration of that "
            "table keeps a consumer that rests for long from coming here."
        )


class FilesVacuumed(PlatformError):
    """Files that a commit added, and that were not read yet, are gone."""

    def __init__(self, uri: str, version: int, committed: datetime | None, missing: Sequence[str]) -> None:
        self.uri, self.version, self.committed, self.missing = uri, version, committed, tuple(missing)
        super().__init__(
            f"{len(missing)} files that version {version}{_said(committed)} of the table at {uri} and those after it "
            f"added are gone, the first is {missing[0]}: VACUUM removes what was compacted when it is older than "
            f"delta.deletedFileRetentionDuration. The rows are still in the table, in other files. No table was "
            f"changed. {_RESET}"
        )


class RowsTakenAway(PlatformError):
    """A table that only grows has lost or changed rows: a DELETE, an overwrite, a RESTORE."""

    def __init__(self, uri: str, version: int, operation: str, committed: datetime | None) -> None:
        self.uri, self.version, self.operation, self.committed = uri, version, operation, committed
        super().__init__(
            f"Version {version}{_said(committed)} of the table at {uri} took rows away ({operation}), and only its "
            f"growth can be followed. No table was changed. {_RESET}"
        )


@dataclass(frozen=True)
class Added:
    """One Parquet file with rows that are new in a version."""

    path: str
    """As in the log: URL-encoded, relative to the table or absolute."""
    partition_values: Mapping[str, str | None]
    records: int | None
    """None where the log does not say; `rows_in` looks into the file."""
    size: int
    """Bytes."""
    version: int


def added(uri: str, version: int, *, passed: Callable[[str | None], bool] = is_erasure) -> list[Added]:
    """Files whose rows are new in a version: those of its commit that say so; what compacts says that nothing is.

    passed: whether a commit that takes rows away is passed by, by its user metadata: what it writes are rows from
    before, without those of somebody who was erased, or what comes back by a restore. Raises CommitsExpired and
    RowsTakenAway; whether files are there is seen by `refuse_vacuumed`. Cost: one entry of the log.
    """
    actions = log.entry(uri, version)
    if actions is None:
        kept = log.next_entry(uri, version)
        raise CommitsExpired(uri, version, kept, None if kept is None else log.committed(uri, kept))
    if any(action["remove"].get("dataChange", True) for action in actions if "remove" in action):
        if passed(log.marker_in(actions)):
            return []
        told = next((action["commitInfo"].get("operation") for action in actions if "commitInfo" in action), None)
        raise RowsTakenAway(uri, version, str(told or "an unnamed operation"), log.time_of(actions))
    adds = (action["add"] for action in actions if "add" in action)
    return [_added(add, version) for add in adds if add.get("dataChange", True)]


def rows_in(uri: str, file: Added) -> int:
    """How many rows a file has; from its footer where the log does not say. Raises FilesVacuumed."""
    if file.records is not None:
        return file.records
    filesystem, path = log.opened(location(uri, file.path))
    try:
        with filesystem.open_input_file(path) as opened:
            return int(pq.ParquetFile(opened).metadata.num_rows)
    except FileNotFoundError:
        raise FilesVacuumed(uri, file.version, log.committed(uri, file.version), [file.path]) from None


def refuse_vacuumed(uri: str, files: Iterable[Added]) -> None:
    """Raise FilesVacuumed when one of the files is gone; a look at each."""
    missing = [file for file in files if not _exists(location(uri, file.path))]
    if missing:
        first = missing[0].version
        raise FilesVacuumed(uri, first, log.committed(uri, first), [file.path for file in missing])


def location(uri: str, path: str) -> str:
    """Where a file of the log is: an absolute path or URI, not URL-encoded.

    Decoded once: folders carry their own escapes, so `a%2520b` in the log is the folder `a%20b` of the value `a b`.
    """
    decoded = unquote(path)
    return decoded if _ABSOLUTE.match(path) else f"{uri}/{decoded}"


def read_here(uri: str, table: Table, files: Sequence[Added], columns: Sequence[str]) -> pa.Table:
    """The rows of these files in this process, file after file, with the given columns in the contract's types.

    Partition columns are from the log; columns that a file is too old to have are null. Reads only what is asked for.
    """
    schema = schema_of(table, *columns)
    return pa.concat_tables([schema.empty_table(), *(_rows_of(uri, table, file, schema) for file in files)])


def read_frame(
    spark: SparkSession, uri: str, table: Table, files: Sequence[Added], columns: Sequence[str]
) -> DataFrame:
    """The rows that `read_here` reads, in Spark, in any order. Lazy; one scan for each partition among the files."""
    stored = [column for column in table.columns if column.name not in table.partitioned_by]
    schema = ", ".join(f"`{column.name}` {column.type}" for column in stored)

    def key(file: Added) -> list[tuple[bool, str]]:
        values = [_partition_value(file, name) for name in table.partitioned_by]
        return [(value is None, value or "") for value in values]

    frames = []
    for _, group in groupby(sorted(files, key=key), key):
        alike = list(group)
        # Spark takes these characters in a path for a pattern.
        paths = [_GLOB.sub(r"\\\1", location(uri, file.path)) for file in alike]
        rows = spark.read.schema(schema).parquet(*paths)
        frames.append(rows.select(*(_column(table, alike[0], name) for name in columns)))
    if not frames:
        asked = ", ".join(f"`{name}` {_type_of(table, name)}" for name in columns)
        return spark.createDataFrame([], asked)
    return reduce(lambda left, right: left.union(right), frames)


def _column(table: Table, file: Added, name: str) -> Column:
    if name in table.partitioned_by:
        return F.lit(_partition_value(file, name)).cast(_type_of(table, name)).alias(name)
    return F.col(f"`{name}`")


def _rows_of(uri: str, table: Table, file: Added, schema: pa.Schema) -> pa.Table:
    filesystem, path = log.opened(location(uri, file.path))
    with filesystem.open_input_file(path) as opened:
        # Spark writes INT96, which Arrow else takes for nanoseconds, and those end in 2262.
        parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        there = set(parquet.schema_arrow.names).difference(table.partitioned_by)
        count = parquet.metadata.num_rows
        rows = parquet.read(columns=[name for name in schema.names if name in there])
    arrays = [
        rows.column(field.name).cast(field.type)
        if field.name in there
        else _repeated(_partition_value(file, field.name) if field.name in table.partitioned_by else None, field, count)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _repeated(value: str | None, field: pa.Field, count: int) -> pa.Array:
    """A partition's value in each row; null where there is none."""
    return pa.nulls(count, field.type) if value is None else pa.repeat(pa.scalar(value).cast(field.type), count)


def _partition_value(file: Added, name: str) -> str | None:
    # An empty string is the protocol's second spelling of null.
    return file.partition_values.get(name) or None


def _type_of(table: Table, name: str) -> str:
    return next(column.type for column in table.columns if column.name == name)


def _added(add: Mapping[str, Any], version: int) -> Added:
    stats = add.get("stats")
    records = (json.loads(stats) if isinstance(stats, str) and stats else stats or {}).get("numRecords")
    return Added(add["path"], add.get("partitionValues") or {}, records, int(add["size"]), version)


def _said(moment: datetime | None) -> str:
    return "" if moment is None else f" of {moment:%Y-%m-%d %H:%M:%S} UTC"


def _exists(place: str) -> bool:
    filesystem, path = log.opened(place)
    return bool(filesystem.get_file_info(path).type == pafs.FileType.File)

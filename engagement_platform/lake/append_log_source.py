"""An append-only table as a source of batches: the rows that each commit added, whatever was compacted since.

Which files a range of versions added, and their rows, here or in Spark. What to do with them is the job's business;
what else a log says of a table is `log`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import functions as F

from engagement_platform.engine.model import Limits, Offsets
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.contract import Mode, Table
from engagement_platform.lake.erased import is_erasure
from engagement_platform.lake.refusals import NotAStreamSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BEFORE_ALL = -1
"""The version after which everything is new; Delta's first one is 0."""

_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_GLOB = re.compile(r"([{}\[\]*?\\])")
_RESET = "Read what the table has now from the beginning, what is already there counts as duplicate:"


class CommitsExpired(PlatformError):
    """Commits that were not read yet are no longer in the table's log: lost_from (included) to lost_to (excluded)."""

    def __init__(self, uri: str, lost_from: int, lost_to: int | None, since: datetime | None) -> None:
        self.uri, self.lost_from, self.lost_to, self.since = uri, lost_from, lost_to, since
        kept = "has none after it" if lost_to is None else f"begins at version {lost_to}{_said(since)}"
        super().__init__(
            f"Version {lost_from} of the table at {uri} is needed, but its log {kept}: which rows the versions between "
            f"added can no longer be told. No table was changed. {_RESET} engagement-platform reset JOB. A longer "
            "delta.logRetentionDuration of that table keeps a job that rests for long from coming here."
        )


class FilesVacuumed(PlatformError):
    """Files that a commit added, and that were not read yet, are gone."""

    def __init__(self, uri: str, version: int, committed: datetime | None, missing: Sequence[str]) -> None:
        self.uri, self.version, self.committed, self.missing = uri, version, committed, tuple(missing)
        super().__init__(
            f"{len(missing)} files that version {version}{_said(committed)} of the table at {uri} and those after it "
            f"added are gone, the first is {missing[0]}: VACUUM removes what was compacted when it is older than "
            f"delta.deletedFileRetentionDuration. The rows are still in the table, in other files. No table was "
            f"changed. {_RESET} engagement-platform reset JOB"
        )


_RESTORED = "restore-tables@"


class RowsTakenAway(PlatformError):
    """A table that only grows has lost or changed rows: a DELETE, an overwrite, a RESTORE."""

    def __init__(self, uri: str, version: int, operation: str, committed: datetime | None) -> None:
        self.uri, self.version, self.operation, self.committed = uri, version, operation, committed
        super().__init__(
            f"Version {version}{_said(committed)} of the table at {uri} took rows away ({operation}), and only its "
            f"growth can be followed. No table was changed. {_RESET} engagement-platform reset JOB"
        )


class TableReplaced(PlatformError):
    """Another table is in its place, by its id or by versions that went backwards; or none."""

    def __init__(self, uri: str, stands: str, found: str) -> None:
        self.uri = uri
        super().__init__(
            f"The checkpoint stands at {stands} of the table at {uri}, but {found}: it was removed or created again. "
            f"No table was changed. {_RESET} engagement-platform reset JOB"
        )

    @classmethod
    def by_version(cls, uri: str, version: int, current: int | None) -> TableReplaced:
        """The table has fewer versions than were read."""
        return cls(uri, f"version {version}", "there is no table" if current is None else f"the newest is {current}")


def is_restore(marker: str | None) -> bool:
    """Whether `engagement-platform restore` took the table back by a commit, by its user metadata."""
    return (marker or "").startswith(_RESTORED)


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


def added(uri: str, after: int, through: int, *, passed: Callable[[str | None], bool] = is_erasure) -> list[Added]:
    """Files whose rows are those added by the versions after < v <= through, oldest first.

    Reads the log's entries of those versions. After BEFORE_ALL the files that version `through` consists of hold the
    same rows; they are taken, all under that version, when entries or files on the way there are gone, or when rows
    were taken away on the way. So a job that is reset always finds a beginning.
    passed: whether a commit that takes rows away is passed by, by its user metadata; nothing is new in it.
    Raises CommitsExpired and RowsTakenAway; whether files are there is seen by `refuse_vacuumed`.
    """
    if after == BEFORE_ALL and not _grew_from_nothing(uri, through):
        return _snapshot(uri, through)
    return [file for _, files in _commits(uri, after, through, passed) for file in files]


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


class TableSource:
    """The growth of one append-only table. Offsets are {"version": v}, the last version that was read."""

    def __init__(self, uri: str, table: Table) -> None:
        """uri: where the table is. Raises NotAStreamSource for a mutable one."""
        if table.mode is not Mode.APPEND_ONLY:
            raise NotAStreamSource(table)
        self.uri, self.table = uri, table

    def __repr__(self) -> str:
        return f"TableSource({self.uri!r})"

    def plan(
        self,
        start: Offsets | None,
        limits: Limits,
        mean_bytes: float | None,  # noqa: ARG002
    ) -> tuple[Offsets, Offsets] | None:
        """The next versions that add at most limits.max_records rows and limits.max_bytes of files; None when idle.

        At least one commit with rows, however large. start None: from the first version on; when its commits can no
        longer be told apart, everything that is in the table now is one batch.
        Raises CommitsExpired, FilesVacuumed, RowsTakenAway, TableReplaced.
        """
        current = log.version(self.uri)
        after = self._after(start, current)
        if current is None or current == after:
            return None
        if after == BEFORE_ALL and not _grew_from_nothing(self.uri, current):
            end: int | None = current if any(_snapshot(self.uri, current)) else None
        else:
            end, files = _fitting(self.uri, _commits(self.uri, after, current), limits)
            refuse_vacuumed(self.uri, files)
        return None if end is None else ({"version": after}, {"version": end})

    def check(self, start: Offsets, end: Offsets) -> None:
        """Raise CommitsExpired, FilesVacuumed, RowsTakenAway or TableReplaced when the range is not there whole."""
        self._after(end, log.version(self.uri))
        refuse_vacuumed(self.uri, self.files(start, end))

    def identify(self, pinned: Mapping[str, str]) -> Mapping[str, str]:
        """{"table_id": Delta's id of the table}; {} where there is none. Raises TableReplaced when it is another one.

        A table that is created again in the place of another one has another id, however many versions it has.
        """
        now = log.table_id(self.uri)
        if now not in (None, pinned.get("table_id", now)):
            raise TableReplaced(self.uri, f"the table with id {pinned['table_id']}", f"the one there has id {now}")
        return {} if now is None else {"table_id": now}

    def files(self, start: Offsets, end: Offsets) -> list[Added]:
        """The files of a range, for `read_here` and `read_frame`."""
        return added(self.uri, start["version"], end["version"])

    def size(self, start: Offsets, end: Offsets) -> int | None:
        """How many rows a range has; None when the log no longer tells."""
        try:
            return sum(rows_in(self.uri, file) for file in self.files(start, end))
        except PlatformError:
            return None

    def backlog(self, start: Offsets | None) -> int:
        """How many rows were not read yet. Raises what plan would, so that a lost range is not idleness."""
        current = log.version(self.uri)
        after = self._after(start, current)
        if current is None:
            return 0
        return sum(rows_in(self.uri, file) for file in added(self.uri, after, current))

    def _after(self, start: Offsets | None, current: int | None) -> int:
        if start is None:
            return BEFORE_ALL
        after = start["version"]
        if after > (BEFORE_ALL if current is None else current):
            raise TableReplaced.by_version(self.uri, after, current)
        return after


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


def _commits(
    uri: str, after: int, through: int, passed: Callable[[str | None], bool] = is_erasure
) -> Iterator[tuple[int, list[Added]]]:
    """Each version after < v <= through with the files whose rows are new in it."""
    for version in range(after + 1, through + 1):
        actions = log.entry(uri, version)
        if actions is None:
            raise _expired(uri, version)
        if any(action["remove"].get("dataChange", True) for action in actions if "remove" in action):
            if passed(log.marker_in(actions)):
                # What it writes are rows from before, without those of somebody who was erased: nothing is new.
                # Nor is what comes back by a restore.
                yield version, []
                continue
            raise RowsTakenAway(uri, version, _operation(actions), log.time_of(actions))
        adds = (action["add"] for action in actions if "add" in action)
        # What only moves rows to other files, such as OPTIMIZE, says so.
        yield version, [_added(add, version) for add in adds if add.get("dataChange", True)]


def _added(add: Mapping[str, Any], version: int) -> Added:
    stats = add.get("stats")
    records = (json.loads(stats) if isinstance(stats, str) and stats else stats or {}).get("numRecords")
    return Added(add["path"], add.get("partitionValues") or {}, records, int(add["size"]), version)


def _snapshot(uri: str, version: int) -> list[Added]:
    """The files that a version consists of. Raises CommitsExpired when the log no longer tells."""
    try:
        found = DeltaTable(log.storage_uri(uri), version=version)
    except DeltaError:
        raise _expired(uri, BEFORE_ALL + 1) from None
    if pa.table(found.deletion_vectors()).num_rows:
        raise RowsTakenAway(uri, version, "deletion vectors", None)
    files = pa.table(found.get_add_actions(flatten=True))
    partitions = {name: f"partition.{name}" for name in found.metadata().partition_columns}
    return [
        Added(
            path=row["path"],
            partition_values={n: None if row[c] is None else str(row[c]) for n, c in partitions.items()},
            records=row["num_records"],
            size=row["size_bytes"],
            version=version,
        )
        for row in files.select(["path", "num_records", "size_bytes", *partitions.values()]).to_pylist()
    ]


def _grew_from_nothing(uri: str, through: int) -> bool:
    """Whether all commits up to a version and all files they added are still there, and nothing was taken away."""
    try:
        refuse_vacuumed(uri, [file for _, files in _commits(uri, BEFORE_ALL, through) for file in files])
    except (CommitsExpired, FilesVacuumed, RowsTakenAway):
        return False
    return True


def _fitting(uri: str, commits: Iterable[tuple[int, list[Added]]], limits: Limits) -> tuple[int | None, list[Added]]:
    """The last commit, and the files, of the longest beginning within the limits; at least one commit with rows."""
    end, taken, rows, size = None, list[Added](), 0, 0
    for version, files in commits:
        rows += sum(rows_in(uri, file) for file in files)
        size += sum(file.size for file in files)
        if taken and files and (rows > limits.max_records or size > limits.max_bytes):
            break
        taken += files
        end = version
    return (end if taken else None), taken


def _operation(actions: Sequence[Mapping[str, Any]]) -> str:
    told = next((action["commitInfo"].get("operation") for action in actions if "commitInfo" in action), None)
    return str(told or "an unnamed operation")


def _expired(uri: str, version: int) -> CommitsExpired:
    kept = log.next_entry(uri, version)
    return CommitsExpired(uri, version, kept, None if kept is None else log.committed(uri, kept))


def _said(moment: datetime | None) -> str:
    return "" if moment is None else f" of {moment:%Y-%m-%d %H:%M:%S} UTC"


def _exists(place: str) -> bool:
    filesystem, path = log.opened(place)
    return bool(filesystem.get_file_info(path).type == pafs.FileType.File)

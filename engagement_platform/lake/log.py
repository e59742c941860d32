"""Reads the Delta log of a table without a JVM: version, schema, commits and their metrics.

Through delta-rs; a Spark job for the same answer costs a few tenths of a second, and a batch needs a dozen.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from engagement_platform.lake.contract import Found

_SPARK_TYPES = {"integer": "int", "short": "smallint", "byte": "tinyint"}

ENTRY = re.compile(r"\d{20}\.json")
"""The name of a commit in a log."""

_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")

FEW_FILES = 300
"""Spark is told so many files of a table one by one; each step of planning carries the list (a guess)."""

HISTORY_LOOKBACK = 50
"""Commits searched for a batch's own commit. Between a batch's commit and the look there are its other commits and
compactions, a handful; 50 leaves room for a maintenance run in between."""


@dataclass(frozen=True)
class Commit:
    """One commit of a table: version, operation, and what it wrote (files, bytes, rows; 0 where the log has no figure).

    find_ms, rewrite_ms: of a MERGE, its first phase (a join that finds the files to rewrite) and its second.
    """

    version: int
    operation: str
    files_added: int
    files_removed: int
    bytes_added: int
    rows_added: int
    rows_updated: int
    rows_deleted: int
    find_ms: int = 0
    rewrite_ms: int = 0


@dataclass(frozen=True)
class Value:
    """The value of one partition column, as in the log; None for null. type: as the Delta protocol spells it."""

    column: str
    text: str | None
    type: str


def storage_uri(uri: str) -> str:
    """The same place in delta-rs's spelling, which has s3:// for Hadoop's s3a://."""
    return "s3://" + uri.removeprefix("s3a://") if uri.startswith("s3a://") else uri


KEPT = 64
"""Tables whose log is kept as read; a batch opens a dozen."""
_kept: dict[str, tuple[DeltaTable, tuple[int, int]]] = {}
_keeping = threading.Lock()


def open_log(uri: str) -> DeltaTable | None:
    """The table as its log has it now, or None where there is no table. Shared: only for reading.

    A log on a disk is read again only once it has another entry: delta-rs walks through the names of a whole log, which
    a batch would do some thirty times (0.1 s for a thousand entries in all).
    """
    if "://" in uri:
        return _read_log(uri)
    held = _kept.get(uri)
    if held is not None and _mark(uri, held[0].version()) == held[1]:
        return held[0]
    found = _read_log(uri)
    if found is not None and (mark := _mark(uri, found.version())) is not None:
        with _keeping:
            _kept.pop(uri, None)
            if len(_kept) >= KEPT:
                del _kept[next(iter(_kept))]
            _kept[uri] = found, mark
    return found


def _read_log(uri: str) -> DeltaTable | None:
    try:
        return DeltaTable(storage_uri(uri))
    except TableNotFoundError:
        return None


def _mark(uri: str, version: int) -> tuple[int, int] | None:
    """What tells the newest entry of a log from that of a table which was made anew in its place; None where this
    version is not the newest, or its entry is gone."""
    if Path(_entry(uri, version + 1)).exists():
        return None
    try:
        found = Path(_entry(uri, version)).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _entry(uri: str, version: int) -> str:
    return f"{uri}/_delta_log/{version:020}.json"


def open_version(uri: str, version: int | None = None) -> DeltaTable:
    """The table as of a version; None: now. Shared, as of `open_log`. Raises what delta-rs does where there is none."""
    found = open_log(uri)
    if found is not None and version in (None, found.version()):
        return found
    return DeltaTable(storage_uri(uri), version=version)


def version(uri: str) -> int | None:
    """The table's current version, or None where there is no table."""
    table = open_log(uri)
    return None if table is None else int(table.version())


def describe(uri: str, version: int | None = None) -> Found | None:
    """Columns, partitioning and properties of an existing table, as of a version or now, or None."""
    table = open_log(uri) if version is None else open_version(uri, version)
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

    A process learns from it what it wrote, also when the write happened before a crash and was skipped now. Spark's
    auto compaction commits right after the write under the same user metadata, so a write is preferred to it.
    """
    table = open_log(uri)
    if table is None:
        return None
    marked = [
        entry for entry in table.history(limit=HISTORY_LOOKBACK) if marker_of(entry.get("userMetadata")) == marker
    ]
    marked.sort(key=lambda entry: entry.get("operation") == "OPTIMIZE")
    return _commit(marked[0]) if marked else None


def added_by(commits: Iterable[Commit]) -> dict[str, int]:
    """files, bytes and commits that these commits added."""
    some = list(commits)
    return {
        "files": sum(commit.files_added for commit in some),
        "bytes": sum(commit.bytes_added for commit in some),
        "commits": len(some),
    }


def rows_in(uri: str, version: int) -> int:
    """Rows of a version, as its log counts them; files that are not counted are left out."""
    return int(pc.sum(_rows_of_files(open_version(uri, version))).as_py() or 0)


def row_count(uri: str) -> int | None:
    """Rows of the table now, as its log counts them. None where there is no table, and where the log does not tell:
    files without a count, deletion vectors (delta-rs 1.6 does not show how many rows they delete)."""
    table = open_log(uri)
    if table is None or "deletionVectors" in (table.protocol().reader_features or []):
        return None
    rows = _rows_of_files(table)
    return None if rows.null_count else int(pc.sum(rows).as_py() or 0)


def file_count(uri: str) -> int:
    """Files of the table now; 0 where there is no table."""
    table = open_log(uri)
    return 0 if table is None else pa.table(table.get_add_actions()).num_rows


def _rows_of_files(table: DeltaTable) -> pa.ChunkedArray:
    return pa.table(table.get_add_actions(flatten=True)).column("num_records")


def of_files(files: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of DeltaTable.get_add_actions, such as `max.batch_sequence`; null where no entry of a file says it."""
    if name in files.column_names:
        return files.column(name).cast(kind)
    return pa.chunked_array([pa.nulls(files.num_rows, kind)])


def entry(uri: str, version: int) -> list[dict[str, Any]] | None:
    """The actions of one commit; None where the log has no such entry (any more)."""
    filesystem, path = opened(_entry(uri, version))
    try:
        with filesystem.open_input_file(path) as file:
            # Not splitlines(): that splits at separators such as U+2028 too, which bounds may hold.
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in lines if line.strip()]


def next_entry(uri: str, after: int) -> int | None:
    """The first version after this one whose entry the log still has."""
    return min((version for version in _entries(uri) if version > after), default=None)


def newest_entry(uri: str) -> int | None:
    """As `version`, without opening the table where it is on a disk, for callers that poll. None: there is no table."""
    return version(uri) if "://" in uri else max(_entries(uri), default=None)


def _entries(uri: str) -> Iterator[int]:
    return (int(name.removesuffix(".json")) for name in names(f"{uri}/_delta_log") if ENTRY.fullmatch(name))


def names(place: str) -> list[str]:
    """What is in a folder, in any order; nothing where there is no such folder (yet).

    On a disk nothing is asked about what has the names: a log may have a hundred thousand.
    """
    filesystem, path = opened(place)
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return [info.base_name for info in listed(filesystem, path)]
    try:
        with os.scandir(path) as found:
            return [each.name for each in found]
    except FileNotFoundError:
        return []


def markers(uri: str) -> Iterator[tuple[int, str | None]]:
    """Versions with the markers of their commits, newest first, as far back as the log has entries."""
    return ((number, marker_of(metadata)) for number, metadata in user_metadata(uri))


def user_metadata(uri: str, newest: int | None = None) -> Iterator[tuple[int, str | None]]:
    """Versions with the user metadata of their commits, newest first, as far back as the log has entries."""
    newest = newest_entry(uri) if newest is None else newest
    for number in range(-1 if newest is None else newest, -1, -1):
        actions = entry(uri, number)
        if actions is None:
            return
        yield number, commit_info(actions).get("userMetadata")


def commit_info(actions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What a commit with these actions says of itself; nothing where it does not."""
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def marker_of(user_metadata: str | None) -> str | None:
    """The marker in the user metadata of a commit, without the note of its batch.

    >>> marker_of('ingest-engagements@1.5f0c9a2e/data/insert#7\\n{"digest":"…"}')
    'ingest-engagements@1.5f0c9a2e/data/insert#7'
    """
    if user_metadata is None or not user_metadata.endswith("}"):
        return user_metadata
    marker, newline, _ = user_metadata.rpartition("\n")
    return marker if newline else user_metadata


def marker_in(actions: Sequence[Mapping[str, Any]]) -> str | None:
    """The marker of the commit that has these actions."""
    return marker_of(commit_info(actions).get("userMetadata"))


def table_id(uri: str) -> str | None:
    """Delta's id of a table, which one that is created again in its place does not have; None where there is none."""
    table = open_log(uri)
    return None if table is None else str(table.metadata().id)


def committed(uri: str, version: int) -> datetime | None:
    """When a version was committed, by its writer's clock; None where the log no longer has it."""
    return time_of(entry(uri, version) or [])


def time_of(actions: Sequence[Mapping[str, Any]]) -> datetime | None:
    """When a commit with these actions was made, by its writer's clock."""
    milliseconds = commit_info(actions).get("timestamp")
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def opened(place: str) -> tuple[pafs.FileSystem, str]:
    """The file system of an absolute path or URI, and the path in it. Nothing is URL-encoded in either."""
    if place.startswith("file:/") and not place.startswith("file://"):
        place = place.removeprefix("file:")
    if "://" not in place:
        return pafs.LocalFileSystem(), place
    scheme, _, rest = storage_uri(place).partition("://")
    host, _, path = rest.partition("/")
    return _remote(f"{scheme}://{host}/"), path


@lru_cache(maxsize=8)
def _remote(root: str) -> pafs.FileSystem:
    """delta-rs's own client: the environment that leads it to the tables leads here too. Kept for its connections."""
    return pafs.PyFileSystem(DeltaStorageHandler(root))


def location(uri: str, path: str) -> str:
    """Where a file of the log is: an absolute path or URI, not URL-encoded.

    Decoded once: folders carry their own escapes, so `a%2520b` in the log is the folder `a%20b` of the value `a b`.
    """
    decoded = unquote(path)
    return decoded if _ABSOLUTE.match(path) else f"{uri}/{decoded}"


def tables(root: str) -> list[str]:
    """Names of the tables in a lake, two folders below its root, such as `engagement/data`; sorted."""
    filesystem, path = opened(root)
    return sorted(
        f"{group}/{table}"
        for group in _folders(filesystem, path)
        for table in _folders(filesystem, f"{path}/{group}")
        if "_delta_log" in _folders(filesystem, f"{path}/{group}/{table}")
    )


def tables_anywhere(root: str) -> list[str]:
    """Names of all tables below a root, also where none belongs; sorted. The folders of a table are not walked into."""
    filesystem, path = opened(root)

    def below(name: str) -> Iterator[str]:
        folders = _folders(filesystem, f"{path}/{name}")
        if "_delta_log" in folders:
            yield name
        else:
            for folder in folders:
                yield from below(f"{name}/{folder}")

    stray = (name for group in _folders(filesystem, path) for name in below(group))
    # A group stays one, whichever program put a table into its place.
    return sorted({*tables(root), *stray})


def _folders(filesystem: pafs.FileSystem, path: str) -> list[str]:
    return [info.base_name for info in listed(filesystem, path) if info.type == pafs.FileType.Directory]


def listed(filesystem: pafs.FileSystem, path: str) -> list[pafs.FileInfo]:
    """What is in a folder, in any order; nothing where there is no such folder (yet)."""
    try:
        return list(filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True)))
    except FileNotFoundError:
        # It was made meanwhile: Arrow did not find it, looked whether it is really missing, and there it was.
        return []


def plain_files(uri: str, version: int) -> tuple[dict[str, Any], list[str]] | None:
    """Schema, as JSON, and the few files of a version that alone say what its rows are; None where they do not.

    They do not with deletion vectors, mapped columns and widened types, of which the protocol asks more of readers.
    Partitions by day are as good as columns where folders are called by them: a text in the name of a folder may be
    taken for a number. Nor of an empty table, since a list of files that names none means nothing to Spark, nor of a
    version that is not there, of which Delta says why.
    """
    try:
        found = open_version(uri, version)
    except DeltaError:
        return None
    schema: dict[str, Any] = json.loads(found.schema().to_json())
    paths: list[str] = pa.table(found.get_add_actions()).column("path").to_pylist()
    if found.protocol().min_reader_version > 1 or not 0 < len(paths) <= FEW_FILES:
        return None
    by = list(found.metadata().partition_columns)
    dates = {field["name"] for field in schema["fields"] if field["type"] == "date"}
    by_folder = all([folder.partition("=")[0] for folder in path.split("/")[:-1]] == by for path in paths)
    if by and not (dates.issuperset(by) and by_folder):
        return None
    return schema, [location(uri, path) for path in paths]


def files_between(uri: str, version: int, column: str, spans: Sequence[tuple[datetime, datetime]]) -> list[str] | None:
    """The files of a version whose bounds of a column of times admit one of the spans, or that have no bounds.

    spans: first and last time, both included. None where a file alone does not say what its rows are: deletion vectors,
    mapped columns, shallow clones. A scan in Spark would cost a job a table for its log (Delta 4.4.0).
    """
    found = open_version(uri, version)
    features = set(found.protocol().reader_features or ())
    mapped = found.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    files = pa.table(found.get_add_actions(flatten=True)).to_pylist()
    if mapped or "deletionVectors" in features or any(":" in file["path"] for file in files):
        return None

    def admitted(file: Mapping[str, Any]) -> bool:
        low, high = file.get(f"min.{column}"), file.get(f"max.{column}")
        # Spark cuts the greatest time of a file to whole milliseconds.
        cut_off = timedelta(milliseconds=1)
        return low is None or high is None or any(low <= last and first <= high + cut_off for first, last in spans)

    return [f"{uri}/{unquote(file['path'])}" for file in files if admitted(file)]


def _commit(entry: Mapping[str, Any]) -> Commit:
    metrics = entry.get("operationMetrics") or {}

    def figure(*names: str) -> int:
        return next((int(metrics[name]) for name in names if name in metrics), 0)

    merged = "numTargetRowsInserted" in metrics
    return Commit(
        version=int(entry["version"]),
        operation=str(entry.get("operation", "")),
        files_added=figure("numFiles", "numTargetFilesAdded", "numAddedFiles"),
        files_removed=figure("numTargetFilesRemoved", "numRemovedFiles"),
        bytes_added=figure("numOutputBytes", "numTargetBytesAdded", "numAddedBytes"),
        rows_added=figure("numTargetRowsInserted") if merged else figure("numOutputRows"),
        rows_updated=figure("numTargetRowsUpdated"),
        rows_deleted=figure("numTargetRowsDeleted", "numDeletedRows"),
        find_ms=figure("scanTimeMs") if merged else 0,
        rewrite_ms=figure("rewriteTimeMs") if merged else 0,
    )

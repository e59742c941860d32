"""What the Delta log says of a table, read without a JVM: version, schema, commits and their metrics.

Reading only, through delta-rs; a Spark job for the same answers costs a few tenths of a second each, and a batch
asks a dozen times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from engagement_platform.lake.contract import Found

_SPARK_TYPES = {"integer": "int", "short": "smallint", "byte": "tinyint"}

_ENTRY = re.compile(r"\d{20}\.json")

HISTORY_LOOKBACK = 50
"""Commits searched for a batch's own commit. Between a batch's commit and the look there are its other commits and
compactions, a handful; 50 leaves room for a maintenance run in between."""


@dataclass(frozen=True)
class Commit:
    """One commit of a table: version, operation, and what it wrote (files, bytes, rows; 0 where not said).

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
    """What one partition column holds: as in the log, None for null. type: in the Delta protocol's words."""

    column: str
    text: str | None
    type: str


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


def describe(uri: str, version: int | None = None) -> Found | None:
    """Columns, partitioning and properties of an existing table, as of a version or now, or None."""
    table = open_log(uri) if version is None else DeltaTable(storage_uri(uri), version=version)
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
    Spark's auto compaction commits right after the write, under the same user metadata: it is what is found only
    where it stands alone.
    """
    table = open_log(uri)
    if table is None:
        return None
    marked = [
        entry for entry in table.history(limit=HISTORY_LOOKBACK) if marker_of(entry.get("userMetadata")) == marker
    ]
    marked.sort(key=lambda entry: entry.get("operation") == "OPTIMIZE")
    return _commit(marked[0], uri) if marked else None


def added_by(commits: Iterable[Commit]) -> dict[str, int]:
    """files, bytes and commits that these commits added."""
    some = list(commits)
    return {
        "files": sum(commit.files_added for commit in some),
        "bytes": sum(commit.bytes_added for commit in some),
        "commits": len(some),
    }


def replaced_by(commits: Iterable[Commit]) -> dict[str, int]:
    """files_rewritten: what these commits replaced; bytes_rewritten: what they wrote instead."""
    replacing = [commit for commit in commits if commit.files_removed]
    return {
        "files_rewritten": sum(commit.files_removed for commit in replacing),
        "bytes_rewritten": sum(commit.bytes_added for commit in replacing),
    }


def bytes_of(table: DeltaTable, organizations: Sequence[str]) -> int:
    """Bytes of the files in the partitions of these organizations; of all files where that is no partition column."""
    files = pa.table(table.get_add_actions(flatten=True))
    column = "partition.organization_id"
    if column in files.column_names:
        files = files.filter(pc.is_in(files.column(column), pa.array(organizations, pa.string())))
    return int(pc.sum(files.column("size_bytes")).as_py() or 0)


def total_bytes(uri: str, version: int) -> int:
    """Bytes of all files of a version."""
    files = pa.table(DeltaTable(storage_uri(uri), version=version).get_add_actions(flatten=True))
    return int(pc.sum(files.column("size_bytes")).as_py() or 0)


def rows_in(uri: str, version: int) -> int:
    """Rows of a version, as its log counts them; files that are not counted are left out."""
    files = pa.table(DeltaTable(storage_uri(uri), version=version).get_add_actions(flatten=True))
    return int(pc.sum(files.column("num_records")).as_py() or 0)


def entry(uri: str, version: int) -> list[dict[str, Any]] | None:
    """The actions of one commit, from its own entry; None where the log has no such entry (any more)."""
    filesystem, path = opened(f"{uri}/_delta_log/{version:020}.json")
    try:
        with filesystem.open_input_file(path) as file:
            # Not splitlines(): that splits at separators such as U+2028 too, which stand in bounds as they are.
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in lines if line.strip()]


def next_entry(uri: str, after: int) -> int | None:
    """The first version after this one whose entry the log still has."""
    return min((version for version in _entries(uri) if version > after), default=None)


def newest_entry(uri: str) -> int | None:
    """The table's current version, from the names in its log alone: nothing is read, however much the log says.

    What `version` says, at the price of a listing; for those who ask every second. None where there is no table.
    """
    return max(_entries(uri), default=None)


def _entries(uri: str) -> list[int]:
    filesystem, path = opened(f"{uri}/_delta_log")
    names = [info.base_name for info in listed(filesystem, path)]
    return [int(name.removesuffix(".json")) for name in names if _ENTRY.fullmatch(name)]


def markers(uri: str) -> Iterator[tuple[int, str | None]]:
    """Versions with the markers of their commits, newest first, as far back as the log has entries."""
    for number, said in user_metadata(uri):
        yield number, marker_of(said)


def user_metadata(uri: str) -> Iterator[tuple[int, str | None]]:
    """Versions with the user metadata of their commits, newest first, as far back as the log has entries."""
    newest = newest_entry(uri)
    for number in range(-1 if newest is None else newest, -1, -1):
        actions = entry(uri, number)
        if actions is None:
            return
        yield number, next((a["commitInfo"].get("userMetadata") for a in actions if "commitInfo" in a), None)


def marker_of(user_metadata: str | None) -> str | None:
    """The marker in the user metadata of a commit, as `Transaction.marker` says it, without what is said of its batch.

    >>> marker_of('ingest-engagements@1.5f0c9a2e/data/insert#7\\n{"digest":"…"}')
    'ingest-engagements@1.5f0c9a2e/data/insert#7'
    """
    if user_metadata is None or not user_metadata.endswith("}"):
        return user_metadata
    marker, newline, _ = user_metadata.rpartition("\n")
    return marker if newline else user_metadata


def marker_in(actions: Sequence[Mapping[str, Any]]) -> str | None:
    """The marker of the commit that has these actions."""
    return marker_of(next((a["commitInfo"].get("userMetadata") for a in actions if "commitInfo" in a), None))


def table_id(uri: str) -> str | None:
    """Delta's id of a table, which one that is created again in its place does not have; None where there is none."""
    try:
        return str(DeltaTable(storage_uri(uri)).metadata().id)
    except TableNotFoundError:
        return None


def committed(uri: str, version: int) -> datetime | None:
    """When a version was committed, as its writer says; None where the log does not tell (any more)."""
    return time_of(entry(uri, version) or [])


def time_of(actions: Sequence[Mapping[str, Any]]) -> datetime | None:
    """When a commit with these actions was made, as its writer says."""
    told = next((action["commitInfo"].get("timestamp") for action in actions if "commitInfo" in action), None)
    return None if told is None else datetime.fromtimestamp(told / 1000, UTC)


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


def tables(root: str) -> list[str]:
    """Names of the tables in a lake, two folders below its root, such as `engagement/data`; sorted."""
    filesystem, path = opened(root)
    return sorted(
        f"{group}/{table}"
        for group in _folders(filesystem, path)
        for table in _folders(filesystem, f"{path}/{group}")
        if "_delta_log" in _folders(filesystem, f"{path}/{group}/{table}")
    )


def _folders(filesystem: pafs.FileSystem, path: str) -> list[str]:
    return [info.base_name for info in listed(filesystem, path) if info.type == pafs.FileType.Directory]


def listed(filesystem: pafs.FileSystem, path: str) -> list[pafs.FileInfo]:
    """What is in a folder, in any order; nothing where there is no such folder (yet)."""
    try:
        return list(filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True)))
    except FileNotFoundError:
        # It was made meanwhile: Arrow did not find it, looked whether it is really missing, and there it was.
        return []


def partition_values(uri: str, version: int, column: str) -> set[str] | None:
    """The values of a partition column of which a version has files; None where it is no partition column."""
    files = pa.table(DeltaTable(storage_uri(uri), version=version).get_add_actions(flatten=True))
    name = f"partition.{column}"
    if name not in files.column_names:
        return None if files.num_rows else set()
    return {str(value) for value in pc.unique(files.column(name)).to_pylist()}


@dataclass(frozen=True)
class Stored:
    """What some rows take up in a table: rows (0 where the log does not say), bytes and files."""

    rows: int
    bytes: int
    files: int


def stored(uri: str, version: int, organizations: Sequence[str]) -> dict[str, Stored]:
    """What each of these organizations has in a table, as of a version.

    Where organization_id is no partition column, an organization is said to have all files whose bounds admit it.
    """
    files = pa.table(DeltaTable(storage_uri(uri), version=version).get_add_actions(flatten=True))
    rows = pc.fill_null(files.column("num_records"), 0)
    files = pa.table({**{name: files.column(name) for name in files.column_names}, "num_records": rows})
    column = "partition.organization_id"
    if column in files.column_names:
        summed = files.group_by(column).aggregate([("num_records", "sum"), ("size_bytes", "sum"), ([], "count_all")])
        wanted = set(organizations)
        found = {
            row[column]: Stored(row["num_records_sum"], row["size_bytes_sum"], row["count_all"])
            for row in summed.to_pylist()
            if row[column] in wanted
        }
    else:
        total = Stored(pc.sum(rows).as_py() or 0, pc.sum(files.column("size_bytes")).as_py() or 0, files.num_rows)
        found = dict.fromkeys(organizations, total)
    return {name: found.get(name, Stored(0, 0, 0)) for name in organizations}


def _commit(entry: Mapping[str, Any], uri: str) -> Commit:
    """Spark and delta-rs count the same things under different names; delta-rs does not count bytes."""
    metrics = entry.get("operationMetrics") or {}

    def figure(*names: str) -> int:
        return next((int(metrics[name]) for name in names if name in metrics), 0)

    version = int(entry["version"])
    merged = any(name in metrics for name in ("numTargetRowsInserted", "num_target_rows_inserted"))
    return Commit(
        version=version,
        operation=str(entry.get("operation", "")),
        files_added=figure(
            *("numFiles", "numTargetFilesAdded", "numAddedFiles", "num_added_files", "num_target_files_added")
        ),
        files_removed=figure(
            *("numTargetFilesRemoved", "numRemovedFiles", "num_removed_files", "num_target_files_removed")
        ),
        bytes_added=figure("numOutputBytes", "numTargetBytesAdded", "numAddedBytes")
        or (_bytes_in_commit(uri, version) if str(entry.get("engineInfo", "")).startswith("delta-rs") else 0),
        rows_added=figure("numTargetRowsInserted", "num_target_rows_inserted")
        if merged
        else figure("numOutputRows", "num_added_rows"),
        rows_updated=figure("numTargetRowsUpdated", "num_target_rows_updated"),
        rows_deleted=figure("numTargetRowsDeleted", "numDeletedRows", "num_target_rows_deleted", "num_deleted_rows"),
        find_ms=figure("scanTimeMs", "scan_time_ms") if merged else 0,
        rewrite_ms=figure("rewriteTimeMs", "rewrite_time_ms") if merged else 0,
    )


def _bytes_in_commit(uri: str, version: int) -> int:
    """Sizes of the files a commit added, from its own entry in the log of a table on this machine."""
    entry = Path(uri) / "_delta_log" / f"{version:020}.json"
    # Not splitlines(): that splits at separators such as U+2028 too, which stand in bounds of strings as they are.
    lines = entry.read_bytes().split(b"\n") if entry.exists() else []
    actions = [json.loads(line) for line in lines if line.strip()]
    return sum(int(action["add"]["size"]) for action in actions if "add" in action)

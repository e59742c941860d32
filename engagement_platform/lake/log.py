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
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from engagement_platform.lake.contract import Found

_SPARK_TYPES = {"integer": "int", "short": "smallint", "byte": "tinyint"}

ENTRY = re.compile(r"\d{20}\.json")
"""The name of a commit in a log."""

_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")

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


_DEEPEST = 4
"""Parts of the name of a table that is declared, such as `shop/eu/order`; nobody has more."""


def tables_anywhere(root: str, *, hidden: bool = True) -> list[str]:
    """Names of all tables below a root, also where none belongs; sorted. `.` is a table in the root itself.

    hidden: also that one, those below groups such as `_checkpoints`, which may have thousands of folders, those however
    deep, and those in folders of other tables. Without it the folders of a table are left alone, unless it is a group.
    Never those in a table's partitions (`day=a`), or in folders of it that begin with `_` or `.`.
    Cost: a listing of each folder that is looked into; on an object store a request for each 1,000 names. A table has
    none of these, but with random file prefixes up to 62² = 3,844, in which its files are.
    """
    filesystem, path = opened(root)

    def below(name: str) -> Iterator[str]:
        folders = _folders(filesystem, f"{path}/{name}")
        if is_table := "_delta_log" in folders:
            yield name
            folders = _others(folders)
        # A group stays one, whichever program put a table into its place.
        if hidden or ("/" not in name if is_table else name.count("/") < _DEEPEST):
            for folder in folders:
                yield from below(f"{name}/{folder}")

    groups = _folders(filesystem, path)
    in_root = ["."] if hidden and "_delta_log" in groups else []
    groups = groups if hidden and not in_root else _others(groups)
    return sorted([*in_root, *(name for group in groups for name in below(group))])


def _others(folders: Iterable[str]) -> list[str]:
    """Those of the folders in a table that may have other tables in them."""
    return [name for name in folders if "=" not in name and not name.startswith(("_", "."))]


def _folders(filesystem: pafs.FileSystem, path: str) -> list[str]:
    return [info.base_name for info in listed(filesystem, path) if info.type == pafs.FileType.Directory]


def listed(filesystem: pafs.FileSystem, path: str) -> list[pafs.FileInfo]:
    """What is in a folder, in any order; nothing where there is no such folder (yet)."""
    try:
        return list(filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True)))
    except FileNotFoundError:
        # It was made meanwhile: Arrow did not find it, looked whether it is really missing, and there it was.
        return []


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

"""What stands in a table's `_delta_log` folder, and reading single actions of it: checkpoints and commits.

One listing of that one folder; the folders of data are never listed here. What the live files are is `files`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from engagement_platform.lake import log

Action = Mapping[str, Any]

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKSUM = re.compile(r"(\d{20})\.crc")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-fA-F-]+)?\.(parquet|json)")

_READERS = 8
"""Commits read at a time: on an object store each costs a round trip of some tens of milliseconds."""


@dataclass(frozen=True)
class Segment:
    """The part of a table's log that says what its version is: the newest checkpoint, and the commits there are."""

    uri: str
    version: int
    checkpoint: int | None
    """Version of the newest whole checkpoint at or before `version`."""
    checkpoint_files: tuple[str, ...]
    """Names of its files, below `_delta_log`."""
    commits: tuple[int, ...]
    """Versions whose commit is still there, oldest first, up to `version`."""
    checksum: int | None
    """Newest version with a checksum file, up to `version`."""

    @property
    def after_checkpoint(self) -> tuple[int, ...]:
        """Commits that a reader replays on top of the checkpoint."""
        return tuple(v for v in self.commits if self.checkpoint is None or v > self.checkpoint)

    def place(self, name: str) -> str:
        """Where a file of the log is."""
        return f"{self.uri}/_delta_log/{name}"


def moved_on(uri: str, version: int | None) -> bool:
    """Whether a table has a version after this one; for None, whether it has a log at all. A look at one name.

    A table that was removed, or made anew with fewer versions, has not moved on.
    """
    after = "" if version is None else f"/{version + 1:020}.json"
    filesystem, path = log.opened(f"{uri}/_delta_log{after}")
    return bool(filesystem.get_file_info(path).type != pafs.FileType.NotFound)


def segment(uri: str, version: int | None = None) -> Segment:
    """What `_delta_log` holds up to a version, or up to the newest one. One listing of one folder."""
    filesystem, path = log.opened(f"{uri}/_delta_log")
    found = log.listed(filesystem, path)
    names = [info.base_name for info in found if info.type == pafs.FileType.File]
    commits = sorted(int(match[1]) for name in names if (match := _COMMIT.fullmatch(name)))
    checkpoints = _checkpoints(names)
    if version is None:
        version = max([*commits[-1:], *checkpoints], default=-1)
    checkpoint = max((v for v in checkpoints if v <= version), default=None)
    sums = (int(match[1]) for name in names if (match := _CHECKSUM.fullmatch(name)))
    return Segment(
        uri=uri,
        version=version,
        checkpoint=checkpoint,
        checkpoint_files=() if checkpoint is None else checkpoints[checkpoint],
        commits=tuple(v for v in commits if v <= version),
        checksum=max((v for v in sums if v <= version), default=None),
    )


def _checkpoints(names: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """Whole checkpoints by version, each with the files that make it up (Delta protocol: checkpoints)."""
    parts: dict[tuple[int, int], list[str]] = defaultdict(list)
    whole: dict[int, tuple[str, ...]] = {}
    for name in sorted(names):
        match = _CHECKPOINT.fullmatch(name)
        if match and match[2]:
            parts[int(match[1]), int(match[3])].append(name)
        elif match:
            whole[int(match[1])] = (name,)
    for (version, expected), found in parts.items():
        if len(found) == expected:
            whole.setdefault(version, tuple(found))
    return whole


def checkpoint_rows(found: Segment) -> int:
    """Actions in the checkpoint: live files, tombstones and a few more. Reads footers only."""
    names = [name for name in (*found.checkpoint_files, *sidecars(found)) if name.endswith(".parquet")]
    return sum(_parquet_rows(found, name) for name in names)


def read_commits(uri: str, versions: Sequence[int]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The actions of some commits, in the order asked for; commits that are gone by now are left out."""
    with ThreadPoolExecutor(_READERS) as pool:
        for version, actions in zip(versions, pool.map(lambda v: log.entry(uri, v), versions), strict=True):
            if actions is not None:
                yield version, actions


def read_removes(uri: str, versions: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The removes of some commits; quicker than reading whole commits, since other lines are not parsed."""
    with ThreadPoolExecutor(_READERS) as pool:
        for removes in pool.map(lambda version: list(_removes(uri, version)), versions):
            yield from removes


def _removes(uri: str, version: int) -> Iterator[dict[str, Any]]:
    filesystem, path = log.opened(f"{uri}/_delta_log/{version:020}.json")
    try:
        with filesystem.open_input_file(path) as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        if b'"remove"' in line and (remove := json.loads(line).get("remove")) is not None:
            yield remove


def from_checkpoint(
    found: Segment, action: str, fields: Sequence[str], having: str | None = None
) -> Iterator[dict[str, Any]]:
    """One kind of action out of the checkpoint, with some of its fields (dotted inside an action) only.

    having: only actions that have this field. Sidecars of a version 2 checkpoint are read too.
    """
    for table in _checkpoint_tables(found, action, fields):
        if having is not None:
            kind = table.schema.field(action).type
            if having not in [kind.field(i).name for i in range(kind.num_fields)]:
                continue
            table = table.filter(pc.is_valid(pc.struct_field(table.column(action), having)))  # noqa: PLW2901
        yield from (row[action] for row in table.to_pylist())


def sidecars(found: Segment) -> list[str]:
    """Names, below `_delta_log`, of the files that hold the file actions of a version 2 checkpoint."""
    names = [
        row["sidecar"]["path"]
        for name in found.checkpoint_files
        for row in _rows(found, name, ["sidecar.path"])
        if row.get("sidecar")
    ]
    return [f"_sidecars/{name}" for name in names]


def _checkpoint_tables(found: Segment, action: str, fields: Sequence[str]) -> Iterator[pa.Table]:
    wanted = [f"{action}.{field}" for field in fields]
    for name in [*found.checkpoint_files, *sidecars(found)]:
        if name.endswith(".json"):
            rows = [row for row in _rows(found, name, wanted) if action in row]
            if rows:
                yield pa.Table.from_pylist([{action: row[action]} for row in rows])
            continue
        table = _parquet(found, name, wanted)
        if action in table.column_names:
            yield table.filter(table.column(action).is_valid())


def _rows(found: Segment, name: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    if name.endswith(".json"):
        filesystem, path = log.opened(found.place(name))
        with filesystem.open_input_file(path) as file:
            return [json.loads(line) for line in file.read().split(b"\n") if line.strip()]
    rows: list[dict[str, Any]] = _parquet(found, name, columns).to_pylist()
    return rows


def _parquet_rows(found: Segment, name: str) -> int:
    filesystem, path = log.opened(found.place(name))
    with filesystem.open_input_file(path) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)


def _parquet(found: Segment, name: str, columns: Sequence[str]) -> pa.Table:
    """Some columns of a file of the log; columns that it lacks are left out."""
    filesystem, path = log.opened(found.place(name))
    with filesystem.open_input_file(path) as file:
        return pq.ParquetFile(file).read(columns=list(columns))

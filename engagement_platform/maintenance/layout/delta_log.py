"""What the `_delta_log` folder of a table says: its checkpoint, its newest commits, and the files that they removed.

Lists that one folder and reads checkpoints and commits. The live files are `files`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from engagement_platform.lake import log

Action = Mapping[str, Any]

REWRITES = frozenset({"OPTIMIZE", "REORG"})
"""Operations that rewrite files without changing rows."""

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\..+)?\.(?:parquet|json)")
_READERS = 8
"""Commits read at a time: on an object store each costs a round trip of some tens of milliseconds."""
_REMOVE = ("remove.path", "remove.deletionTimestamp", "remove.size")
_DOMAIN = ("domainMetadata.domain", "domainMetadata.configuration", "domainMetadata.removed")
_SIDECAR = ("sidecar.path",)
"""Of a V2 checkpoint: its files of adds and removes, which are apart (Delta protocol: sidecar files)."""


def moved_on(uri: str, version: int | None) -> bool:
    """Whether a table has a version after this one; for None, whether it has any. A look at one name; for None at all.

    A table that was removed, or made anew with fewer versions, has not moved on.
    """
    if version is None:
        return newest_named(uri) is not None
    filesystem, path = log.opened(f"{uri}/_delta_log/{version + 1:020}.json")
    return bool(filesystem.get_file_info(path).type != pafs.FileType.NotFound)


def newest_named(uri: str) -> int | None:
    """The newest version by the names in the log, also of one that nobody can read; None where there is none."""
    found = (int(name.removesuffix(".json")) for name in log.names(f"{uri}/_delta_log") if log.ENTRY.fullmatch(name))
    return max(found, default=None)


@dataclass(frozen=True)
class Commit:
    """One commit: what it did, and into how many partitions it put its small files."""

    version: int
    operation: str
    at: datetime | None
    z_order_by: tuple[str, ...]
    files_added: int
    small_files_added: int
    small_partitions_touched: int


@dataclass(frozen=True)
class Removed:
    """A file that is no longer part of the table: when it was removed (ms since 1970; 0: unknown), and its size."""

    at_ms: int
    bytes: int


@dataclass(frozen=True)
class Recent:
    """What the newest commits say."""

    version: int
    checkpoint: int | None
    commits: tuple[Commit, ...]
    """Newest first."""
    removed: Mapping[str, Removed]
    """Removed files by path as the log spells it, of the checkpoint and the commits after it."""
    clustered_by: tuple[str, ...] = ()
    """Columns of liquid clustering, by their names in the log."""
    last_vacuum: datetime | None = None

    @property
    def checkpoint_lag(self) -> int:
        """Commits after the newest checkpoint."""
        return self.version - (-1 if self.checkpoint is None else self.checkpoint)

    @property
    def versions_since_optimize(self) -> int | None:
        """Commits since the newest OPTIMIZE; None when none is among those looked at."""
        return next((self.version - c.version for c in self.commits if c.operation in REWRITES and c.files_added), None)

    @property
    def z_ordered(self) -> Commit | None:
        """The newest commit that Z-ordered, from what it says of itself: open-source Delta leaves no tag on files."""
        return next((commit for commit in self.commits if commit.z_order_by), None)

    @property
    def scattered(self) -> tuple[float, Commit | None]:
        """Small files per partition that a writing commit adds on average, and the commit that scattered most.

        Commits that only rewrite files, and those without small files, say nothing about a writer and do not count.
        """
        writing = [c for c in self.commits if c.operation not in REWRITES and c.small_files_added]
        if not writing:
            return 0.0, None
        each = [(c.small_files_added / c.small_partitions_touched, c) for c in writing]
        return sum(ratio for ratio, _ in each) / len(each), max(each, key=lambda pair: pair[0])[1]


def recent(uri: str, *, most: int, small_file_bytes: int) -> Recent:
    """Read the newest commits (at most `most`), all after the checkpoint, and the checkpoint's removed files.

    Lists `_delta_log` once. Commits that are removed meanwhile are left out.
    """
    filesystem, folder = log.opened(f"{uri}/_delta_log")
    names = sorted(log.names(f"{uri}/_delta_log"))
    entries = [int(name.removesuffix(".json")) for name in names if log.ENTRY.fullmatch(name)]
    checkpoints = {name: int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))}
    checkpoint = max(checkpoints.values(), default=None)
    kept = [f"{folder}/{name}" for name, version in checkpoints.items() if version == checkpoint]
    apart = (one["path"].rpartition("/")[2] for one in _in_checkpoint(filesystem, kept, _SIDECAR))
    with_files = [*kept, *(f"{folder}/_sidecars/{name}" for name in apart)]
    removed = dict(map(_removed, _in_checkpoint(filesystem, with_files, _REMOVE)))
    domains = list(_in_checkpoint(filesystem, kept, _DOMAIN))
    lately = frozenset(entries[-most:])
    read = [version for version in entries if version in lately or checkpoint is None or version > checkpoint]
    commits, vacuum = [], None
    with ThreadPoolExecutor(_READERS) as pool:
        for version, actions in zip(read, pool.map(lambda v: log.entry(uri, v), read), strict=True):
            if actions is None:
                continue
            commit = _commit(version, actions, small_file_bytes)
            if version in lately:
                commits.append(commit)
            if checkpoint is None or version > checkpoint:
                domains += [a["domainMetadata"] for a in actions if "domainMetadata" in a]
            if commit.operation == "VACUUM END":
                vacuum = commit.at
            removed |= dict(_removed(a["remove"]) for a in actions if "remove" in a)
            # A file that gets a deletion vector is removed and added in one commit, in either order.
            for added in (a["add"]["path"] for a in actions if "add" in a):
                removed.pop(added, None)
    newest = max([*entries[-1:], *checkpoints.values()], default=-1)
    return Recent(newest, checkpoint, tuple(reversed(commits)), removed, _clustering(domains), vacuum)


def _in_checkpoint(filesystem: pafs.FileSystem, paths: Iterable[str], fields: Sequence[str]) -> Iterator[Action]:
    """One kind of action out of the files of a checkpoint. fields: its own, such as `remove.path`."""
    action = fields[0].partition(".")[0]
    for path in paths:
        with filesystem.open_input_file(path) as file:
            if path.endswith(".json"):
                # Not splitlines(): that splits at separators such as U+2028 too, which bounds may hold.
                actions = [json.loads(line) for line in file.read().split(b"\n") if line.strip()]
                yield from (one[action] for one in actions if action in one)
                continue
            table = pq.ParquetFile(file).read(columns=list(fields))
        if action in table.column_names:
            yield from table.column(action).drop_null().to_pylist()


def _removed(remove: Action) -> tuple[str, Removed]:
    return remove["path"], Removed(int(remove.get("deletionTimestamp") or 0), int(remove.get("size") or 0))


def _clustering(domains: Sequence[Action]) -> tuple[str, ...]:
    """Clustering columns as the newest of these domain metadata say (Delta protocol: clustered tables)."""
    newest: Action = next((one for one in reversed(domains) if one.get("domain") == "delta.clustering"), {})
    configuration = {} if newest.get("removed") else json.loads(newest.get("configuration") or "{}")
    return tuple(".".join(parts) for parts in configuration.get("clusteringColumns", ()))


def _commit(version: int, actions: Sequence[Action], small_file_bytes: int) -> Commit:
    info = log.commit_info(actions)
    adds = [a["add"] for a in actions if "add" in a]
    small = [add for add in adds if add["size"] < small_file_bytes]
    return Commit(
        version=version,
        operation=str(info.get("operation", "")),
        at=log.time_of(actions),
        z_order_by=_z_order({**info, **(info.get("operationParameters") or {})}),
        files_added=len(adds),
        small_files_added=len(small),
        small_partitions_touched=len({tuple(sorted((add.get("partitionValues") or {}).items())) for add in small}),
    )


def _z_order(parameters: Action) -> tuple[str, ...]:
    """Z-order columns, which Spark writes as a JSON list in a string."""
    columns = parameters.get("zOrderBy")
    if isinstance(columns, str):
        try:
            columns = json.loads(columns)
        except json.JSONDecodeError:
            return ()
    return tuple(map(str, columns)) if isinstance(columns, list) else ()

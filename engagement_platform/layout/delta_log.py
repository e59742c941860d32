"""What the `_delta_log` folder of a table says: its checkpoint, its newest commits, and the files that they removed.

Lists that one folder and reads checkpoints and commits; folders of data are never listed here. The live files are
`files`, whether something is a problem is decided in `findings`.
"""

from __future__ import annotations

import json
import re
from base64 import b85decode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from engagement_platform.lake import log

Action = Mapping[str, Any]
PartitionValues = tuple[tuple[str, str | None], ...]
"""Columns of one partition and their values, both as the log spells them, ordered by column."""

REWRITES = frozenset({"OPTIMIZE", "REORG"})
"""Operations that rewrite files without changing rows."""

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-fA-F-]+)?\.(parquet|json)")
_READERS = 8
"""Commits read at a time: on an object store each costs a round trip of some tens of milliseconds."""
_SEARCHED = 2000
_VECTOR = ("deletionVector.storageType", "deletionVector.pathOrInlineDv", "deletionVector.sizeInBytes")
_REMOVE = ("path", "deletionTimestamp", "size", *_VECTOR)
_DOMAIN = ("domain", "configuration", "removed")
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_FROM_Z85 = str.maketrans(_Z85, _B85)
_UUID_CHARACTERS = 20


@dataclass(frozen=True)
class Segment:
    """The part of a log that defines a version: the newest whole checkpoint, and the commits there are."""

    uri: str
    version: int
    checkpoint: int | None
    """Version of the newest whole checkpoint at or before `version`."""
    checkpoint_files: tuple[str, ...]
    """Names of its files, below `_delta_log`."""
    commits: tuple[int, ...]
    """Versions whose commit is still there, oldest first, up to `version`."""

    @property
    def after_checkpoint(self) -> tuple[int, ...]:
        """Commits that a reader replays on top of the checkpoint."""
        return tuple(v for v in self.commits if self.checkpoint is None or v > self.checkpoint)


def moved_on(uri: str, version: int | None) -> bool:
    """Whether a table has a version after this one; for None, whether it has a log at all. A look at one name.

    A table that was removed, or made anew with fewer versions, has not moved on.
    """
    after = "" if version is None else f"/{version + 1:020}.json"
    filesystem, path = log.opened(f"{uri}/_delta_log{after}")
    return bool(filesystem.get_file_info(path).type != pafs.FileType.NotFound)


def segment(uri: str, version: int | None = None) -> Segment:
    """What `_delta_log` holds up to a version, or up to the newest one (-1: no log). One listing of one folder."""
    filesystem, path = log.opened(f"{uri}/_delta_log")
    names = [info.base_name for info in log.listed(filesystem, path) if info.type == pafs.FileType.File]
    commits = sorted(int(match[1]) for name in names if (match := _COMMIT.fullmatch(name)))
    checkpoints = _checkpoints(names)
    if version is None:
        version = max([*commits[-1:], *checkpoints], default=-1)
    checkpoint = max((v for v in checkpoints if v <= version), default=None)
    files = () if checkpoint is None else checkpoints[checkpoint]
    return Segment(uri, version, checkpoint, files, tuple(v for v in commits if v <= version))


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


def read_commits(uri: str, versions: Sequence[int]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The actions of some commits, in the order asked for; commits that are gone by now are left out."""
    with ThreadPoolExecutor(_READERS) as pool:
        for version, actions in zip(versions, pool.map(lambda v: log.entry(uri, v), versions), strict=True):
            if actions is not None:
                yield version, actions


def from_checkpoint(
    found: Segment, action: str, fields: Sequence[str], having: str | None = None
) -> Iterator[dict[str, Any]]:
    """One kind of action out of the checkpoint, with some of its fields (dotted inside an action) only.

    having: only actions that have this field. Sidecars of a version 2 checkpoint are read too.
    """
    wanted = [f"{action}.{field}" for field in fields]
    sidecars = [
        f"_sidecars/{row['sidecar']['path']}"
        for name in found.checkpoint_files
        for row in _actions(found, name, "sidecar", ["sidecar.path"], None)
    ]
    for name in [*found.checkpoint_files, *sidecars]:
        yield from (row[action] for row in _actions(found, name, action, wanted, having))


def _actions(
    found: Segment, name: str, action: str, columns: Sequence[str], having: str | None
) -> Iterator[dict[str, Any]]:
    """Rows of one file of the checkpoint that hold an action; columns that the file lacks are left out."""
    filesystem, path = log.opened(f"{found.uri}/_delta_log/{name}")
    with filesystem.open_input_file(path) as file:
        if name.endswith(".json"):
            rows = (json.loads(line) for line in file.read().split(b"\n") if line.strip())
            yield from (row for row in rows if row.get(action) and (having is None or row[action].get(having)))
            return
        table = pq.ParquetFile(file).read(columns=list(columns))
    if action not in table.column_names:
        return
    table = table.filter(table.column(action).is_valid())
    if having is not None:
        kind = table.schema.field(action).type
        if having not in [kind.field(i).name for i in range(kind.num_fields)]:
            return
        table = table.filter(pc.is_valid(pc.struct_field(table.column(action), having)))
    yield from table.to_pylist()


@dataclass(frozen=True)
class Commit:
    """One commit: what it did, and how it spread its files over partitions."""

    version: int
    operation: str
    at: datetime | None
    z_order_by: tuple[str, ...]
    files_added: int
    small_files_added: int
    partitions: frozenset[PartitionValues]
    """Partitions that it added files to."""
    small_partitions_touched: int
    """Partitions that it added small files to."""


@dataclass(frozen=True)
class Tombstone:
    """A file that is no longer part of the table: when it was removed (ms since 1970; 0: not said), and its size."""

    removed_ms: int
    bytes: int


@dataclass(frozen=True)
class Recent:
    """What the newest commits say."""

    version: int
    checkpoint: int | None
    checkpoint_lag: int
    """Commits after the newest checkpoint."""
    commits: tuple[Commit, ...]
    """Newest first."""
    tombstones: Mapping[str, Tombstone]
    """Removed files by path as the log spells it, of the checkpoint and the commits after it."""
    clustered_by: tuple[str, ...] = ()
    """Columns of liquid clustering, by their names in the log."""
    last_vacuum: datetime | None = None

    @property
    def versions_since_optimize(self) -> int | None:
        """Commits since the newest OPTIMIZE; None when none is among those looked at."""
        return next((self.version - c.version for c in self.commits if c.operation in REWRITES and c.files_added), None)

    @property
    def rewritten(self) -> Mapping[PartitionValues, int]:
        """Commits since the newest OPTIMIZE of each partition that one of those looked at has rewritten."""
        found = dict[PartitionValues, int]()
        for commit in self.commits:
            if commit.operation in REWRITES:
                for values in commit.partitions:
                    found.setdefault(values, self.version - commit.version)
        return found

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


def recent(found: Segment, *, most: int, small_file_bytes: int) -> Recent:
    """Read the newest commits (at most `most`), all after the checkpoint, and the checkpoint's tombstones."""
    lately = frozenset(found.commits[-most:])
    commits, vacuum = [], None
    tombstones = {p: t for remove in from_checkpoint(found, "remove", _REMOVE) for p, t in _tombstones(remove)}
    clustered = _clustering(from_checkpoint(found, "domainMetadata", _DOMAIN))
    for version, actions in read_commits(found.uri, sorted(lately.union(found.after_checkpoint))):
        commit = _commit(version, actions, small_file_bytes)
        if version in lately:
            commits.append(commit)
        if found.checkpoint is None or version > found.checkpoint:
            clustered = _clustering((a["domainMetadata"] for a in actions if "domainMetadata" in a), clustered)
        if commit.operation == "VACUUM END":
            vacuum = commit.at
        tombstones.update(_removed_by(actions))
        # A file that gets a deletion vector is removed and added in one commit, in either order.
        for action in actions:
            if (add := action.get("add")) is not None:
                tombstones.pop(add["path"], None)
    return Recent(
        version=found.version,
        checkpoint=found.checkpoint,
        checkpoint_lag=found.version - (-1 if found.checkpoint is None else found.checkpoint),
        commits=tuple(reversed(commits)),
        tombstones=tombstones,
        clustered_by=clustered,
        last_vacuum=vacuum,
    )


def forgotten(found: Segment) -> dict[str, Tombstone]:
    """Removed files by the commits before the checkpoint, as far as the log still has them (the newest few thousand).

    A checkpoint forgets tombstones once their retention is over: the very files that VACUUM should delete.
    """
    before = [version for version in found.commits if version not in found.after_checkpoint]
    return {p: t for _, actions in read_commits(found.uri, before[-_SEARCHED:]) for p, t in _removed_by(actions)}


def _removed_by(actions: Iterable[Action]) -> Iterator[tuple[str, Tombstone]]:
    for action in actions:
        if (remove := action.get("remove")) is not None:
            yield from _tombstones(remove)


def _tombstones(remove: Action) -> Iterator[tuple[str, Tombstone]]:
    """The removed file, and the file of the deletion vector that it had."""
    at = int(remove.get("deletionTimestamp") or 0)
    yield remove["path"], Tombstone(at, int(remove.get("size") or 0))
    vector = remove.get("deletionVector")
    if vector and (file := vector_file(vector)) is not None:
        yield file, Tombstone(at, int(vector.get("sizeInBytes") or 0))


def vector_file(vector: Action) -> str | None:
    """The file of a deletion vector below the table's folder; None for those that are in the log or elsewhere.

    Delta protocol: deletion vector descriptor schema; `u` is an optional prefix and a UUID in Z85.

    >>> vector_file({"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"})
    'ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin'
    """
    if vector.get("storageType") != "u":
        return None
    descriptor = str(vector["pathOrInlineDv"])
    prefix, name = descriptor[:-_UUID_CHARACTERS], descriptor[-_UUID_CHARACTERS:]
    file = f"deletion_vector_{UUID(bytes=b85decode(name.translate(_FROM_Z85)))}.bin"
    return f"{prefix}/{file}" if prefix else file


def _clustering(domains: Iterable[Action], before: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Clustering columns as the newest of these domain metadata say (Delta protocol: clustered tables)."""
    for domain in domains:
        if domain.get("domain") == "delta.clustering":
            configuration = {} if domain.get("removed") else json.loads(domain.get("configuration") or "{}")
            before = tuple(".".join(parts) for parts in configuration.get("clusteringColumns", ()))
    return before


def _commit(version: int, actions: Sequence[Action], small_file_bytes: int) -> Commit:
    info: Action = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    adds = [a["add"] for a in actions if "add" in a]
    small = [add for add in adds if add["size"] < small_file_bytes]
    at = info.get("timestamp")
    return Commit(
        version=version,
        operation=str(info.get("operation", "")),
        at=datetime.fromtimestamp(at / 1000, UTC) if isinstance(at, int) else None,
        z_order_by=_z_order({**info, **(info.get("operationParameters") or {})}),
        files_added=len(adds),
        small_files_added=len(small),
        partitions=_partitions(adds),
        small_partitions_touched=len(_partitions(small)),
    )


def _partitions(adds: Sequence[Action]) -> frozenset[PartitionValues]:
    return frozenset(tuple(sorted((add.get("partitionValues") or {}).items())) for add in adds)


def _z_order(parameters: Action) -> tuple[str, ...]:
    """Z-order columns, which Spark writes as a JSON list in a string."""
    columns = parameters.get("zOrderBy")
    if isinstance(columns, str):
        try:
            columns = json.loads(columns)
        except json.JSONDecodeError:
            return ()
    return tuple(map(str, columns)) if isinstance(columns, list) else ()

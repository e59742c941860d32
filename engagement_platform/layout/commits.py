"""How a table has been written and maintained lately: from its newest commits, and from its checkpoint's tombstones.

Facts only. Whether they are a problem is `findings`, what of removed files is still on disk is `disk`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from engagement_platform.layout.segment import Segment, checkpoint_rows, from_checkpoint, read_commits, read_removes
from engagement_platform.layout.vectors import vector_file

PartitionValues = tuple[tuple[str, str | None], ...]
"""Of one partition: its columns and their values, as the log spells both, by column."""

REWRITES = frozenset({"OPTIMIZE", "REORG"})
"""Operations that lay files out anew without changing rows."""


@dataclass(frozen=True)
class Commit:
    """One commit: what it did, and how it spread its files over partitions."""

    version: int
    operation: str
    at: datetime | None
    z_order_by: tuple[str, ...]
    files_added: int
    bytes_added: int
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
    """What the newest commits tell."""

    version: int
    checkpoint: int | None
    checkpoint_lag: int
    """Commits after the newest checkpoint."""
    commits: tuple[Commit, ...]
    """Newest first; what came before them is not known here."""
    tombstones: Mapping[str, Tombstone]
    """Removed files by path as the log spells it, of the checkpoint and the commits after it."""
    tombstones_complete: bool = True
    """Whether the checkpoint's are among them; not when it holds more actions than should be read here."""
    clustered_by: tuple[str, ...] = ()
    """Columns of liquid clustering, by their names in the log."""
    last_vacuum: datetime | None = None
    oldest: int = field(default=0)
    """First version that was looked at."""

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

        Commits that lay files out anew, and those without small files, say nothing about a writer and do not count.
        """
        writing = [c for c in self.commits if c.operation not in REWRITES and c.small_files_added]
        if not writing:
            return 0.0, None
        each = [(c.small_files_added / c.small_partitions_touched, c) for c in writing]
        return sum(ratio for ratio, _ in each) / len(each), max(each, key=lambda pair: pair[0])[1]


def recent(found: Segment, *, most: int, small_file_bytes: int, most_actions: int = 1_000_000) -> Recent:
    """Read the newest commits (at most `most`), all after the checkpoint, and the checkpoint's tombstones.

    most_actions: a checkpoint with more actions is not read for tombstones; after a large compaction there are as many
    as there were files.
    """
    lately = frozenset(found.commits[-most:])
    versions = sorted(lately.union(found.after_checkpoint))
    complete = checkpoint_rows(found) <= most_actions
    commits, tombstones = [], _checkpointed(found) if complete else {}
    clustered, vacuum = _clustering(from_checkpoint(found, "domainMetadata", _DOMAIN)), None
    for version, actions in read_commits(found.uri, versions):
        commit = _commit(version, actions, small_file_bytes)
        if version in lately:
            commits.append(commit)
        if found.checkpoint is None or version > found.checkpoint:
            clustered = _clustering((a["domainMetadata"] for a in actions if "domainMetadata" in a), clustered)
        if commit.operation == "VACUUM END":
            vacuum = commit.at
        for action in actions:
            if (remove := action.get("remove")) is not None:
                tombstones.update(_tombstones(remove))
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
        tombstones_complete=complete,
        clustered_by=clustered,
        last_vacuum=vacuum,
        oldest=min(lately, default=found.version),
    )


def forgotten(found: Segment) -> dict[str, Tombstone]:
    """Removed files by the commits before the checkpoint, as far as the log still has them (the newest few thousand).

    A checkpoint forgets tombstones once their retention is over: the very files that VACUUM should delete.
    """
    before = [version for version in found.commits if version not in found.after_checkpoint]
    removes = read_removes(found.uri, before[-_SEARCHED:])
    return {path: tombstone for remove in removes for path, tombstone in _tombstones(remove)}


_SEARCHED = 2000
_VECTOR = ("deletionVector.storageType", "deletionVector.pathOrInlineDv", "deletionVector.sizeInBytes")
_REMOVE = ("path", "deletionTimestamp", "size", *_VECTOR)
_DOMAIN = ("domain", "configuration", "removed")


def _checkpointed(found: Segment) -> dict[str, Tombstone]:
    return {path: t for remove in from_checkpoint(found, "remove", _REMOVE) for path, t in _tombstones(remove)}


def _tombstones(remove: Mapping[str, Any]) -> Iterator[tuple[str, Tombstone]]:
    """The removed file, and the file of the deletion vector that it had."""
    at = int(remove.get("deletionTimestamp") or 0)
    yield remove["path"], Tombstone(at, int(remove.get("size") or 0))
    vector = remove.get("deletionVector")
    if vector and (file := vector_file(vector)) is not None:
        yield file, Tombstone(at, int(vector.get("sizeInBytes") or 0))


def _clustering(domains: Iterable[Mapping[str, Any]], before: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Clustering columns as the newest of these domain metadata say (Delta protocol: clustered tables)."""
    for domain in domains:
        if domain.get("domain") == "delta.clustering":
            told = {} if domain.get("removed") else json.loads(domain.get("configuration") or "{}")
            before = tuple(".".join(parts) for parts in told.get("clusteringColumns", ()))
    return before


def _commit(version: int, actions: Sequence[Mapping[str, Any]], small_file_bytes: int) -> Commit:
    info: Mapping[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    adds = [a["add"] for a in actions if "add" in a]
    small = [add for add in adds if add["size"] < small_file_bytes]
    told = info.get("timestamp")
    return Commit(
        version=version,
        operation=str(info.get("operation", "")),
        at=datetime.fromtimestamp(told / 1000, UTC) if isinstance(told, int) else None,
        z_order_by=_z_order({**info, **(info.get("operationParameters") or {})}),
        files_added=len(adds),
        bytes_added=sum(add["size"] for add in adds),
        small_files_added=len(small),
        partitions=_partitions(adds),
        small_partitions_touched=len(_partitions(small)),
    )


def _partitions(adds: Sequence[Mapping[str, Any]]) -> frozenset[PartitionValues]:
    return frozenset(
        tuple(sorted((add.get("partitionValues") or {}).items(), key=lambda pair: pair[0])) for add in adds
    )


def _z_order(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Z-order columns: Spark writes a JSON list in a string, delta-rs none, so that `upkeep` names them beside."""
    told = parameters.get("zOrderBy")
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except json.JSONDecodeError:
            return ()
    return tuple(map(str, told)) if isinstance(told, list) else ()

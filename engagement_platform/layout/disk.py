"""What lies in a table's folder beside its live files: removed files that wait for VACUUM, and orphans.

Lists a folder, on this machine's disk or an object store. Deletes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from engagement_platform.lake import log
from engagement_platform.layout.commits import Tombstone
from engagement_platform.layout.vectors import vector_file

_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)
RETENTION = "delta.deletedFileRetentionDuration"
DEFAULT_RETENTION = timedelta(days=7)
"""Delta's default of delta.deletedFileRetentionDuration."""


@dataclass(frozen=True)
class Group:
    """Some files: how many, and their bytes."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Leftovers:
    """What VACUUM could delete, now or later, and what nobody knows.

    unlisted: why the folder was not looked at; then `orphans` say nothing, and removed files are taken to be still
    there unless a VACUUM came after their retention. None: it was.
    """

    waiting: Group
    """Removed files whose retention is not over: time travel may still want them."""
    due: Group
    """Removed files whose retention is over."""
    orphans: Group
    """Files older than `orphan_age` that the log does not know, neither as live nor as removed."""
    young_orphans: Group
    """Younger ones, which may belong to a write that is not committed yet."""
    oldest_orphan: datetime | None
    unlisted: str | None = None

    @property
    def listed(self) -> bool:
        """Whether the folder was looked at."""
        return self.unlisted is None


def retention(properties: Mapping[str, str]) -> timedelta:
    """How long removed files are kept, from the table's properties."""
    match = _INTERVAL.fullmatch(properties.get(RETENTION, "").strip())
    return DEFAULT_RETENTION if match is None else timedelta(**{f"{match[2].lower()}s": int(match[1])})


def leftovers(
    uri: str,
    live: Iterable[str],
    tombstones: Mapping[str, Tombstone],
    vectors: Iterable[Mapping[str, Any]],
    *,
    keep: timedelta,
    orphan_age: timedelta,
    now: datetime,
) -> Leftovers:
    """Compare a folder with the log. Raises OSError where an object store does not let itself be listed.

    live and tombstones: paths as the log spells them. vectors: deletion vectors of live files. keep: see `retention`.
    """
    known = {unquote(path) for path in live} | {name for vector in vectors if (name := vector_file(vector))}
    removed = {unquote(path): tombstone for path, tombstone in tombstones.items()}
    due_before, old_before = (now - keep).timestamp() * 1000, (now - orphan_age).timestamp()
    sums = {name: [0, 0] for name in ("waiting", "due", "orphans", "young")}
    oldest: float | None = None
    for path, size, modified in _listing(uri):
        if path in known:
            continue
        if (tombstone := removed.get(path)) is not None:
            group = "due" if tombstone.removed_ms < due_before else "waiting"
        else:
            group = "orphans" if modified < old_before else "young"
            oldest = modified if oldest is None else min(oldest, modified)
        sums[group][0] += 1
        sums[group][1] += size
    return Leftovers(
        waiting=Group(*sums["waiting"]),
        due=Group(*sums["due"]),
        orphans=Group(*sums["orphans"]),
        young_orphans=Group(*sums["young"]),
        oldest_orphan=None if oldest is None else datetime.fromtimestamp(oldest, UTC),
    )


def by_log(
    live: Iterable[str],
    tombstones: Mapping[str, Tombstone],
    *,
    keep: timedelta,
    last_vacuum: datetime | None,
    now: datetime,
    why: str,
) -> Leftovers:
    """The same from the log alone, for tables whose folder is not listed. why: that is so."""
    alive = set(live)
    gone_before = 0.0 if last_vacuum is None else (last_vacuum - keep).timestamp() * 1000
    due_before = (now - keep).timestamp() * 1000
    there = [t for path, t in tombstones.items() if path not in alive and t.removed_ms >= gone_before]
    due = [t.bytes for t in there if t.removed_ms < due_before]
    waiting = [t.bytes for t in there if t.removed_ms >= due_before]
    return Leftovers(Group(len(waiting), sum(waiting)), Group(len(due), sum(due)), Group(), Group(), None, why)


def _listing(uri: str) -> Iterator[tuple[str, int, float]]:
    """Path below the folder, bytes and time of change of every file that VACUUM would look at.

    Hidden folders and files are left out, `_delta_log` and `_change_data` among them; a folder of a partition may
    begin with an underscore.
    """
    if "://" in uri:
        yield from _objects(uri)
        return
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = sorted(os.scandir(f"{uri}/{folder}"), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        for entry in entries:
            if _hidden(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(f"{folder}{entry.name}/")
                continue
            try:
                told = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                # A writer or VACUUM was faster; what is gone takes up no room.
                continue
            yield f"{folder}{entry.name}", told.st_size, told.st_mtime


def _objects(uri: str) -> Iterator[tuple[str, int, float]]:
    """The same of an object store: one listing of all keys, a request for each thousand."""
    filesystem, root = log.opened(uri)
    for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True)):
        path = info.path.removeprefix(f"{root}/")
        # Hadoop marks a folder that it has emptied by an object without bytes.
        if info.type == pafs.FileType.File and info.size and not any(map(_hidden, path.split("/"))):
            yield path, int(info.size), info.mtime.timestamp()


def _hidden(name: str) -> bool:
    return name.startswith((".", "_")) and "=" not in name

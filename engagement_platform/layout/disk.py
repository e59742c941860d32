"""What is in a table's folder beside its live files: removed files that wait for VACUUM, and orphans.

Lists a folder, on this machine's disk or an object store. Deletes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import pyarrow.fs as pafs

from engagement_platform.lake import log
from engagement_platform.layout import files
from engagement_platform.layout.delta_log import Tombstone, forgotten, vector_file
from engagement_platform.layout.survey import Survey

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
    orphans: Group = Group()
    """Files older than `orphan_age` that the log does not know, neither as live nor as removed."""
    young_orphans: Group = Group()
    """Younger ones, which may belong to a write that is not committed yet."""
    oldest_orphan: datetime | None = None
    unlisted: str | None = None

    @property
    def listed(self) -> bool:
        """Whether the folder was looked at."""
        return self.unlisted is None


def retention(properties: Mapping[str, str]) -> timedelta:
    """How long removed files are kept, from the table's properties."""
    match = _INTERVAL.fullmatch(properties.get(RETENTION, "").strip())
    return DEFAULT_RETENTION if match is None else timedelta(**{f"{match[2].lower()}s": int(match[1])})


def leftovers_of(
    seen: Survey, *, keep: timedelta, orphan_age: timedelta, now: datetime, listed_files: int | None = None
) -> Leftovers:
    """Compare the folder of a table with its log; by the log alone with more live files than `listed_files`, and where
    an object store does not let itself be listed: whoever may read a table there need not be allowed to.
    """
    live, removed = seen.live.column("path").to_pylist(), seen.recent.tombstones
    if listed_files is not None and len(live) > listed_files:
        why = f"the table has {len(live):,} files, more than {listed_files:,} (health.listed_files)"
        return by_log(live, removed, keep=keep, last_vacuum=seen.recent.last_vacuum, now=now, why=why)
    vectors = {name for vector in seen.vectors.values() if vector and (name := vector_file(vector))}
    known = {unquote(path) for path in live} | vectors
    try:
        found = leftovers(seen.target.uri, known, removed, keep=keep, orphan_age=orphan_age, now=now)
        if found.orphans.files:
            # Whether a file was removed long ago is asked only when there is one that nobody seems to know.
            removed = {**forgotten(seen.segment), **removed}
            found = leftovers(seen.target.uri, known, removed, keep=keep, orphan_age=orphan_age, now=now)
    except OSError as error:
        why = f"its folder cannot be listed ({files.first_line(error)})"
        return by_log(live, removed, keep=keep, last_vacuum=seen.recent.last_vacuum, now=now, why=why)
    return found


def leftovers(
    uri: str,
    known: set[str],
    tombstones: Mapping[str, Tombstone],
    *,
    keep: timedelta,
    orphan_age: timedelta,
    now: datetime,
) -> Leftovers:
    """Sort the files of a folder. known: live files and their deletion vectors. Raises OSError."""
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
    """The same from the log alone. why: the folder is not listed."""
    alive = set(live)
    gone_before = 0.0 if last_vacuum is None else (last_vacuum - keep).timestamp() * 1000
    due_before = (now - keep).timestamp() * 1000
    there = [t for path, t in tombstones.items() if path not in alive and t.removed_ms >= gone_before]
    due = [t.bytes for t in there if t.removed_ms < due_before]
    waiting = [t.bytes for t in there if t.removed_ms >= due_before]
    return Leftovers(Group(len(waiting), sum(waiting)), Group(len(due), sum(due)), unlisted=why)


def _listing(uri: str) -> Iterator[tuple[str, int, float]]:
    """Path below the folder, bytes and time of change of every file that VACUUM would look at.

    Hidden folders and files are left out, `_delta_log` and `_change_data` among them; a folder of a partition may
    begin with an underscore. Files that writers or VACUUM remove meanwhile take up no room.
    """
    if "://" in uri:
        filesystem, root = log.opened(uri)
        for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True)):
            path = info.path.removeprefix(f"{root}/")
            # Hadoop marks a folder that it has emptied by an object without bytes.
            if info.type == pafs.FileType.File and info.size and not any(map(_hidden, path.split("/"))):
                yield path, int(info.size), info.mtime.timestamp()
        return
    for folder, folders, names in os.walk(uri):
        folders[:] = [name for name in folders if not _hidden(name)]
        for name in names:
            if _hidden(name):
                continue
            place = Path(folder, name)
            try:
                status = place.lstat()
            except FileNotFoundError:
                continue
            yield place.relative_to(uri).as_posix(), status.st_size, status.st_mtime


def _hidden(name: str) -> bool:
    return name.startswith((".", "_")) and "=" not in name

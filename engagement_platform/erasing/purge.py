"""Deletes what former versions keep of somebody who was just erased, at once: only files in which the person stands.

Who waits for VACUUM needs none of this. Whoever still reads a former version keeps its files: they go later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from engagement_platform.erasing.job import tables
from engagement_platform.erasing.whom import Whom
from engagement_platform.layout.doctor import Target
from engagement_platform.layout.vacuum import Readers, slow_readers
from engagement_platform.microbatch.job import Stores
from engagement_platform.pii.scan import places_with
from engagement_platform.settings import Settings
from engagement_platform.tables import log
from engagement_platform.tables.contract import Table
from engagement_platform.tables.erased import current_files, is_erasure
from engagement_platform.tables.growth import location
from engagement_platform.tables.turns import turn


@dataclass(frozen=True)
class Purged:
    """What was deleted of one table, and who keeps the rest."""

    table: str
    files: int
    kept_by: Sequence[str] = ()
    """Who still reads a former version; then nothing was deleted."""


def purge_now(settings: Settings, stores: Stores, readers: Readers, whom: Whom, now: datetime) -> list[Purged]:
    """Delete files of former versions that an erasure took out, or in which one of the ids stands.

    Time travel, `restore` and the retention of these files end with it; others stay. On this machine's disk only:
    elsewhere VACUUM removes them after their retention. Reads every file of a former version.
    """
    if "://" in settings.lake:
        return []
    return [done for table in tables(settings) if (done := _purged(settings, stores, readers, whom, table, now))]


def _purged(
    settings: Settings, stores: Stores, readers: Readers, whom: Whom, table: Table, now: datetime
) -> Purged | None:
    uri = table.uri(settings.lake)
    if log.version(uri) is None:
        return None
    behind = slow_readers(settings, Target(table.name, uri), stores, readers, now)
    if behind:
        return Purged(table.name, 0, [floor.because.rstrip(",") for floor in behind])
    with turn(settings.lake, table.name):
        stays = current_files(settings.lake, table)
        taken_out = {Path(location(uri, path)) for path in _taken_out(uri)}
        named = places_with([Path(uri)], [id_.encode("utf-8", "surrogatepass") for id_ in whom.ids])
        gone = {path for path in (*taken_out, *named) if _is_former(path, Path(uri), stays)}
        for path in gone:
            path.unlink(missing_ok=True)
    return Purged(table.name, len(gone))


def _is_former(path: Path, folder: Path, stays: set[Path]) -> bool:
    inside = path.relative_to(folder).parts
    return inside[0] != "_delta_log" and path.is_file() and path not in stays


def _taken_out(uri: str) -> Iterator[str]:
    """Files that erasures replaced, as the log spells them; as far back as it has entries."""
    for version, marker in log.markers(uri):
        if is_erasure(marker):
            actions: Sequence[Mapping[str, Mapping[str, str]]] = log.entry(uri, version) or []
            yield from (action["remove"]["path"] for action in actions if "remove" in action)

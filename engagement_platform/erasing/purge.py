"""Deletes the files of former versions at once, after an erasure of whom they have.

Who waits for VACUUM needs none of this. Whoever still reads a former version keeps its files: they go later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from deltalake import DeltaTable

from engagement_platform.engine.job import Stores
from engagement_platform.erasing.found import Whom
from engagement_platform.erasing.job import tables
from engagement_platform.lake import log
from engagement_platform.lake.added_rows import location
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import current_files
from engagement_platform.lake.turns import turn
from engagement_platform.layout.survey import Target
from engagement_platform.layout.vacuum import reads_of, slow_readers, vacuum_of
from engagement_platform.pii.scan import places_with
from engagement_platform.settings import Settings


@dataclass(frozen=True)
class Purged:
    """What was deleted of one table, and who keeps the rest."""

    table: str
    files: int
    kept_by: Sequence[str] = ()
    """Who still reads a former version; then nothing was deleted."""


def purge_now(settings: Settings, stores: Stores, whom: Whom, now: datetime) -> list[Purged]:
    """Delete what only former versions have, and files that no version has in which one of the ids is.

    What the person said is in former versions also without its id, as before a conversion. Time travel and `restore` to
    before end with it. On this machine's disk only: elsewhere VACUUM removes the files after their retention.
    """
    if "://" in settings.lake:
        return []
    return [done for table in tables(settings) if (done := _purged(settings, stores, whom, table, now))]


def _purged(settings: Settings, stores: Stores, whom: Whom, table: Table, now: datetime) -> Purged | None:
    uri = table.uri(settings.lake)
    if log.version(uri) is None:
        return None
    target, held = Target(table.name, uri), f"table/{vacuum_of(table.name)}"
    with (
        stores.leases.acquire(held, purpose="erase --now", wait=settings.stores.lease_wait),
        turn(settings.lake, table.name),
    ):
        behind = [str(read) for read in reads_of(target, stores) if read.files != 0]
        behind += [floor.because.rstrip(",") for floor in slow_readers(settings, target, stores, now)]
        if behind:
            return Purged(table.name, 0, behind)
        opened, stays = DeltaTable(uri), current_files(settings.lake, table)
        # A younger file that the log does not know may be of a batch that is about to commit it.
        former = {
            *opened.vacuum(0, dry_run=True, enforce_retention_duration=False),
            *opened.vacuum(dry_run=True, full=True),
        }
        named = places_with([Path(uri)], [id_.encode("utf-8", "surrogatepass") for id_ in whom.ids])
        paths = {*(Path(location(uri, path)) for path in former), *named}
        gone = [path for path in paths if _is_former(path, uri, stays)]
        for path in gone:
            path.unlink(missing_ok=True)
    return Purged(table.name, len(gone))


def _is_former(path: Path, uri: str, stays: set[Path]) -> bool:
    return path.relative_to(uri).parts[0] != "_delta_log" and path.is_file() and path not in stays

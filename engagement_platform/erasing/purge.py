"""Deletes the files of former versions at once, after an erasure.

A reader of a former version keeps its files, and young ones that no commit names may be of a batch that is about to
commit: VACUUM removes them later.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from deltalake import DeltaTable

from engagement_platform.engine.job import Stores
from engagement_platform.erasing.job import tables
from engagement_platform.lake import log
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import current_files
from engagement_platform.maintenance.layout.survey import Target
from engagement_platform.maintenance.layout.vacuum import reads_of, slow_readers, vacuum_of
from engagement_platform.settings import Settings


def purge_now(settings: Settings, stores: Stores, now: datetime) -> dict[str, list[str]]:
    """Delete what only former versions have; table -> who keeps what, as sentences.

    Where a former version is still read, nothing of the table is deleted. Young files that no commit names stay, too.
    Time travel and `restore` to before end with it. On this machine's disk only: elsewhere VACUUM removes the files
    after their retention.
    """
    if "://" in settings.lake:
        return {}
    there = [table for table in tables(settings) if log.version(table.uri(settings.lake)) is not None]
    return {table.name: _purge(settings, stores, table, now) for table in there}


def _checksum_of(path: Path) -> Path:
    """Where Hadoop's local file system keeps the checksum of a file."""
    return path.with_name(f".{path.name}.crc")


def _purge(settings: Settings, stores: Stores, table: Table, now: datetime) -> list[str]:
    uri = table.uri(settings.lake)
    target, held = Target(table.name, uri), f"table/{vacuum_of(table.name)}"
    with (
        stores.leases.acquire(held, purpose="erase --now", wait=settings.stores.lease_wait),
        commit_lock(settings.lake, table.name),
    ):
        behind = [str(read) for read in reads_of(target, stores) if read.files != 0]
        behind += [floor.because.rstrip(",") for floor in slow_readers(settings, target, stores, now)]
        if behind:
            return behind
        opened, current = DeltaTable(uri), current_files(settings.lake, table)
        # delta-rs lists the checksums that Hadoop writes beside files in folders of partitions, and the log has none.
        current |= {_checksum_of(path) for path in current}

        def unused(paths: Iterable[str]) -> set[Path]:
            found = {Path(log.location(uri, path)) for path in paths} - current
            return {path for path in found if path.is_file() and "_delta_log" not in path.relative_to(uri).parts}

        for path in unused(
            [
                *opened.vacuum(0, dry_run=True, enforce_retention_duration=False),
                *opened.vacuum(dry_run=True, full=True),
            ]
        ):
            path.unlink()
            _checksum_of(path).unlink(missing_ok=True)
        # A younger file that the log does not know may be of a batch that is about to commit it.
        younger = unused(opened.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True))
    return [f"{len(younger)} files of writes that died or are under way, which VACUUM removes"] if younger else []

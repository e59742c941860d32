"""Deletes what former versions keep of somebody who was just erased, at once: only files in which the person stands.

Who waits for VACUUM needs none of this. Whoever still reads a former version keeps its files: they go later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from engagement_platform.engine.job import Stores
from engagement_platform.erasing.job import tables
from engagement_platform.erasing.whom import Whom
from engagement_platform.lake import log
from engagement_platform.lake.append_log_source import location
from engagement_platform.lake.contract import Table
from engagement_platform.lake.erased import current_files, is_erasure
from engagement_platform.lake.turns import turn
from engagement_platform.layout.doctor import Target
from engagement_platform.layout.unfinished_reads import reads_of, vacuum_of
from engagement_platform.layout.vacuum import Readers, slow_readers
from engagement_platform.pii.scan import places_with
from engagement_platform.pii.tombstones import ENGAGEMENT, StoredTombstones, Tombstones
from engagement_platform.settings import Settings

_ENGAGEMENT_ID = "engagement_id"
_PARTITION = re.compile(r"/organization_id=([^/]*)/")


@dataclass(frozen=True)
class Purged:
    """What was deleted of one table, and who keeps the rest."""

    table: str
    files: int
    kept_by: Sequence[str] = ()
    """Who still reads a former version; then nothing was deleted."""


def purge_now(settings: Settings, stores: Stores, readers: Readers, whom: Whom, now: datetime) -> list[Purged]:
    """Delete files of former versions that an erasure took out, or in which one of the ids or engagements stands.

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
    target, held = Target(table.name, uri), f"table/{vacuum_of(table.name)}"
    with (
        stores.leases.acquire(held, purpose="erase --now", wait=settings.stores.lease_wait),
        turn(settings.lake, table.name),
    ):
        behind = [str(read) for read in reads_of(target, stores) if read.files != 0]
        behind += [floor.because.rstrip(",") for floor in slow_readers(settings, target, stores, readers, now)]
        if behind:
            return Purged(table.name, 0, behind)
        stays = current_files(settings.lake, table)
        taken_out = {Path(location(uri, path)) for path in _taken_out(uri)}
        named = places_with([Path(uri)], [id_.encode("utf-8", "surrogatepass") for id_ in whom.ids])
        gone = {path for path in (*taken_out, *named) if _is_former(path, Path(uri), stays)}
        former = (path for path in Path(uri).rglob("*.parquet") if _is_former(path, Path(uri), stays))
        gone |= set(_with_engagements(StoredTombstones(settings), (path for path in former if path not in gone)))
        for path in gone:
            path.unlink(missing_ok=True)
    return Purged(table.name, len(gone))


def _is_former(path: Path, folder: Path, stays: set[Path]) -> bool:
    inside = path.relative_to(folder).parts
    return inside[0] != "_delta_log" and path.is_file() and path not in stays


def _with_engagements(tombstones: Tombstones, paths: Iterable[Path]) -> Iterator[Path]:
    """Files with a row of an erased engagement: what the person said stands there also without its id, as before a
    conversion, or in what was patched."""
    erased = tombstones.organizations(ENGAGEMENT)
    for path in paths if erased else ():
        file = pq.ParquetFile(path)
        columns = [name for name in ("organization_id", _ENGAGEMENT_ID) if name in file.schema_arrow.names]
        if _ENGAGEMENT_ID not in columns:
            continue
        for batch in file.iter_batches(columns=columns):
            rows = pa.Table.from_batches([batch]).group_by(columns).aggregate([]).to_pylist()
            # Where the files are partitioned, the folder says it, and nothing does where folders have random names.
            within = _PARTITION.search(path.as_posix())
            others = [unquote(within.group(1))] if within else sorted(erased)
            pairs = {
                (organization, str(row[_ENGAGEMENT_ID]))
                for row in rows
                for organization in ([row["organization_id"]] if "organization_id" in row else others)
            }
            if tombstones.erased(ENGAGEMENT, pairs):
                yield path
                break


def _taken_out(uri: str) -> Iterator[str]:
    """Files that erasures replaced, as the log spells them; as far back as it has entries."""
    for version, marker in log.markers(uri):
        if is_erasure(marker):
            actions: Sequence[Mapping[str, Mapping[str, str]]] = log.entry(uri, version) or []
            yield from (action["remove"]["path"] for action in actions if "remove" in action)

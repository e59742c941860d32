"""Removes files that no version in reach needs: VACUUM behind a guard that names who still reads old versions.

Nothing is removed below the longest floor.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from engagement_platform.consumers.reader import lake_root
from engagement_platform.consumers.streams import Unreadable, followed
from engagement_platform.engine.cursors import CursorStore, StreamCheckpoints
from engagement_platform.engine.database import StoresUnavailable
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import LeaseLost, LeaseUnavailable
from engagement_platform.engine.model import BatchRecord
from engagement_platform.engine.unfinished_batches import how_to_finish, versions_read
from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake import log
from engagement_platform.lake import optimize as lake_optimize
from engagement_platform.lake.driver_lease import LakeHeld
from engagement_platform.lake.engagement import CHANGESET, MAPPING, NOTIFICATION, data_table
from engagement_platform.lake.optimize import SparkGetter
from engagement_platform.maintenance.layout import files
from engagement_platform.maintenance.layout.files import LogNotReadable
from engagement_platform.maintenance.layout.optimize import (
    SparkOpener,
    is_about_a_table,
    place_of,
    spark_when_needed,
)
from engagement_platform.maintenance.layout.remedies import readable
from engagement_platform.maintenance.layout.survey import Target, targets
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import Settings

_HOUR = timedelta(hours=1)

# Rows that a late request may bring back are in these.
_LATE = (data_table("liquid").name, MAPPING.name, CHANGESET.name)


def vacuum_of(table: str) -> str:
    """The table lease that VACUUM holds while it removes files, and a restore while it begins.

    Between a plan that found every file and the manifest that names the version, no VACUUM may come.
    """
    return f"{table}, vacuum"


@dataclass(frozen=True)
class Read:
    """A version that is not the newest and that an unfinished batch reads when it is resumed."""

    batch: BatchRecord
    version: int
    files: int | None
    """How many files no newer version has. None: nobody can tell, since its log entries are gone or it has deletion
    vectors, which are replaced while the files of the rows stay."""

    def __str__(self) -> str:
        what = f"{self.files:,} files of it are in no newer one" if self.files is not None else "it may lose files"
        return f"{self.batch.manifest} ({self.batch.state}) reads version {self.version}, and {what}"


class VacuumFailed(PlatformError):
    """VACUUM of one table of many ended with an error."""

    def __init__(self, table: str, because: str) -> None:
        super().__init__(
            f"VACUUM of {table} failed: {because}. The other tables were done. What was not removed goes with the next "
            f"one that succeeds; to see all of the error: engagement-platform vacuum {table}"
        )


class StillRead(PlatformError):
    """Files were to be removed that an unfinished batch, restore or erasure reads."""

    def __init__(self, table: str, reads: Sequence[Read]) -> None:
        self.table, self.reads = table, tuple(reads)
        jobs = dict.fromkeys(read.batch.manifest.job for read in reads)
        super().__init__(
            f"{table} cannot be vacuumed now: {'; '.join(map(str, reads))}. Nothing was removed. First finish it: "
            f"{'; '.join(map(how_to_finish, jobs))}. Then ask again."
        )


@dataclass(frozen=True)
class Floor:
    """How long removed files have to stay, for one reason."""

    keep: timedelta
    because: str
    do: str
    """What makes it shorter."""

    @property
    def hours(self) -> int:
        """Whole hours, rounded up: VACUUM counts in hours, and clocks of writers differ by seconds."""
        return math.ceil(self.keep / _HOUR)


class RetentionTooShort(PlatformError):
    """A VACUUM was asked to remove files that may still be read."""

    def __init__(self, table: str, asked_hours: int, floors: Sequence[Floor]) -> None:
        self.table, self.floors = table, tuple(floors)
        reasons = "; ".join(f"{floor.because} needs {floor.hours:,} hours ({floor.do})" for floor in floors)
        super().__init__(
            f"VACUUM of {table} was asked to keep {asked_hours:,} hours, which is too little: {reasons}. Nothing was "
            f"removed. Ask for {max(floor.hours for floor in floors):,} hours or more, or leave --hours away."
        )


class RetentionNotApplied(PlatformError):
    """VACUUM removes what is older than the table's own retention, and more has to be kept."""

    def __init__(self, table: str, own_hours: int, wanted_hours: int, because: str) -> None:
        self.table = table
        super().__init__(
            f"VACUUM of {table} keeps removed files for what the table says, {own_hours:,} hours, and not for the "
            f"{wanted_hours:,} that {because} needs. Nothing was removed. Set delta.deletedFileRetentionDuration to "
            f"'interval {wanted_hours} hours' or more on the table, or ask again when that is no longer needed."
        )


class RetentionUnreadable(PlatformError):
    """Nobody can tell how long a table keeps removed files, so nobody can tell whether that is long enough."""

    def __init__(self, table: str, text: str) -> None:
        self.table = table
        super().__init__(
            f"VACUUM of {table} is refused: its {files.RETENTION} is {text!r}, which is no sum of weeks, days, hours, "
            "minutes and seconds, or too long. Nothing was removed. Set it on the table, such as 'interval 7 days'."
        )


class OtherTablesWithin(PlatformError):
    """The folder of a table has other tables in it, whose files its log does not know."""

    def __init__(self, table: str, within: Sequence[str]) -> None:
        self.table = table
        names = ", ".join(f"{table}/{one}" for one in within)
        super().__init__(
            f"VACUUM of {table} would remove the files of {names}, which lies in its folder. Nothing was removed. Move "
            "one of them."
        )


@dataclass(frozen=True)
class Vacuumed:
    """What was removed, or (dry_run) would be."""

    table: str
    dry_run: bool
    kept_hours: int
    because: str
    """Why no less was kept."""
    files: int
    bytes: int | None
    """None where they would go from an object store: Spark names files only, and asking for each size is a request."""

    def as_json(self) -> dict[str, object]:
        """All of it by name."""
        return dict(vars(self))

    def __str__(self) -> str:
        size = "" if self.bytes is None else f" of {readable(self.bytes)}"
        went = "would go" if self.dry_run else "removed"
        return f"{self.table}: {self.files:,} files{size} {went}; kept {self.kept_hours:,} h ({self.because})"


def reads_of(table: Target, stores: Stores) -> list[Read]:
    """Every version that an unfinished batch names and that would lose files, oldest first.

    By versions, never by clocks. Cost: one query; for each such version its log is read. Raises NotADeltaTable,
    LogNotReadable.
    """
    named = [(v, batch) for batch in stores.checkpoints.unfinished() for v in versions_read(batch.manifest, table.name)]
    if not named:
        return []
    opened = files.open_table(table.uri, table.name)
    newest, live, vectors = opened.version(), set(_paths(opened)), files.shape(opened).deletion_vectors
    found = []
    for version, batch in sorted(named, key=lambda one: (one[0], one[1].manifest.job)):
        if version >= newest:
            continue
        try:
            opened.load_as_version(version)
            lost = None if vectors else len(set(_paths(opened)) - live)
        except DeltaError:
            lost = None
        if lost != 0:
            found.append(Read(batch, version, lost))
    return found


def _paths(opened: DeltaTable) -> list[str]:
    paths: list[str] = pa.table(opened.get_add_actions()).column("path").to_pylist()
    return paths


def floors(settings: Settings, table: Target, own: timedelta, stores: Stores, now: datetime) -> list[Floor]:
    """Everything that keeps removed files of a table, longest first. own: the table's retention."""
    found = [
        Floor(own, "the table's own retention", "delta.deletedFileRetentionDuration of the table"),
        Floor(settings.maintenance.rollback_window, "the rollback window", "maintenance.rollback_window"),
        *slow_readers(settings, table, stores, now),
    ]
    if table.name in _LATE:
        found.append(Floor(settings.mutation.max_lateness, "a request that comes late", "mutation.max_lateness"))
    return sorted(found, key=lambda floor: -floor.keep)


def slow_readers(settings: Settings, table: Target, stores: Stores, now: datetime) -> list[Floor]:
    """Consumers and streams that have yet to read a version, or may have; none of those that have committed nothing
    for `consumers.keep_for`.
    """
    found = list[Floor]()
    keep_for, lake = settings.consumers.keep_for, lake_root(settings.lake)

    def behind(reader: str, version: int, committed_ts: datetime, forget: str) -> None:
        if now - committed_ts <= keep_for and (kept := _age(table.uri, version, now)):
            because = f"{reader}, which has read the table up to version {version},"
            found.append(Floor(kept, because, f"let it read on, or engagement-platform consumers {forget}"))

    notified = table.name == NOTIFICATION.name
    # Consumers of what changed go by the lake, those of a table's own rows by the table.
    for cursor in CursorStore(stores.leases.engine).all(lake if notified else f"{lake}/{table.name}"):
        forget = f"--forget {shlex.quote(cursor.name)}" + ("" if notified else f" --table {table.name}")
        behind(f"consumer {cursor.name}", cursor.position["version"], cursor.committed_ts, forget)
    table_id = str(files.open_table(table.uri, table.name).metadata().id)
    for stream, folder in StreamCheckpoints(stores.leases.engine).all().items():
        place, forget = followed(folder, table_id), f"--forget-stream {shlex.quote(stream)}"
        if isinstance(place, Unreadable):
            because = f"stream {stream}, whose checkpoint folder cannot be read from here ({place.why}),"
            do = f"run where {folder} can be read, or engagement-platform consumers {forget}"
            found.append(Floor(keep_for, because, do))
        elif place is not None:
            behind(f"stream {stream}", place.version, place.committed_ts, forget)
    return found


def _age(uri: str, version: int, now: datetime) -> timedelta | None:
    """How long ago a version was no longer the newest; files that it has were removed after that. None: it still is.

    Where the log does not tell any more, as long ago as the oldest entry that it has.
    """
    newest = log.version(uri)
    if newest is None or version >= newest:
        return None
    following = max(0, version + 1)
    committed = log.committed(uri, following)
    if committed is None:
        kept = log.next_entry(uri, following)
        committed = None if kept is None else log.committed(uri, kept)
    # An hour more: a file is marked as removed when its rewrite begins, and that is before the commit.
    return None if committed is None else max(timedelta(0), now - committed) + _HOUR


def vacuum(
    settings: Settings,
    table: Target,
    stores: Stores,
    spark: SparkGetter,
    *,
    hours: int | None = None,
    dry_run: bool = True,
    now: datetime | None = None,
) -> Vacuumed:
    """Remove files that were taken out of a table longer ago than every floor, and than `hours`.

    hours: keep so many; None: as many as the longest floor. dry_run: only say what would go, in files and bytes.
    Raises StillRead, RetentionTooShort with every floor above `hours`, RetentionNotApplied, RetentionUnreadable,
    OtherTablesWithin, LeaseUnavailable, NotADeltaTable, LogNotReadable.
    """
    now = now or datetime.now(UTC)
    with stores.leases.acquire(f"table/{vacuum_of(table.name)}", purpose="vacuum", wait=settings.stores.lease_wait):
        if losing := reads_of(table, stores):
            raise StillRead(table.name, losing)
        properties = files.shape(files.open_table(table.uri, table.name)).properties
        own = files.retention(properties)
        if own is None:
            raise RetentionUnreadable(table.name, properties[files.RETENTION])
        keeping = floors(settings, table, own, stores, now)
        if hours is not None and (above := [floor for floor in keeping if floor.hours > hours]):
            raise RetentionTooShort(table.name, hours, above)
        keep = keeping[0].hours if hours is None else hours
        because = keeping[0].because.rstrip(",") if hours is None else f"{hours:,} hours were asked for"
        own_hours = math.ceil(own / _HOUR)
        if own_hours < keep:
            raise RetentionNotApplied(table.name, own_hours, keep, because)
        place = place_of(settings, table)
        found: tuple[int, int | None] = 0, 0
        if old := lake_optimize.old_files(place):
            if within := lake_optimize.tables_among(place, old):
                raise OtherTablesWithin(table.name, within)
            found = _dry_run(place, spark()) if dry_run else lake_optimize.vacuum(place, spark())
        return Vacuumed(table.name, dry_run, own_hours, "the table's own retention", *found)


def _dry_run(place: lake_optimize.Place, spark: SparkSession) -> tuple[int, int | None]:
    """How many files would go, and their bytes; None: on an object store Spark names them only."""
    paths = lake_optimize.unused_files(place, spark)
    return len(paths), None if "://" in place.uri else sum(_sizes(place.uri, paths))


_OF_ONE_TABLE = (LogNotReadable, RetentionNotApplied, RetentionUnreadable, OtherTablesWithin, StillRead)


def vacuum_tables(
    settings: Settings,
    asked: str | None = None,
    *,
    hours: int | None = None,
    dry_run: bool = False,
    open_spark: SparkOpener | None = None,
) -> Iterator[Vacuumed | PlatformError]:
    """VACUUM of one table, or of every table of the lake; then a table that cannot be vacuumed comes as its error.

    Raises NoSuchTable, RetentionTooShort, and for a table that was named everything else too.
    """
    stores = open_stores(settings)
    with spark_when_needed(settings, "vacuum", open_spark) as spark:
        for table in targets(settings, asked):
            try:
                yield vacuum(settings, table, stores, spark, hours=hours, dry_run=dry_run)
            except (*_OF_ONE_TABLE, LeaseUnavailable) as error:
                # One table must not keep the others from being looked after.
                if asked is not None:
                    raise
                yield error
            except (RetentionTooShort, StoresUnavailable, LakeHeld, LeaseLost):
                raise
            except Exception as error:
                if asked is not None or not is_about_a_table(error):
                    raise
                yield VacuumFailed(table.name, first_line(error))


def _sizes(uri: str, paths: Sequence[str]) -> Iterator[int]:
    """Bytes of those files that are there, by their paths below the table, escaped as in the log or not."""
    for path in (path.removeprefix("file:") for path in paths):
        there = filter(Path.is_file, (Path(uri, path), Path(uri, unquote(path))))
        yield next((place.stat().st_size for place in there), 0)

"""Removes files that no version in reach needs: VACUUM behind a guard that names who still reads old versions.

What is due by the log alone is in `disk`; here it is done, and never below the largest floor.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from engagement_platform.engine.cursors import CursorStore, StreamCheckpoints
from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import BatchRecord, JobState
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake import optimize as lake_optimize
from engagement_platform.lake.engagement import CHANGESET, MAPPING, NOTIFICATION, data_table
from engagement_platform.lake.optimize import Place, SparkGetter, checkpoint_log, writes_as_spark
from engagement_platform.layout import disk, files, history
from engagement_platform.layout.commits import recent
from engagement_platform.layout.doctor import Target
from engagement_platform.layout.history import Mended
from engagement_platform.layout.remedies import Prediction
from engagement_platform.layout.segment import segment
from engagement_platform.layout.streams import Unreadable, followed
from engagement_platform.layout.survey import place_of
from engagement_platform.layout.unfinished_reads import reads_of, refuse_still_read, vacuum_of
from engagement_platform.settings import Settings

_HOUR = timedelta(hours=1)
_LOG_RETENTION = "interval 30 days"
"""Delta's default of delta.logRetentionDuration."""

# Rows that a late request may bring back stand in these.
_LATE = (data_table("liquid").name, MAPPING.name, CHANGESET.name)


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
        return max(0, math.ceil(self.keep / _HOUR))


class RetentionTooShort(PlatformError):
    """A VACUUM was asked to remove files that somebody may still read."""

    def __init__(self, table: str, asked_hours: int, floors: Sequence[Floor]) -> None:
        self.table, self.asked_hours, self.floors = table, asked_hours, tuple(floors)
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
    """None on object stores: Spark tells names only, and asking for each size costs a request."""

    def as_json(self) -> dict[str, object]:
        """All of it by name."""
        return dict(vars(self))


Readers = Mapping[str, str]
"""Name of each job whose source is a table, to the name of that table."""


def floors(
    settings: Settings, table: Target, properties: Mapping[str, str], stores: Stores, readers: Readers, now: datetime
) -> list[Floor]:
    """Everything that keeps removed files of a table, longest first."""
    found = [
        Floor(
            disk.retention(properties),
            "the table's own retention",
            "delta.deletedFileRetentionDuration of the table",
        ),
        Floor(settings.maintenance.rollback_window, "the rollback window", "maintenance.rollback_window"),
    ]
    if table.name in _LATE:
        found.append(Floor(settings.mutation.max_lateness, "a request that comes late", "mutation.max_lateness"))
    found += slow_readers(settings, table, stores, readers, now)
    return sorted(found, key=lambda floor: -floor.keep)


def slow_readers(settings: Settings, table: Target, stores: Stores, readers: Readers, now: datetime) -> list[Floor]:
    """Those of the floors that are somebody who is behind: jobs and consumers that follow."""
    found = []
    for reader in _readers(settings, table, stores, readers, now):
        if kept := _behind(settings, table, reader, now):
            found.append(Floor(kept, f"{reader.name}, {reader.where},", reader.do))
    return found


@dataclass(frozen=True)
class _Reader:
    """Who follows a table: up to which version it has read, and what makes it go on."""

    name: str
    version: int | None
    """None: nobody can tell."""
    do: str
    why: str = ""
    """Why nobody can tell."""

    @property
    def where(self) -> str:
        """How far it is, in words that follow its name."""
        if self.version is None:
            return f"whose checkpoint folder cannot be read from here ({self.why})"
        return f"which has read the table up to version {self.version}"


def _behind(settings: Settings, table: Target, reader: _Reader, now: datetime) -> timedelta | None:
    """How long ago a reader's version was the newest; None: it still is. Where nobody knows the version, as long as
    readers are waited for at all.
    """
    if reader.version is None:
        return settings.consumers.keep_for
    return _age(table.uri, reader.version, now)


def _readers(settings: Settings, table: Target, stores: Stores, readers: Readers, now: datetime) -> Iterator[_Reader]:
    """Jobs, consumers and streams that follow a table, or may do so; no consumer and no stream that has committed
    nothing for `consumers.keep_for`.
    """
    for job, source in readers.items():
        if source == table.name and (read := _read_through(stores.checkpoints.latest(job))) is not None:
            yield _Reader(job, read, _finish(job))
    lake = log.storage_uri(settings.lake)
    notified = table.name == NOTIFICATION.name
    # Consumers of what changed go by the lake, those of a table's own rows by the table.
    for cursor in CursorStore(stores.leases.engine).all(lake if notified else f"{lake}/{table.name}"):
        if now - cursor.committed_ts <= settings.consumers.keep_for:
            forget = f"--forget {shlex.quote(cursor.name)}" + ("" if notified else f" --table {table.name}")
            do = f"let it read on, or engagement-platform consumers {forget}"
            yield _Reader(f"consumer {cursor.name}", cursor.position["version"], do)
    table_id = str(files.open_table(table.uri, table.name).metadata().id)
    for stream, folder in StreamCheckpoints(stores.leases.engine).all().items():
        place, forget = followed(folder, table_id), f"--forget-stream {shlex.quote(stream)}"
        if isinstance(place, Unreadable):
            do = f"run where {folder} can be read, or engagement-platform consumers {forget}"
            yield _Reader(f"stream {stream}", None, do, place.why)
        elif place is not None and now - place.committed_ts <= settings.consumers.keep_for:
            yield _Reader(
                f"stream {stream}", place.version, f"let it read on, or engagement-platform consumers {forget}"
            )


def _finish(job: str) -> str:
    return f"engagement-platform run {job} --until-idle"


def _read_through(last: BatchRecord | None) -> int | None:
    """The last version of its source that a job will not read again; None: the job has read nothing."""
    if last is None:
        return None
    offsets = last.manifest.end if last.state is JobState.SUCCEEDED else last.manifest.start
    return offsets.get("version")


def _age(uri: str, version: int, now: datetime) -> timedelta | None:
    """How long ago a version was no longer the newest; files that it has were removed after that. None: it still is.

    Where the log does not tell any more, as long ago as the oldest entry that it has.
    """
    newest = log.version(uri)
    if newest is None or version >= newest:
        return None
    following = max(0, version + 1)
    moment = log.committed(uri, following)
    if moment is None:
        kept = log.next_entry(uri, following)
        moment = None if kept is None else log.committed(uri, kept)
    # An hour more: a file is marked as removed when its rewrite begins, and that is before the commit.
    return None if moment is None else max(timedelta(0), now - moment) + _HOUR


def vacuum(
    settings: Settings,
    table: Target,
    stores: Stores,
    readers: Readers,
    spark: SparkGetter,
    *,
    hours: int | None = None,
    dry_run: bool = True,
    now: datetime | None = None,
) -> Vacuumed:
    """Remove files that were taken out of a table longer ago than every floor, and than `hours`.

    hours: keep so many; None: as many as the longest floor. dry_run: only say what would go, in files and bytes.
    Raises StillRead, RetentionTooShort with every floor above `hours`, RetentionNotApplied, LeaseUnavailable,
    NotADeltaTable, LogNotReadable.
    """
    with stores.leases.acquire(f"table/{vacuum_of(table.name)}", purpose="vacuum", wait=settings.stores.lease_wait):
        refuse_still_read(table, stores)
        return _vacuum(settings, table, stores, readers, spark, hours, now or datetime.now(UTC), dry_run=dry_run)


def _vacuum(
    settings: Settings,
    table: Target,
    stores: Stores,
    readers: Readers,
    spark: SparkGetter,
    hours: int | None,
    now: datetime,
    *,
    dry_run: bool,
) -> Vacuumed:
    opened = files.open_table(table.uri, table.name)
    what = files.shape(opened)
    found = floors(settings, table, what.properties, stores, readers, now)
    if hours is not None and (above := [floor for floor in found if floor.hours > hours]):
        raise RetentionTooShort(table.name, hours, above)
    keep = found[0].hours if hours is None else hours
    because = found[0].because if hours is None else f"{hours:,} hours were asked for"
    gain = None if dry_run else _predicted(opened, what, table, timedelta(hours=keep), now)
    began = time.monotonic()
    done = _vacuumed(table, place_of(settings, table), what, (keep, because.rstrip(",")), spark, dry_run=dry_run)
    if gain is not None and done.files:
        actual = {"files_freed": done.files, "bytes_freed": done.bytes}
        took = time.monotonic() - began
        history.remember_mended(settings, Mended(table.name, gain, done.because, now, took, actual), spark())
    return done


def _predicted(opened: DeltaTable, what: files.Shape, table: Target, keep: timedelta, now: datetime) -> Prediction:
    """What a VACUUM would delete, by log and folder; by the log alone where the folder cannot be listed."""
    found = segment(table.uri, what.version)
    lately = recent(found, most=1, small_file_bytes=1)
    live = pa.table(opened.get_add_actions()).column("path").to_pylist()
    # A checkpoint forgets removed files past their retention; in the folder they are still seen.
    vectors = [one for one in files.deletion_vectors(found).values() if one] if what.deletion_vectors else []
    try:
        seen = disk.leftovers(table.uri, live, lately.tombstones, vectors, keep=keep, orphan_age=keep, now=now)
    except OSError as error:
        last, why = lately.last_vacuum, files.first_line(error)
        seen = disk.by_log(live, lately.tombstones, keep=keep, last_vacuum=last, now=now, why=why)
    due, orphans = seen.due, seen.orphans
    return Prediction("vacuum", 0, bytes_freed=due.bytes + orphans.bytes, files_freed=due.files + orphans.files)


def _vacuumed(
    table: Target,
    place: Place,
    what: files.Shape,
    kept: tuple[int, str],
    spark: SparkGetter,
    *,
    dry_run: bool,
) -> Vacuumed:
    """kept: hours to keep, and why. Raises RetentionNotApplied."""
    keep, because = kept
    local = "://" not in table.uri
    own = math.ceil(disk.retention(what.properties) / _HOUR)
    if own < keep:
        raise RetentionNotApplied(table.name, own, keep, because)
    would = lake_optimize.vacuum(place, spark(), dry_run=True)
    sizes = _sizes(table.uri, [path.removeprefix("file:") for path in would]) if local else []
    if would and not dry_run:
        lake_optimize.vacuum(place, spark(), dry_run=False)
    return Vacuumed(table.name, dry_run, own, "the table's own retention", len(would), sum(sizes) if local else None)


def _sizes(uri: str, paths: Sequence[str]) -> list[int]:
    """Bytes of those files that are there, by their paths below the table, escaped as in the log or not."""
    found = ([place for name in (path, unquote(path)) if (place := Path(uri, name)).is_file()] for path in paths)
    return [there[0].stat().st_size for there in found if there]


@dataclass(frozen=True)
class Checkpointed:
    """What was done to the log of a table."""

    table: str
    commits: int
    """Commits that came after the newest checkpoint before."""
    done: bool
    cleaned: bool
    """Whether expired entries were removed too."""


def checkpoint(
    settings: Settings,
    table: Target,
    stores: Stores,
    readers: Readers,
    spark: SparkGetter,
    *,
    now: datetime | None = None,
) -> Checkpointed:
    """Make a checkpoint where the newest is too old, and remove log entries that are past their retention.

    Entries stay while an unfinished batch reads a former version, and while a job or a consumer has yet to read one
    that is past it. Raises NotADeltaTable, LogNotReadable.
    """
    now = now or datetime.now(UTC)
    opened = files.open_table(table.uri, table.name)
    what = files.shape(opened)
    lately = recent(segment(table.uri, what.version), most=1, small_file_bytes=1)
    # Spark makes checkpoints itself, of all tables that it writes; the others are those that it never sees.
    if lately.checkpoint_lag <= settings.maintenance.checkpoint_commits or not writes_as_spark(opened):
        return Checkpointed(table.name, lately.checkpoint_lag, done=False, cleaned=False)
    kept_for = what.properties.get("delta.logRetentionDuration", _LOG_RETENTION)
    keep = disk.retention({"delta.deletedFileRetentionDuration": kept_for})
    ages = (_behind(settings, table, reader, now) for reader in _readers(settings, table, stores, readers, now))
    clean = all(age is None or age < keep for age in ages) and not reads_of(table, stores)
    began = time.monotonic()
    checkpoint_log(place_of(settings, table), clean=clean)
    took, left = time.monotonic() - began, recent(segment(table.uri), most=1, small_file_bytes=1).checkpoint_lag
    lag = lately.checkpoint_lag
    gain = Prediction("checkpoint", 0, commits_replayed_before=lag, commits_replayed_after=0)
    why = f"{lag:,} commits came after the newest checkpoint"
    mended = Mended(table.name, gain, why, now, took, {"commits_replayed_after": left})
    history.remember_mended(settings, mended, spark())
    return Checkpointed(table.name, lately.checkpoint_lag, done=True, cleaned=clean)

"""What a restore would do: versions, files, batches that are undone, messages that are read again. Changes nothing.

Doing it is `job`; which rows readers would see differently is `difference`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from deltalake.exceptions import DeltaError

from engagement_platform.errors import PlatformError
from engagement_platform.jobs import INGEST_ENGAGEMENTS, topic_of
from engagement_platform.microbatch.job import Stores
from engagement_platform.microbatch.model import JobState, Offsets
from engagement_platform.microbatch.others import OthersBatchUnfinished, in_the_way
from engagement_platform.microbatch.rewind import first_start
from engagement_platform.microbatch.stores import BatchRecord
from engagement_platform.mutation.job import APPLY_MUTATIONS
from engagement_platform.mutation.rematerialize import REMATERIALIZE_ALIASES
from engagement_platform.rollback.boundary import Boundary, Timeline, named
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.tables import log
from engagement_platform.tables.contract import Table
from engagement_platform.tables.engagement import (
    ALIAS,
    AMENDMENT,
    MAPPING,
    MUTATION_REQUEST,
    OPERATION,
    ORIGINAL,
    PENDING,
    SAID_NAME,
    SUPERSEDED,
    data_table,
)
from engagement_platform.tables.erased import is_erasure
from engagement_platform.tables.growth import TableSource
from engagement_platform.tables.restored import Moved, VersionGone, moved

RESTORE_TABLES = "restore-tables"
REWOUND = (APPLY_MUTATIONS, INGEST_ENGAGEMENTS)
"""Jobs whose offsets go with the tables."""

RestoreMode = Literal["replay", "drop", "only"]


class NotRestorable(PlatformError):
    """A table that is not taken back."""

    def __init__(self, table: str, known: Sequence[str]) -> None:
        super().__init__(
            f"{table!r} is no table that can be restored. Nothing was changed. Those that can: {', '.join(known)}. "
            "Notifications, quarantine and landed requests stay: readers are told of the reversal instead."
        )


class NoSuchVersion(PlatformError):
    """A version or a time that nothing is known of."""

    def __init__(self, table: str, asked: str, why: str) -> None:
        super().__init__(f"{table} cannot be restored to {asked}: {why}. Nothing was changed.")


class LaidOutOtherwise(PlatformError):
    """The table had another layout then, with which the jobs of these settings do not work."""

    def __init__(self, table: str, version: int, then: Sequence[str], now: Sequence[str]) -> None:
        self.table, self.version = table, version
        super().__init__(
            f"{table} was partitioned by ({', '.join(then)}) at version {version} and is by ({', '.join(now)}) now; "
            "going back would give it the old layout again, which the jobs of these settings refuse. Nothing was "
            f"changed. Set the old layout.scheme, `engagement-platform migrate {table}` to it, and restore then."
        )


class CannotReplay(PlatformError):
    """What came after the boundary cannot be read again."""

    def __init__(self, job: str, start: Offsets, end: Offsets, cause: PlatformError) -> None:
        self.job, self.start, self.end, self.cause = job, start, end, cause
        super().__init__(
            f"{job} could not read {shown(start)} to {shown(end)} again after the restore: {cause} No table was "
            "restored. With --drop the tables go back and what came since is given up."
        )


class ErasedSince(PlatformError):
    """Going back would bring back somebody who was erased."""

    def __init__(self, table: str, version: int, erased: int) -> None:
        self.table, self.version, self.erased = table, version, erased
        super().__init__(
            f"{table} cannot go back to version {version}: version {erased} erased somebody, who would be there again. "
            f"An erasure is final. Nothing was changed. Restore to version {erased} or later."
        )


@dataclass(frozen=True)
class Asked:
    """What somebody wants."""

    table: str
    to: int | datetime
    """A version of the table, or a time: the last batch that had finished by then."""
    mode: RestoreMode = "replay"
    reason: str | None = None
    by: str = ""
    """user@host"""


@dataclass(frozen=True)
class TableChange:
    """One table that goes back."""

    table: Table
    from_version: int
    to_version: int
    files: Moved


@dataclass(frozen=True)
class Offset:
    """A job whose offsets are not those of the boundary."""

    job: str
    boundary: Offsets
    now: Offsets
    records: int | None
    """Messages between them; None where nobody can say."""


@dataclass(frozen=True)
class Plan:
    """All that a restore would do."""

    asked: Asked
    boundary: str
    note: str | None
    """Where the boundary is not what was asked for: why."""
    changes: tuple[TableChange, ...]
    offsets: tuple[Offset, ...]
    undone: tuple[str, ...]
    """Batches whose rows go."""
    by_hand: tuple[str, ...]
    """Those among them that nobody does again by himself."""
    versions: Mapping[str, int]
    """All tables of the group as they are now."""
    since: Mapping[str, Offsets]
    """Job -> where the oldest record under its application id begins."""

    @property
    def target(self) -> Mapping[str, int]:
        """All tables of the group as they will be."""
        return {**self.versions, **{change.table.name: change.to_version for change in self.changes}}


def group(settings: Settings) -> tuple[Table, ...]:
    """The tables that are restored together: all that engagements and requests are settled into and from."""
    return (
        data_table(settings.layout.scheme), MAPPING, ALIAS, AMENDMENT, SAID_NAME, ORIGINAL, SUPERSEDED, OPERATION,
        PENDING,
    )  # fmt: skip


def parsed(to: str) -> int | datetime:
    """A version or a time from the command line; a time without a zone is UTC. Raises NoSuchVersion.

    >>> parsed("17"), parsed("2026-11-21T10:00")
    (17, datetime.datetime(2026, 11, 21, 10, 0, tzinfo=datetime.timezone.utc))
    """
    if to.isdecimal():
        return int(to)
    try:
        moment = datetime.fromisoformat(to)
    except ValueError:
        raise NoSuchVersion("A table", to, "that is neither a version nor a time such as 2026-11-21T10:00Z") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def shown(offsets: Offsets) -> str:
    """Offsets for people.

    >>> shown({"0": 12, "1": 7})
    '0:12 1:7'
    """
    return " ".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))


def plan(settings: Settings, stores: Stores, asked: Asked) -> Plan:
    """What `asked` comes to, from logs and stores; no Spark.

    Raises NotRestorable, NoSuchVersion, VersionGone, LaidOutOtherwise, CannotReplay, OthersBatchUnfinished (of this
    job's own, too).
    """
    tables = {table.name: table for table in group(settings)}
    if asked.table not in tables:
        raise NotRestorable(asked.table, list(tables))
    data = data_table(settings.layout.scheme)
    if others := in_the_way("", {data.name}, stores.checkpoints.unfinished()):
        raise OthersBatchUnfinished(RESTORE_TABLES, tables, others)
    versions = {name: found for name, t in tables.items() if (found := log.version(t.uri(settings.lake))) is not None}
    timeline = Timeline.of(_records(stores), data.name)
    place = _boundary(settings, timeline, tables[asked.table], asked, versions)
    changes = list(_changes(settings, timeline, place, asked, versions))
    offsets = () if asked.mode == "only" else tuple(_offsets(settings, stores, timeline, place.step, asked.mode))
    undone = () if asked.mode == "only" else tuple(map(named, timeline.undone(place.step)))
    again = (*REWOUND, REMATERIALIZE_ALIASES, RESTORE_TABLES)
    by_hand = [named(r) for r in timeline.undone(place.step) if r.manifest.job not in again]
    since = {
        o.job: begun
        for o in offsets
        if (begun := first_start(stores.checkpoints.history(o.job), stores.checkpoints.app_id(o.job))) is not None
    }
    return Plan(
        asked=asked,
        boundary=f"version {asked.to}" if asked.mode == "only" else timeline.name(place.step),
        note=_note(timeline, place, asked, changes, versions),
        changes=tuple(changes),
        offsets=offsets,
        undone=undone,
        by_hand=() if asked.mode == "only" else tuple(by_hand),
        versions=versions,
        since=since,
    )


def _records(stores: Stores) -> Iterator[BatchRecord]:
    for job in stores.checkpoints.jobs():
        yield from stores.checkpoints.history(job)


def _boundary(
    settings: Settings, timeline: Timeline, table: Table, asked: Asked, versions: Mapping[str, int]
) -> Boundary:
    """Where the tables go back to."""
    if table.name not in versions:
        raise NoSuchVersion(table.name, str(asked.to), "there is no such table yet")
    commits = log.markers(table.uri(settings.lake))
    if isinstance(asked.to, datetime):
        place = timeline.at(asked.to)
        if place is None:
            raise NoSuchVersion(table.name, f"{asked.to:%Y-%m-%d %H:%M:%S} UTC", "no batch is known to have ended then")
        return place
    if asked.to > versions[table.name]:
        raise NoSuchVersion(table.name, f"version {asked.to}", f"its newest is {versions[table.name]}")
    return Boundary(-1, asked.to) if asked.mode == "only" else timeline.at_version(asked.to, commits)


def _changes(
    settings: Settings, timeline: Timeline, place: Boundary, asked: Asked, versions: Mapping[str, int]
) -> Iterator[TableChange]:
    for table in group(settings):
        if table.name not in versions or (asked.mode == "only" and table.name != asked.table):
            continue
        uri, now = table.uri(settings.lake), versions[table.name]
        to = place.version if table.name == asked.table else None
        if to is None:
            to = timeline.version_at(place.step, log.markers(uri))
        if to is None or to == now:
            continue
        _refuse_other_layout(uri, table.name, to)
        _refuse_erased_since(uri, table.name, to)
        yield TableChange(table, now, to, moved(uri, table.name, now, to))


def _refuse_erased_since(uri: str, name: str, version: int) -> None:
    """Raise ErasedSince when an erasure took rows out after a version."""
    for number, marker in log.markers(uri):
        if number <= version:
            return
        if is_erasure(marker):
            raise ErasedSince(name, version, number)


def _refuse_other_layout(uri: str, name: str, version: int) -> None:
    """Raise LaidOutOtherwise, or VersionGone when the log no longer tells."""
    try:
        then = log.describe(uri, version)
    except DeltaError as error:
        raise VersionGone(name, version, f"its log no longer tells ({str(error).splitlines()[0][:200]})") from None
    now = log.describe(uri)
    if then is not None and now is not None and then.partitioned_by != now.partitioned_by:
        raise LaidOutOtherwise(name, version, then.partitioned_by, now.partitioned_by)


def _offsets(settings: Settings, stores: Stores, timeline: Timeline, step: int, mode: RestoreMode) -> Iterator[Offset]:
    """Jobs that have read past the boundary. Raises CannotReplay where that has to be read again and is not there."""
    for job in REWOUND:
        last, boundary = stores.checkpoints.latest(job), timeline.offsets_at(job, step)
        if last is None or boundary is None or last.manifest.end == boundary:
            continue
        assert last.state is JobState.SUCCEEDED, "the unfinished were refused"
        now = last.manifest.end
        source = (
            TableSource(MUTATION_REQUEST.uri(settings.lake), MUTATION_REQUEST)
            if job == APPLY_MUTATIONS
            else KafkaSource(topic_of(job, settings), settings.kafka)
        )
        if mode == "replay":
            try:
                source.check(
                    boundary, {partition: now.get(partition, offset) for partition, offset in boundary.items()}
                )
            except PlatformError as cause:
                raise CannotReplay(job, boundary, now, cause) from cause
        yield Offset(job, boundary, now, source.size(boundary, {**boundary, **now}))


def _note(
    timeline: Timeline, place: Boundary, asked: Asked, changes: Sequence[TableChange], versions: Mapping[str, int]
) -> str | None:
    if asked.mode == "only":
        return (
            f"Only {asked.table} goes back: tables and logs may contradict each other then, jobs go on where they are, "
            "and `engagement-platform verify --identity` tells what does not fit."
        )
    if place.within is None:
        return None
    to = next((change.to_version for change in changes if change.table.name == asked.table), versions[asked.table])
    return (
        f"Version {asked.to} of {asked.table} is in the middle of {named(timeline.steps[place.within])}: restoring to "
        f"{to}, {timeline.name(place.step)}."
    )

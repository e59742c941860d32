"""What a restore would do: versions, files, batches that are undone, messages that are read again. Changes nothing.

Doing it is `job`; which rows readers would see differently is `difference`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from engagement_platform.engine.forgotten_batches import forgotten
from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import JobState, Offsets, first_start
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished, blocking_batches
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.contract import OPENED, Table
from engagement_platform.lake.erased import is_erasure, is_erasure_of_players
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.restore import Moved, is_as_at, moved
from engagement_platform.maintenance.rollback.boundary import Boundary, Timeline
from engagement_platform.maintenance.rollback.groups import Group, RestoreRefused, group_of
from engagement_platform.pipelines.parts import announced
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource

RESTORE_TABLES = "restore-tables"

RestoreMode = Literal["replay", "drop"]


class CannotReplay(PlatformError):
    """What came after the boundary cannot be read again."""

    def __init__(self, job: str, start: Offsets, end: Offsets, cause: PlatformError) -> None:
        self.job, self.start, self.end, self.cause = job, start, end, cause
        super().__init__(
            f"{job} could not read {shown(start)} to {shown(end)} again after the restore: {cause} No table was "
            "restored. With --drop the tables go back and what came since is given up."
        )


@dataclass(frozen=True)
class Asked:
    """What is asked for."""

    table: str
    to: int | datetime
    """A version of the table, or a time: the last batch that had finished by then."""
    mode: RestoreMode = "replay"
    reason: str | None = None
    by: str = ""
    """user@host"""

    def as_json(self) -> dict[str, object]:
        """What is kept with the batch, beside who asked."""
        to = self.to.isoformat() if isinstance(self.to, datetime) else self.to
        return {"table": self.table, "to": to, "mode": self.mode, "reason": self.reason}


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
    rewind: tuple[Offsets, Offsets] | None
    """Where the record begins and ends by which the job is put back; None: it stays where it is."""
    records: int | None = None
    """Messages between them; None where nobody can say."""
    follows: bool = False
    """The job's offsets are those of a table: it is put back in every mode, and reads no messages."""


@dataclass(frozen=True)
class Plan:
    """All that a restore would do."""

    asked: Asked
    group: Group
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
    announced: int
    """The sequence up to which requests are announced."""

    @property
    def target(self) -> Mapping[str, int]:
        """All tables of the group as they will be."""
        return {**self.versions, **{change.table.name: change.to_version for change in self.changes}}

    def differing(self, lake: Lake) -> dict[str, int]:
        """inserted, updated, deleted: what readers would see differently. Reads it; changes nothing."""
        return self.group.seen(lake, self.versions, self.target, self.announced)[1]

    def lines(self, differing: Mapping[str, int] | None = None) -> Iterator[str]:
        """For people. differing: what readers see inserted, updated and deleted, where that was counted."""
        if self.note:
            yield self.note
        if not self.changes and not self.offsets:
            yield f"Nothing to restore: {self.asked.table} is there already."
            return
        yield f"All that follows goes back to {self.boundary}:"
        for change in self.changes:
            files, versions = change.files, f"version {change.from_version} to {change.to_version}"
            yield (
                f"  {change.table.name}: {versions}, {files.files_back:,} files ({files.bytes_back:,} bytes) "
                f"come back, {files.files_gone:,} ({files.bytes_gone:,} bytes) go"
            )
        if differing is not None:
            yield (
                f"Readers see {differing['inserted']:,} {self.group.rows} again, {differing['updated']:,} changed, and "
                f"{differing['deleted']:,} no longer."
            )
        for offset in self.offsets:
            if offset.follows:
                yield f"{offset.job}: goes on from {shown(offset.boundary)} instead of {shown(offset.now)}"
                continue
            what = "are read again" if self.asked.mode == "replay" else "are given up"
            count = self.group.unit if offset.records is None else f"{offset.records:,} {self.group.unit}"
            yield f"{offset.job}: {count} {what}, from {shown(offset.boundary)} to {shown(offset.now)}"
        if self.undone:
            yield f"Undone: {', '.join(self.undone)}"
        if self.by_hand:
            yield f"Not done again by itself, launch it by hand where it is still wanted: {', '.join(self.by_hand)}"

    def as_json(self, differing: Mapping[str, int] | None = None) -> dict[str, object]:
        """One flat object for machines and for the metadata of a run."""
        return {
            **self.asked.as_json(),
            "boundary": self.boundary,
            "note": self.note,
            "changes": [
                {
                    "table": change.table.name,
                    "from_version": change.from_version,
                    "to_version": change.to_version,
                    **vars(change.files),
                }
                for change in self.changes
            ],
            "offsets": [
                {"job": one.job, "boundary": dict(one.boundary), "now": dict(one.now), "records": one.records}
                for one in self.offsets
            ],
            "undone": list(self.undone),
            "by_hand": list(self.by_hand),
            **(differing or {}),
        }


def parsed(to: str) -> int | datetime:
    """A version or a time from the command line; a time without a zone is UTC. Raises RestoreRefused.

    >>> parsed("17"), parsed("2026-11-21T10:00")
    (17, datetime.datetime(2026, 11, 21, 10, 0, tzinfo=datetime.timezone.utc))
    """
    if to.isdecimal():
        return int(to)
    try:
        moment = datetime.fromisoformat(to)
    except ValueError:
        raise RestoreRefused("A table", f"{to} is neither a version nor a time such as 2026-11-21T10:00Z") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def shown(offsets: Offsets) -> str:
    """Offsets for people.

    >>> shown({"0": 12, "1": 7})
    '0:12 1:7'
    """
    return " ".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))


def plan(settings: Settings, stores: Stores, asked: Asked) -> Plan:
    """What `asked` comes to, from logs and stores; no Spark.

    Raises RestoreRefused, VersionGone, CannotReplay, OthersBatchUnfinished (of this job's own, too).
    """
    group = group_of(settings, asked.table)
    uris = {table.name: table.uri(settings.lake) for table in group.tables}
    if others := blocking_batches("", group.leased, stores.checkpoints.unfinished()):
        raise OthersBatchUnfinished(RESTORE_TABLES, {*uris, *group.leased}, others)
    versions = {name: found for name, uri in uris.items() if (found := log.version(uri)) is not None}
    records = [record for job in stores.checkpoints.jobs() for record in stores.checkpoints.history(job)]
    timeline = Timeline(records, *group.pinned, moving=group.moving)
    gone = _forgotten_through(stores, timeline)
    if gone is not None and isinstance(asked.to, datetime) and asked.to <= gone:
        raise _refused_as_forgotten(asked, gone)
    place, exact = _boundary(group, timeline, uris, asked, versions)
    if gone is not None and not timeline.ends_after(gone, place.step):
        raise _refused_as_forgotten(asked, gone)
    changes = []
    for table in group.tables:
        if table.name not in versions:
            continue
        uri, now = uris[table.name], versions[table.name]
        to = exact[table.name] if table.name in exact else timeline.version_at(place.step, log.markers(uri))
        if to is None or to == now or _is_there(settings, group, table, now, to):
            continue
        _refuse_erased_since(uri, table.name, to)
        files = moved(uri, table.name, now, to)
        _refuse_other_shape(uri, table, to)
        changes.append(TableChange(table, now, to, files))
    target = {**versions, **{change.table.name: change.to_version for change in changes}}
    offsets = (
        *_offsets(group, stores, timeline, place.step, asked),
        *_offsets_of_moves(settings, group, stores, target),
    )
    note = None
    if place.within is not None:
        note = (
            f"Version {asked.to} of {asked.table} is in the middle of {timeline.steps[place.within].manifest}: "
            f"restoring to {target[asked.table]}, {timeline.name(place.step)}."
        )
    undone = [record.manifest for record in timeline.steps[place.step + 1 :]]
    again = {*group.jobs, *group.again, RESTORE_TABLES}
    return Plan(
        asked=asked,
        group=group,
        boundary=timeline.name(place.step),
        note=note,
        changes=tuple(changes),
        offsets=offsets,
        undone=tuple(map(str, undone)),
        by_hand=tuple(str(manifest) for manifest in undone if manifest.job not in again),
        versions=versions,
        announced=announced(stores),
    )


def _boundary(
    group: Group, timeline: Timeline, uris: Mapping[str, str], asked: Asked, versions: Mapping[str, int]
) -> tuple[Boundary, Mapping[str, int]]:
    """Where the tables go back to, and tables for which not every version of the boundary will do."""
    table, to = asked.table, asked.to
    if table not in versions:
        raise RestoreRefused(table, "there is no such table yet")
    if isinstance(to, datetime):
        if (done := timeline.at(to)) is None:
            raise RestoreRefused(table, f"no batch is known to have ended by {to:%Y-%m-%d %H:%M:%S} UTC")
        return done, {}
    if to > versions[table]:
        raise RestoreRefused(table, f"its newest version is {versions[table]}, and not {to}")
    if (moving := group.moving) is not None and table == moving.target.name:
        # What was moved after this version has to be in the other table again, so that is what decides: its version
        # when that move began. Batches that the move took with it are not undone for that.
        source, next_one = moving.source.name, timeline.after(to, log.markers(uris[table]))
        began = None if next_one is None else next_one.manifest.table_versions.get(source)
        if began is not None and source in versions:
            place = timeline.at_version(began, log.markers(uris[source]))
            if place.version is not None:
                return place, {table: to, source: place.version}
    place = timeline.at_version(to, log.markers(uris[table]))
    return place, {} if place.version is None else {table: place.version}


def _forgotten_through(stores: Stores, timeline: Timeline) -> datetime | None:
    """When the last batch of these jobs ended that the stores have forgotten; None where there are none.

    To before that no table can be restored: how far jobs had read by then is not known, so they would go on elsewhere.
    """
    jobs = {step.manifest.job for step in timeline.steps}
    ends = (forgotten(stores.leases.engine, job).through for job in jobs)
    return max((end for end in ends if end is not None), default=None)


def _refused_as_forgotten(asked: Asked, through: datetime) -> RestoreRefused:
    return RestoreRefused(
        asked.table,
        f"batches that ended up to {through:%Y-%m-%d %H:%M:%S} UTC are forgotten (stores.keep_batches), and with them "
        "how far jobs had read by then. Restore to a later version or time",
    )


def _is_there(settings: Settings, group: Group, table: Table, now: int, to: int) -> bool:
    """Whether a table is as it was at a version, and so is how far batches are moved into it."""
    if not is_as_at(table.uri(settings.lake), table.name, now, to):
        return False
    wanted = group.mark(settings.lake, table, to)
    return wanted is None or wanted == group.mark(settings.lake, table, now)


def _refuse_erased_since(uri: str, name: str, version: int) -> None:
    """Raise RestoreRefused when an erasure took rows out after a version: it is final."""
    for number, marker in log.markers(uri):
        if number <= version:
            return
        if is_erasure(marker) or is_erasure_of_players(marker):
            raise RestoreRefused(
                f"Version {version} of {name}",
                f"version {number} is an erasure, and its subject would be there again. Restore to that or a later one",
            )


def _refuse_other_shape(uri: str, table: Table, version: int) -> None:
    """Raise RestoreRefused when no job could go on with a version, which the log still has."""
    then, now, name = log.describe(uri, version), log.describe(uri), table.name
    if then is None or now is None:
        return
    if then.partitioned_by != now.partitioned_by:
        raise RestoreRefused(
            f"Version {version} of {name}",
            f"it was partitioned by ({', '.join(then.partitioned_by)}), which jobs of these settings would refuse. Set "
            f"the old layout.scheme, `engagement-platform migrate {name}` to it, and restore then",
        )
    if lacks := [column for column in table.column_names if column not in then.columns]:
        raise RestoreRefused(
            f"Version {version} of {name}",
            f"it is from before the table got {', '.join(lacks)}. Restore to a later one, or take them out of the "
            "declaration before",
        )
    if then.properties.get(OPENED) == "true":
        raise RestoreRefused(
            f"Version {version} of {name}", "an erasure was in the midst of it. Restore to a later one"
        )


def _offsets(group: Group, stores: Stores, timeline: Timeline, step: int, asked: Asked) -> Iterator[Offset]:
    """Jobs that have read past the boundary. Raises CannotReplay where that has to be read again and is not there."""
    replay = asked.mode == "replay"
    for job in (*group.read, *group.follows):
        last, there = stores.checkpoints.latest(job), timeline.reached(job, step)
        if last is None or there is None:
            continue
        boundary, now, is_same = there.offsets, last.manifest.end, there.is_of(last.manifest.identity)
        if now == boundary and is_same:
            continue
        assert last.state is JobState.SUCCEEDED, "the unfinished were refused"
        if job in group.follows:
            yield Offset(job, boundary, now, (boundary, boundary), follows=True)
            continue
        records, rewind = None, None
        try:
            source = group.read[job]()
            if not is_same:
                raise PlatformError("The first are offsets of another topic, or cluster, than the last.")
            if replay:
                if isinstance(source, KafkaSource):
                    source.identify(there.identity)
                source.check(boundary, {p: now.get(p, offset) for p, offset in boundary.items()})
            records = source.size(boundary, {**boundary, **now})
        except PlatformError as cause:
            if replay:
                raise CannotReplay(job, boundary, now, cause) from cause
        if replay:
            begun = first_start(stores.checkpoints.history(job), last.manifest.app_id)
            assert begun is not None, "the last batch is one of these"
            rewind = (begun, boundary)
        elif job == group.verified:
            # Nothing is read again, but from here on tables no longer stand for what was read before.
            rewind = (now, now)
        yield Offset(job, boundary, now, rewind, records)


def _offsets_of_moves(settings: Settings, group: Group, stores: Stores, target: Mapping[str, int]) -> Iterator[Offset]:
    """The job that moves batches goes on from where the table says that it is."""
    if (moving := group.moving) is None or moving.target.name not in target:
        return
    last = stores.checkpoints.latest(moving.job)
    mark = group.mark(settings.lake, moving.target, target[moving.target.name])
    boundary = None if mark is None else {"batch": mark.version}
    if last is not None and boundary is not None and last.manifest.end != boundary:
        yield Offset(moving.job, boundary, last.manifest.end, (boundary, boundary), follows=True)

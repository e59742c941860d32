"""The places of an erasure in the lake: which tables, what is done to each, what is left, what goes when.

Tables of engagements and profiles are erased by one batch of `job`. Of all others it is enough to know their
`subject_columns`: nobody lands anything there meanwhile, and the same call does the rest after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.job import BatchFailed, Callbacks
from engagement_platform.erasing.job import Eraser, tables, versions
from engagement_platform.erasing.purge import purge_now
from engagement_platform.erasing.rewrites import PLACE, Rewrite, as_tombstones, may_be_of, refused_naming, rewrites
from engagement_platform.erasing.subject_lookup import SubjectIds, SubjectLookup, distinct
from engagement_platform.lake import log, scan
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.erased import rewrite
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.optimize import Place, checkpoint_log
from engagement_platform.lake.session import spark_session
from engagement_platform.maintenance.layout import files
from engagement_platform.pii.erasure import UNREADABLE, Erasable, Former, Subject, nobody_writes, once, reported
from engagement_platform.pii.tombstones import ANYWHERE, StoredTombstones, entity
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.pipelines.games.feed import Feed, shipped
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.pipelines.kafka_tables.tables import Stream
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.redrive import turn_of
from engagement_platform.settings import Settings

_LOG_RETENTION = timedelta(days=30)
"""Delta's default of delta.logRetentionDuration; delta-rs takes it for one that it cannot read, too."""
_SLACK = timedelta(days=2)
"""VACUUM, where `maintenance.nightly_vacuum` is on, and the cleaning of logs are daily jobs; one may fail."""
_OF_SPARK = (PySparkException, Py4JJavaError)
"""What it raises where a table is damaged, and where it was killed itself: damage is what `left` cannot read either."""
_LINE = ("source_object", "source_line")
"""Where a refused line of games came from."""


@dataclass
class Tables(Erasable):
    """Tables of the lake, and what former versions of them keep."""

    settings: Settings
    name: str

    def tables(self) -> list[Table]:
        """Those that are there."""
        raise NotImplementedError

    def near(self, is_near: Callable[[str | None], bool], game: str | None) -> Iterator[tuple[str, str]]:
        """(id, table) of the ids in subject columns, at most in this game, for which is_near says so.

        Of a damaged table none: its erasure says that it is damaged.
        """
        for table in (table for table in self.tables() if table.subject_columns):
            where: Mapping[str, Sequence[str]] = {"game_id": [game]} if game and "game_id" in table.column_names else {}
            with suppress(*UNREADABLE):
                for rows in scan.batches(_opened(self.settings, table), table.subject_columns, where):
                    for column in rows.columns:
                        # Ids may be numbers in a table of others.
                        ids = pc.unique(column).cast(pa.string()).to_pylist()
                        yield from ((id_, table.name) for id_ in filter(is_near, ids))

    def keeps(self) -> Mapping[Former, timedelta | str]:
        """As the slowest of the tables that can be read keeps files and entries of its log, with two days to spare."""
        found = {}
        for table in self.tables():
            with suppress(*UNREADABLE):
                if (described := log.describe(table.uri(self.settings.lake))) is not None:
                    found[table.name] = described.properties
        if not found:
            return {}
        kept = {name: files.retention(each) for name, each in found.items()}
        entries = [each.get("delta.logRetentionDuration") for each in found.values()]
        logs = [files.retention({files.RETENTION: text}) if text else None for text in entries]
        forever = ", ".join(name for name, each in kept.items() if each is None)
        never = f"{files.RETENTION} of {forever} is set to a length, without which VACUUM removes nothing"
        window = min(self.settings.maintenance.rollback_window, files.LONGEST_RETENTION)
        longest = max([window, *filter(None, kept.values())])
        return {
            Former.FILES: never if forever else longest + _SLACK,
            Former.LOG: max(_LOG_RETENTION if each is None else each for each in logs) + _SLACK,
        }


@dataclass
class SubjectTables(Tables):
    """Tables whose rows say by `subject_columns` whom they are about, and those of what was refused of them."""

    declared: Callable[[], Iterable[Table]]
    """Looked for when it is asked: batches make tables, too. One without subject_columns has refused records."""
    leased: tuple[str, ...]
    """Leases of all jobs that write these tables."""
    tombstone: str | None = None
    """Kind of the tombstone that keeps later records out; None: that of the keys does."""
    stays: list[str] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    """Tables of which `stays` speaks."""

    def tables(self) -> list[Table]:
        return [table for table in self.declared() if _is_there(self.settings.lake, table)]

    def erase(self, subject: Subject) -> int:
        """Tombstone, then rows and refused records that name the subject; how many. Log entries that expired go, too.

        A damaged table is in `stays`. Raises LeaseUnavailable, OthersBatchUnfinished (a batch that was begun may be
        about to write such rows), TableBusy; the same call does the rest.
        """
        with nobody_writes(self.settings, self.leased) as leases:
            if self.tombstone is not None:
                # Not before: the rest of a batch that is half done would take for a marker what it counted as a row.
                StoredTombstones(self.settings).put_up(self.tombstone, [(ANYWHERE, subject.id)])
            gone, there = 0, self.tables()
            if not there:
                return 0
            with spark_session(self.settings, "erase") as spark:
                lake = Lake(spark, self.settings)
                for table in there:
                    for lease in leases:
                        lease.check()
                    with self._reported(table, self.stays, _OF_SPARK):
                        what, rows = self._rewrite(table, subject)
                        # Also without a row: then it closes a table that a crash left open.
                        rewrite(lake, table, once(), on=what.on, gone=what.gone, changed=what.changed)
                        checkpoint_log(Place(table.name, lake.uri(table), lake.root), clean=True)
                        gone += rows
        return gone

    def left(self, subject: Subject) -> int:
        """How many rows and refused records name the subject; one more for a missing tombstone and a damaged table."""
        key, left, damage = (ANYWHERE, subject.id), 0, list[str]()
        if self.tombstone is not None:
            left = 1 - len(StoredTombstones(self.settings).erased(self.tombstone, {key}))
        for table in self.tables():
            with self._reported(table, damage):
                left += self._rewrite(table, subject)[1]
        self.stays = list(dict.fromkeys((*self.stays, *damage)))
        return left + len(damage)

    @contextmanager
    def _reported(self, table: Table, stays: list[str], unfinished: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        before = len(stays)
        with reported(table.name, stays, unfinished):
            yield
        self.damaged |= {table.name} if len(stays) > before else set()

    def _rewrite(self, table: Table, subject: Subject) -> tuple[Rewrite, int]:
        """What an erasure does to a table, and to how many rows."""
        found = _opened(self.settings, table)
        if table.subject_columns:
            same = {column: [subject.id] for column in table.subject_columns}
            if subject.game is not None:
                same["game_id"] = [subject.game]
            is_there = all(_can_have(found, column, subject.id) for column in table.subject_columns)
            rows = int(scan.find(found, [*same], same).num_rows) if is_there else 0
            return Rewrite(tuple(same), pa.table(same).slice(0, 1 if rows else 0)), rows
        place = PLACE if "key" in table.column_names else (*_LINE, "value")
        columns = (*place, *(name for name in ("key", "value") if name in table.column_names))
        batches = scan.batches(found, list(dict.fromkeys(columns)), {})
        # A line of which nobody can say of which game it is goes, whatever game was asked for.
        named = refused_naming(
            (row for batch in batches for row in batch.to_pylist()),
            [subject.id],
            lambda texts: subject.game is None or may_be_of(texts, "game_id", (subject.game,)),
        )
        if place == PLACE:
            return as_tombstones(table, named), len(named)
        return Rewrite(place, distinct(table_of(named, table, *place))), len(named)


def of_feed(settings: Settings, feed: Feed) -> SubjectTables:
    """All tables of a feed of games, also of types that are declared no longer; refused lines last.

    Nobody writes one of them without the lease of the quarantine.
    """
    types = {each.table.key: each.table for each in feed.types.values()}

    def found() -> Iterator[Table]:
        for key in (tuple(name.split("/")) for name in log.tables(settings.lake)):
            if key[0] == feed.group and key != feed.quarantine.key:
                yield from [types[key]] if key in types else _as_it_is(settings.lake, key)
        yield feed.quarantine

    return SubjectTables(settings, f"{feed.group}/*", found, (feed.quarantine.name,))


def _opened(settings: Settings, table: Table) -> DeltaTable:
    return log.open_version(table.uri(settings.lake))


def _can_have(found: DeltaTable, column: str, id_: str) -> bool:
    """Whether a column can have the id, just as it is: of numbers 042 is none, and p-42 cannot be compared."""
    kind = pa.schema(found.schema().to_arrow()).field(column).type
    try:
        return bool(pa.array([id_]).cast(kind).cast(pa.string())[0].as_py() == id_)
    except pa.ArrowInvalid:
        return False


def _is_there(root: str, table: Table) -> bool:
    """Also when its log is damaged, which is reported where its rows are looked for."""
    try:
        return log.version(table.uri(root)) is not None
    except UNREADABLE:
        return True


def _as_it_is(root: str, key: tuple[str, ...]) -> Iterator[Table]:
    """The table of a type that is declared no longer; none where it is not of players."""
    try:
        there = log.describe("/".join((root, *key)))
    except UNREADABLE:
        # The look for its rows, which comes next, reports the damage.
        yield Table(key, "", (), Mode.APPEND_ONLY, subject_columns=("player_id",))
        return
    if there is not None and {"player_id", "game_id"}.issubset(there.columns):
        columns = tuple(Column(name, kind, "") for name, kind in there.columns.items())
        yield Table(key, "", columns, Mode.APPEND_ONLY, tuple(there.partitioned_by), subject_columns=("player_id",))


def of_stream(settings: Settings, stream: Stream) -> SubjectTables:
    """The tables of a stream that says whom its records are about."""
    both = (stream.table, stream.quarantine)
    leased = (turn_of(stream.table), stream.name)
    return SubjectTables(settings, stream.name, lambda: both, leased, stream.tombstone)


def of_entity(settings: Settings, declared: Entity) -> SubjectTables:
    """Those of an entity, by its key. Its refused changes stand among those of engagements."""
    both = (declared.changeset, declared.base)
    leased = (turn_of(declared.changeset), *(table.name for table in both))
    return SubjectTables(settings, f"{declared.name}/*", lambda: both, leased, entity(declared.name))


def game_places(settings: Settings) -> list[SubjectTables]:
    """Tables of the feed that ships and of declared ones."""
    return [of_feed(settings, feed) for feed in (shipped(settings), *declarations(settings).feeds)]


def declared_places(settings: Settings) -> list[SubjectTables]:
    """Tables of streams that say whom records are about, and of all declared entities."""
    found = declarations(settings)
    streams = [of_stream(settings, stream) for stream in found.streams if stream.subject is not None]
    return [*streams, *(of_entity(settings, declared.entity) for declared in found.entities)]


@dataclass
class Run:
    """One erasure of the tables of engagements and profiles, done when the first of them is asked for it."""

    eraser: Eraser
    subject_ids: SubjectIds
    now: bool = False
    """Purge former versions at once, unless they are still read."""
    done: dict[str, int] | None = None
    purged: dict[str, list[str]] = field(default_factory=dict)
    """Table -> who keeps its former versions, as sentences."""
    stays: list[str] = field(default_factory=list)
    """That these tables could not be rewritten: one batch erases them all, and ends there."""

    def rows(self, subject_ref: str, table: Table) -> int:
        """How many rows of a table were removed or changed."""
        if self.done is None:
            self.done = {}
            with reported("Tables of engagements and profiles", self.stays, (*_OF_SPARK, BatchFailed)):
                self.done = self.eraser.run(subject_ref, self.subject_ids)
                if self.now:
                    settings, stores = self.eraser.settings, self.eraser.stores
                    self.purged = purge_now(settings, stores, utc_now())
        return self.done.get(table.name, 0)


@dataclass
class TablePlace(Tables):
    """One table of engagements or profiles, as receipts name it."""

    table: Table
    run: Run

    def tables(self) -> list[Table]:
        return [self.table] if _is_there(self.settings.lake, self.table) else []

    def erase(self, subject: Subject) -> int:
        """Remove the subject's rows from all tables, once; how many of this one."""
        rows, self.stays = self.run.rows(subject.ref, self.table), self.run.stays
        return rows

    def left(self, subject: Subject) -> int:  # noqa: ARG002
        """How many rows, by their keys, an erasure would still remove or change."""
        found = SubjectLookup(
            self.settings, self.run.subject_ids, StoredTombstones(self.settings), versions(self.settings)
        )
        return rewrites(self.settings)[self.table](found).keys

    def keeps(self) -> Mapping[Former, timedelta | str]:
        """As long as this table keeps files and log entries; no files once they are purged."""
        kept_by, kept = self.run.purged.get(self.name), super().keeps()
        return kept if kept_by is None or kept_by else {Former.LOG: kept[Former.LOG]}


@dataclass
class TombstonePlace(Erasable):
    """The tombstones of persons and profiles, for a verification."""

    settings: Settings
    subject_ids: SubjectIds
    name: str = "tombstones of persons and profiles"

    def erase(self, subject: Subject) -> int:  # noqa: ARG002
        """Put up with the tables."""
        return 0

    def left(self, subject: Subject) -> int:  # noqa: ARG002
        """How many are missing."""
        tombstones = StoredTombstones(self.settings)
        return sum(len(keys - tombstones.erased(kind, keys)) for kind, keys in self.subject_ids.keys.items())


def places(
    settings: Settings, subject_ids: SubjectIds, callbacks: Callbacks | None = None, *, now: bool = False
) -> list[TablePlace | TombstonePlace]:
    """Everything of engagements and profiles that an erasure reaches. Nothing is opened before it is asked."""
    run = Run(Eraser(settings, open_stores(settings), callbacks or Callbacks()), subject_ids, now)
    found = [TablePlace(settings, table.name, table, run) for table in tables(settings)]
    return [*found, TombstonePlace(settings, subject_ids)]

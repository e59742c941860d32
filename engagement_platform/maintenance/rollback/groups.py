"""Which tables go back together, and what goes with them: leases, jobs that are put back, what readers see.

Engagements, each entity, feed of games and declared stream say it here in one form, so that `plan` and `job` are the
same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from engagement_platform.engine.model import Transaction
from engagement_platform.engine.unfinished_batches import looked_up
from engagement_platform.errors import PlatformError
from engagement_platform.lake import live_files, log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MAPPING, MUTATION_REQUEST, NOTIFICATION, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.restore import RESTORE
from engagement_platform.maintenance.rollback.boundary import Moving
from engagement_platform.maintenance.rollback.difference import differences, entity_differences
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.games.feed import shipped as shipped_feed
from engagement_platform.pipelines.games.replay import LandedObjects
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, shipped_entity
from engagement_platform.pipelines.kafka_tables.tables import Stream
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.job import NUMBER
from engagement_platform.pipelines.profiles.snapshot import transaction, watermark_of
from engagement_platform.pipelines.redrive import turn_of
from engagement_platform.pipelines.snapshot import moved_through, watermark
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource

Versions = Mapping[str, int]
"""Table -> version."""

BEGIN = "to-begin"
"""The first commit of a restore, into layout/restore and without rows: RESTORE carries no transaction, and stores from
before it must be known as such. No table is called so."""
_KINDS = {"INSERT": "inserted", "UPDATE": "updated", "DELETE": "deleted"}

_MANY = 12
"""More tables of one group are not named one by one in a refusal."""


class RestoreRefused(PlatformError):
    """A restore that cannot be made, or not now."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what} cannot be restored: {why}. Nothing was changed.")


@dataclass(frozen=True)
class Group:
    """Tables that go back together."""

    rows: str
    """What readers see in them, in the plural."""
    tables: tuple[Table, ...]
    pinned: tuple[str, ...]
    """What each batch that writes them pins a version as; the first that is there counts. The versions of one name only
    grow: where they do not, the tables were made anew."""
    leased: tuple[str, ...]
    """Leases of all who write them. A restore pins these names too, so that nobody begins a batch before it is done."""
    read: Mapping[str, Callable[[], KafkaSource | LandedObjects]]
    """Jobs whose offsets go back with the tables, and where they read what came since."""
    differences: Callable[[Lake, Versions, Versions, int], DataFrame] | None
    """What readers see differently at two moments, with a column change_type: INSERT, UPDATE or DELETE; the number is
    the sequence up to which requests are announced. None: rows only come and go, and the log tells how many."""
    beside: tuple[Table, ...] = ()
    """Tables that the same batches write and that stay; their versions are pinned too."""
    unit: str = "messages"
    """What the jobs read, in the plural."""
    announced: bool = False
    """Whether notifications announce it."""
    verified: str | None = None
    """The job whose record says where tables and topic part when what came since is given up."""
    follows: tuple[str, ...] = ()
    """Jobs that read no messages, and whose offsets go back in every mode."""
    again: frozenset[str] = frozenset()
    """Other jobs that do again by themselves what is undone."""
    moving: Moving | None = None
    mark: Callable[[str, Table, int], Transaction | None] = field(default=lambda _root, _table, _version: None)
    """From a lake's root: what a version of a table says of an application that has to go back with its rows."""

    @property
    def written(self) -> dict[str, Table | None]:
        """Which table each commit of a restore writes. None: RESTORE carries no transaction."""
        announced = {"notification/append": NOTIFICATION if self.announced else None}
        taken_back = {f"restore/{table.key[-1]}": None for table in self.tables}
        return {f"restore/{BEGIN}": RESTORE, **taken_back, **announced, "audit/append": RESTORE}

    @property
    def jobs(self) -> tuple[str, ...]:
        """Jobs that are put back, or may be."""
        return (*self.read, *self.follows, *(() if self.moving is None else (self.moving.job,)))

    def seen(
        self, lake: Lake, before: Versions, after: Versions, announced: int
    ) -> tuple[DataFrame | None, dict[str, int]]:
        """What readers see differently: the rows of `differences`, and how many are inserted, updated and deleted."""
        if self.differences is None:
            there = [(lake.uri(t), after[t.name], before[t.name]) for t in self.tables if t.name in after]
            moved = [live_files.rows_in(uri, now) - live_files.rows_in(uri, then) for uri, now, then in there]
            found = {"INSERT": sum(n for n in moved if n > 0), "DELETE": -sum(n for n in moved if n < 0)}
            rows = None
        else:
            rows = self.differences(lake, before, after, announced).localCheckpoint()
            found = {row["change_type"]: row["count"] for row in rows.groupBy("change_type").count().collect()}
        return rows, {name: found.get(kind, 0) for kind, name in _KINDS.items()}


def engagements(settings: Settings) -> Group:
    """All that the view of engagements and names is made of, accepted requests included.

    Batches of requests overlap those of engagements. In the order in which they began, every prefix is whole: what a
    batch has pinned was published before it began. Changeset and requests go back before the base and its watermark:
    a base that has more than its watermark says shows the same rows, and one that has less does not.
    What was announced stays so: the restore announces what it takes back.
    """
    data = data_table(settings.layout.scheme)

    def mark(root: str, table: Table, version: int) -> Transaction | None:
        if table.name not in (data.name, MAPPING.name):
            return None
        now, then = (log.open_version(table.uri(root), at) for at in (None, version))
        has, had = watermark(now), max(watermark(then), 0)
        return moved_through(now, had) if had < has else None

    return Group(
        rows="engagements",
        tables=(CHANGESET, ALIAS, MUTATION_REQUEST, data, MAPPING),
        pinned=(data.name, MUTATION_REQUEST.name),
        leased=(data.name, CHANGESET.name, MAPPING.name, MUTATION_REQUEST.name, turn_of(MUTATION_REQUEST)),
        read={
            INGEST_ENGAGEMENTS: lambda: KafkaSource(settings.kafka.engagements_topic, settings.kafka),
            INGEST_MUTATION_REQUESTS: lambda: KafkaSource(settings.kafka.mutation_requests_topic, settings.kafka),
        },
        differences=differences,
        announced=True,
        verified=INGEST_ENGAGEMENTS,
        # Its offsets say up to when names are folded for good.
        follows=(REMATERIALIZE_ALIASES,),
        again=frozenset((APPLY_MUTATIONS,)),
        mark=mark,
    )


def of_entity(settings: Settings, entity: Entity, topic: str) -> Group:
    """Base and changeset of an entity. A rematerialization between two batches changes nothing that readers see."""
    changeset, base = entity.changeset, entity.base

    def mark(root: str, table: Table, version: int) -> Transaction | None:
        if table != base:
            return None
        found = log.open_version(base.uri(root), version)
        return transaction(entity, watermark_of(found, entity))

    return Group(
        rows=f"{entity.name}s",
        tables=(changeset, base),
        pinned=(looked_up(changeset.name), changeset.name),
        leased=(turn_of(changeset), changeset.name, base.name),
        read={entity.ingest_job: lambda: KafkaSource(topic, settings.kafka)},
        differences=lambda lake, before, after, _announced: entity_differences(lake, entity, before, after),
        moving=Moving(entity.rematerialize_job, changeset, base, entity.watermark, NUMBER),
        mark=mark,
    )


def of_feed(settings: Settings, feed: Feed) -> Group:
    """The tables of all types of a feed. Refused events stay; those refused again are recognized there."""
    return Group(
        rows=f"{feed.group} events",
        tables=tuple(declared.table for declared in feed.types.values()),
        pinned=(feed.quarantine.name,),
        leased=(feed.quarantine.name,),
        read={feed.job: lambda: LandedObjects(feed.job, feed.settings(settings))},
        differences=None,
        beside=(feed.quarantine,),
        unit="objects",
    )


def of_stream(settings: Settings, stream: Stream) -> Group:
    """A declared stream's table and its quarantine, which says of records of the same batches that they are not there,
    or by a redrive are."""
    return Group(
        rows=f"records of {stream.name}",
        tables=(stream.quarantine, stream.table),
        pinned=(stream.table.name,),
        leased=(turn_of(stream.table),),
        read={stream.job: lambda: KafkaSource(stream.topic, settings.kafka)},
        differences=None,
    )


def groups(settings: Settings) -> Iterator[Group]:
    """All of them; what ships comes first. Raises EventTypeRefused, DeclarationRefused."""
    yield engagements(settings)
    shipped = shipped_entity(settings)
    yield of_entity(settings, shipped.entity, shipped.topic)
    yield of_feed(settings, shipped_feed(settings))
    declared = declarations(settings)
    for entity in declared.entities:
        yield of_entity(settings, entity.entity, entity.topic)
    for feed in declared.feeds:
        yield of_feed(settings, feed)
    for stream in declared.streams:
        yield of_stream(settings, stream)


def group_of(settings: Settings, table: str) -> Group:
    """The one that a table is in. Raises RestoreRefused, EventTypeRefused, DeclarationRefused."""
    known = []
    for group in groups(settings):
        names = [each.name for each in group.tables]
        if table in names:
            return group
        known += names if len(names) <= _MANY else [f"the {len(names)} tables of {group.rows}"]
    raise RestoreRefused(
        repr(table),
        f"those that can are {', '.join(known)}; notifications and what was refused of engagements and games stay",
    )

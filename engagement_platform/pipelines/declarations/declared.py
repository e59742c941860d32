"""Reads the `defs.yaml` files in which people declare tables of their own, and refuses what cannot be.

What a file may hold is `kinds`. Dagster reads the same files for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from engagement_platform.errors import PlatformError
from engagement_platform.lake.contract import Table
from engagement_platform.pipelines.declarations.kinds import (
    KafkaTableDeclaration,
    MaintainedTableDeclaration,
    MergeOnReadEntityDeclaration,
    S3SqsTablesDeclaration,
    ViewAnalyticsDeclaration,
)
from engagement_platform.pipelines.games.event_type import Declared
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.games.registry import EventTypeRefused, what_is_wrong
from engagement_platform.pipelines.kafka_tables.tables import Stream
from engagement_platform.pipelines.page_views.job import HOPS, PAGE_VIEWS
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.settings import Settings

NAMESPACE = "engagement_platform"
FILE = "defs.yaml"
PLATFORM_JOBS = frozenset(
    {
        *("ingest-engagements", "ingest-mutation-requests", "ingest-profile-changes", "ingest-game-events"),
        *("rematerialize-aliases", "rematerialize-profile", "replay-game-events"),
    }
)
"""Names of the platform's own jobs that a declaration could come to."""


class DeclarationRefused(PlatformError):
    """A file declares something that cannot be."""

    def __init__(self, path: Path, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} cannot be used: {why}. Nothing was started.")


@dataclass(frozen=True)
class DeclaredEntity:
    """An entity and the topic of its changes."""

    topic: str
    entity: Entity


@dataclass(frozen=True)
class Declarations:
    """Everything that a folder declares."""

    streams: tuple[Stream, ...] = ()
    entities: tuple[DeclaredEntity, ...] = ()
    feeds: tuple[Feed, ...] = ()
    maintained: tuple[str, ...] = ()
    """Names of tables that others write."""
    page_views: bool = False
    """Whether the platform's page views run by a clock of the declaration."""

    @property
    def written(self) -> tuple[Table, ...]:
        """Tables that jobs of ours write."""
        return (
            *(table for stream in self.streams for table in (stream.table, stream.quarantine)),
            *(table for declared in self.entities for table in (declared.entity.changeset, declared.entity.base)),
            *(table for feed in self.feeds for table in feed.tables),
        )

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of all tables that are examined because they are declared; views are none, nor are page views."""
        return (*(table.name for table in self.written), *self.maintained)

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics that jobs read, each once."""
        every = (*(stream.topic for stream in self.streams), *(entity.topic for entity in self.entities))
        return tuple(dict.fromkeys(every))

    def feed(self, group: str) -> Feed:
        """The feed whose tables' names begin so. Raises PlatformError where there is none."""
        found = {feed.group: feed for feed in self.feeds}
        if group not in found:
            raise PlatformError(
                f"No tables of events are declared as {group}; declared are: {', '.join(found) or 'none'}. Nothing was "
                "read. Without --tables those that ship are meant, game/."
            )
        return found[group]


_KINDS: Mapping[str, type[Declared]] = {
    f"{NAMESPACE}.KafkaTable": KafkaTableDeclaration,
    f"{NAMESPACE}.MergeOnReadEntity": MergeOnReadEntityDeclaration,
    f"{NAMESPACE}.MaintainedTable": MaintainedTableDeclaration,
    f"{NAMESPACE}.S3SqsTables": S3SqsTablesDeclaration,
    f"{NAMESPACE}.ViewAnalytics": ViewAnalyticsDeclaration,
}


@dataclass(frozen=True)
class _Owner:
    """What one declaration owns, and nothing else may: two jobs on one table or checkpoint end in neither's rows."""

    name: str
    """For people: kind and file."""
    tables: tuple[str, ...]
    """Their names, views among them."""
    jobs: tuple[str, ...] = ()
    """Their names are those of their checkpoints, leases and transactions too."""
    queue_url: str | None = None


def declarations(settings: Settings) -> Declarations:
    """What the folder of the settings declares; nothing without one. Files of other components are passed by.

    Raises DeclarationRefused with the file and what is wrong in it, PlatformError when two own the same.
    """
    if settings.defs_folder is None:
        return Declarations()
    folder = settings.defs_folder.expanduser().absolute()
    if not folder.is_dir():
        raise DeclarationRefused(folder, "there is no such folder (setting defs_folder)")
    streams, entities, feeds, owners = list[Stream](), list[DeclaredEntity](), list[Feed](), list[_Owner]()
    maintained, page_views = list[str](), False
    for path, declared in _declared(folder):
        tables, jobs, queue_url = tuple[str, ...](), tuple[str, ...](), None
        match declared:
            case KafkaTableDeclaration(stream=stream):
                streams.append(stream)
                tables, jobs = (stream.table.name, stream.quarantine.name), (stream.job,)
            case MergeOnReadEntityDeclaration(topic=topic, entity=entity):
                entities.append(DeclaredEntity(topic, entity))
                tables = (entity.changeset.name, entity.base.name, entity.view)
                jobs = (entity.ingest_job, entity.rematerialize_job)
            case S3SqsTablesDeclaration():
                feed = _feed(path, declared)
                feeds.append(feed)
                tables, queue_url = tuple(table.name for table in feed.tables), declared.queue_url
                jobs = (feed.job, feed.replay_job)
            case MaintainedTableDeclaration(table=table):
                maintained.append(table)
                tables = (table,)
            case _:
                page_views = True
                tables, jobs = tuple(hop.table.name for hop in HOPS), (PAGE_VIEWS,)
        kind = type(declared).__name__.removesuffix("Declaration")
        owners.append(_Owner(f"{kind} in {path}", tables, jobs, queue_url))
    _refuse_clashes(owners, settings.games.queue_url)
    return Declarations(tuple(streams), tuple(entities), tuple(feeds), tuple(maintained), page_views)


def _refuse_clashes(owners: Sequence[_Owner], our_queue: str | None) -> None:
    """Raise PlatformError where two would own the same. our_queue: that of the platform's own game events."""
    # As Dagster writes jobs: there `shop/click_x` and `shop_click/x` come to one name.
    taken = {_in_dagster(job): "The platform" for job in PLATFORM_JOBS}
    if our_queue is not None:
        taken[our_queue] = "The platform's own game events"
    tables = dict[str, str]()
    for owner in owners:
        claims = {_in_dagster(job): f"run the job {_in_dagster(job)}, under one checkpoint" for job in owner.jobs}
        if owner.queue_url is not None:
            claims[owner.queue_url] = f"read the queue {owner.queue_url}, of which each would get a part"
        both = [(tables[other], what) for table in owner.tables for other, what in _overlapping(table, tables)]
        both += [(taken[name], what) for name, what in claims.items() if name in taken]
        for other, what in both:
            raise PlatformError(
                f"{other} and {owner.name} would both {what}. Nothing was started. Give one of them another name."
            )
        tables |= dict.fromkeys(owner.tables, owner.name)
        taken |= dict.fromkeys(claims, owner.name)


def _in_dagster(job: str) -> str:
    return job.replace("-", "_")


def _overlapping(table: str, tables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Tables that this one would be, or in whose folder one of the two would lie: VACUUM would remove its files."""
    if table in tables:
        yield table, f"own the table {table}"
    for other in tables:
        if table.startswith(f"{other}/") or other.startswith(f"{table}/"):
            yield other, f"own files of one folder, with the tables {other} and {table}"


def _feed(path: Path, declared: S3SqsTablesDeclaration) -> Feed:
    try:
        return declared.feed(path.parent)
    except (EventTypeRefused, ValueError) as error:
        raise DeclarationRefused(path, str(error)) from None


def _declared(folder: Path) -> Iterator[tuple[Path, Declared]]:
    for path in sorted(folder.rglob(FILE)):
        try:
            documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise DeclarationRefused(path, " ".join(str(error).split())) from None
        for document in documents:
            if isinstance(document, dict) and (kind := _KINDS.get(str(document.get("type")))) is not None:
                yield path, _read(path, kind, document)


def _read(path: Path, kind: type[Declared], document: Mapping[str, Any]) -> Declared:
    attributes = document.get("attributes") or {}
    if "{{" in str(attributes):
        raise DeclarationRefused(path, "templates ({{ … }}) are known to Dagster only; write the value itself")
    try:
        return kind.model_validate(attributes)
    except ValidationError as error:
        raise DeclarationRefused(path, what_is_wrong(error, "attributes")) from None

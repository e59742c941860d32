"""Reads the `defs.yaml` files in which somebody declares tables of their own, and refuses what cannot be.

What may stand there is `kinds`, who would own what `clashes`. Dagster reads the same files for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.declarations.clashes import (
    Owner,
    of_entity,
    of_feed,
    of_maintained,
    of_page_views,
    of_stream,
    refuse_clashes,
)
from engagement_platform.pipelines.declarations.kinds import (
    Declaration,
    KafkaTableDeclaration,
    MaintainedTableDeclaration,
    MergeOnReadEntityDeclaration,
    S3SqsTablesDeclaration,
    ViewAnalyticsDeclaration,
)
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.games.registry import EventTypeRefused
from engagement_platform.pipelines.kafka_tables.tables import Stream
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.settings import Settings

NAMESPACE = "engagement_platform"
FILE = "defs.yaml"


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


class NoSuchTables(PlatformError):
    """Tables of events were asked for by a name that nothing is declared by."""

    def __init__(self, name: str, there: tuple[str, ...]) -> None:
        super().__init__(
            f"No tables of events are declared as {name}; declared are: {', '.join(there) or 'none'}. Nothing was "
            "read. Without --tables those that ship are meant, game/."
        )


@dataclass(frozen=True)
class Declarations:
    """Everything that a folder declares."""

    streams: tuple[Stream, ...] = ()
    entities: tuple[DeclaredEntity, ...] = ()
    feeds: tuple[Feed, ...] = ()
    maintained: tuple[str, ...] = ()
    """Names of tables that others write."""
    page_views: bool = False
    """Whether somebody runs the platform's page views by a clock of their own."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of all tables that are examined because they are declared; views are none, nor are page views."""
        ours = (
            *(table for stream in self.streams for table in (stream.table, stream.quarantine)),
            *(table for declared in self.entities for table in (declared.entity.changeset, declared.entity.base)),
            *(table for feed in self.feeds for table in feed.tables),
        )
        return (*(table.name for table in ours), *self.maintained)

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics that jobs read, each once."""
        every = (*(stream.topic for stream in self.streams), *(entity.topic for entity in self.entities))
        return tuple(dict.fromkeys(every))

    def feed(self, group: str) -> Feed:
        """The feed whose tables' names begin so. Raises NoSuchTables."""
        found = {feed.group: feed for feed in self.feeds}
        if group not in found:
            raise NoSuchTables(group, tuple(found))
        return found[group]


_KINDS: Mapping[str, type[Declaration]] = {
    f"{NAMESPACE}.KafkaTable": KafkaTableDeclaration,
    f"{NAMESPACE}.MergeOnReadEntity": MergeOnReadEntityDeclaration,
    f"{NAMESPACE}.MaintainedTable": MaintainedTableDeclaration,
    f"{NAMESPACE}.S3SqsTables": S3SqsTablesDeclaration,
    f"{NAMESPACE}.ViewAnalytics": ViewAnalyticsDeclaration,
}


def declarations(settings: Settings) -> Declarations:
    """What the folder of the settings declares; nothing without one. Other components' files are passed by.

    Raises DeclarationRefused with the file and what is wrong in it, DeclarationsClash when two want the same.
    """
    if settings.defs_folder is None:
        return Declarations()
    folder = settings.defs_folder.expanduser().absolute()
    if not folder.is_dir():
        raise DeclarationRefused(folder, "there is no such folder (setting defs_folder)")
    streams, entities, feeds, owners = list[Stream](), list[DeclaredEntity](), list[Feed](), list[Owner]()
    maintained, page_views = list[str](), False
    for path, declared in _declared(folder):
        match declared:
            case KafkaTableDeclaration():
                streams.append(declared.stream)
                owners.append(of_stream(path, declared.stream))
            case MergeOnReadEntityDeclaration():
                entities.append(DeclaredEntity(declared.topic, declared.entity))
                owners.append(of_entity(path, declared.entity))
            case S3SqsTablesDeclaration():
                feeds.append(_feed(path, declared))
                owners.append(of_feed(path, feeds[-1]))
            case MaintainedTableDeclaration():
                maintained.append(declared.table)
                owners.append(of_maintained(path, declared.path))
            case ViewAnalyticsDeclaration():
                page_views = True
                owners.append(of_page_views(path))
    refuse_clashes(owners, settings.games.queue_url)
    return Declarations(tuple(streams), tuple(entities), tuple(feeds), tuple(maintained), page_views)


def _feed(path: Path, declared: S3SqsTablesDeclaration) -> Feed:
    try:
        return declared.feed(path.parent)
    except (EventTypeRefused, ValueError) as error:
        raise DeclarationRefused(path, str(error)) from None


def _declared(folder: Path) -> Iterator[tuple[Path, Declaration]]:
    for path in sorted(folder.rglob(FILE)):
        for document in _documents(path):
            kind = _KINDS.get(str(document.get("type")))
            if kind is not None:
                yield path, _read(path, kind, document)


def _documents(path: Path) -> list[dict[str, Any]]:
    try:
        found = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DeclarationRefused(path, " ".join(str(error).split())) from None
    return [document for document in found if isinstance(document, dict)]


def _read(path: Path, kind: type[Declaration], document: Mapping[str, Any]) -> Declaration:
    attributes = document.get("attributes") or {}
    if "{{" in str(attributes):
        raise DeclarationRefused(path, "templates ({{ … }}) are known to Dagster only; write the value itself")
    try:
        return kind.model_validate(attributes)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'attributes'}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors(include_input=False, include_url=False)
        )
        raise DeclarationRefused(path, wrong) from None

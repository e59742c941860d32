"""The `defs.yaml` files in which somebody declares tables of their own: what may stand there, and reading a folder.

The same classes are what Dagster's components are made of (`components`); here they are read without Dagster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engagement_platform.errors import PlatformError
from engagement_platform.merge_on_read.entity import Attribute, Entity
from engagement_platform.sections import UnknownUpdate
from engagement_platform.settings import Settings
from engagement_platform.sources.messages import ValueType
from engagement_platform.streams import stream as streams
from engagement_platform.streams.stream import Stream, clashing

NAMESPACE = "engagement_platform"
FILE = "defs.yaml"


class DeclarationRefused(PlatformError):
    """A file declares something that cannot be."""

    def __init__(self, path: Path, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} cannot be used: {why}. Nothing was started.")


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeclaredColumn(_Declared):
    """One column, where more is to be said of it than its type."""

    type: ValueType = Field(description="string, long, double, boolean, date or timestamp.")
    description: str = Field(default="", description="What it holds; shown in the UI.")
    required: bool = Field(default=False, description="Records without it go to quarantine.")


Columns = Annotated[
    dict[str, ValueType | DeclaredColumn],
    Field(
        min_length=1,
        description="Columns by name, each with its type (string, long, double, boolean, date or timestamp), or with "
        "`type`, `description` and `required`. A column is filled from the field of that name.",
    ),
]


def _column(name: str, said: ValueType | DeclaredColumn) -> streams.Field:
    if isinstance(said, str):
        return streams.Field(name, said, f"`{name}` of the message.")
    return streams.Field(name, said.type, said.description or f"`{name}` of the message.", said.required)


class KafkaTableDeclaration(_Declared):
    """A Kafka topic whose records land in an append-only Delta table, exactly once; others go to quarantine."""

    topic: str = Field(min_length=1, description="Kafka topic, on the broker of the settings.")
    table: str = Field(description="The table, such as shop/click; its quarantine is shop/click_quarantine.")
    columns: Columns
    key: str = Field(description="String column by which people look rows up; required in every record.")
    event_time: str | None = Field(
        default=None, description="Timestamp column that says when it happened; its UTC day is the column event_date."
    )
    partitioned_by: list[str] = Field(
        default_factory=list,
        description="Columns, event_date or ingestion_date. Default: event_date, or ingestion_date without event_time.",
    )
    unique: list[str] = Field(
        default_factory=list,
        description="Columns that name a record: the second of a name lands only once, and is refused when it says "
        "something else. Default: nothing, every record lands.",
    )
    description: str = Field(default="", description="What the table holds; shown in the UI.")

    @cached_property
    def stream(self) -> Stream:
        """As the platform knows it. Raises ValueError."""
        return Stream(
            topic=self.topic,
            key=tuple(self.table.split("/")),
            description=self.description or f"Records of the topic {self.topic} as they came.",
            fields=tuple(_column(name, said) for name, said in self.columns.items()),
            clustered_by=self.key,
            event_time=self.event_time,
            partitioned_by=tuple(self.partitioned_by),
            unique=tuple(self.unique),
        )

    @model_validator(mode="after")
    def _is_one(self) -> KafkaTableDeclaration:
        assert self.stream.table
        return self


class MaintainedTableDeclaration(_Declared):
    """A Delta table of the lake that somebody else writes: checked and maintained like the platform's own."""

    table: str = Field(description="The table, such as shop/order: its folder below the lake's root.")
    description: str = Field(default="", description="What the table holds; shown in the UI.")

    @property
    def path(self) -> tuple[str, ...]:
        """The name's parts."""
        return tuple(self.table.split("/"))

    @model_validator(mode="after")
    def _is_one(self) -> MaintainedTableDeclaration:
        if self.path[0] in streams.OURS or not all(self.path) or len(self.path) < 2:
            raise ValueError(f"the table {self.table!r} is not called like shop/order, or is the platform's own")
        return self


class MergeOnReadEntityDeclaration(_Declared):
    """A keyed thing whose columns arrive a few at a time: a changeset, a base, and a view over both."""

    topic: str = Field(min_length=1, description="Kafka topic of its changes, on the broker of the settings.")
    name: str = Field(pattern="^[a-z][a-z0-9_]{0,49}$", description="First part of its tables' names, such as account.")
    key: str = Field(description="Column that identifies it; a string.")
    version: str = Field(default="version", description="Column that orders the changes of one key; from 1 on.")
    columns: Columns
    partitioned_by: list[str] = Field(default_factory=list, description="Columns that partition the base.")
    unknown_update: UnknownUpdate = Field(
        default="upsert", description="An UPDATE of a key that nobody has inserted: upsert, ignore or quarantine."
    )
    inserts_are_new: bool = Field(
        default=False, description="Producers promise that an INSERT never names a key that is known."
    )

    @cached_property
    def entity(self) -> Entity:
        """As the platform knows it. Raises ValueError."""
        if self.name in streams.OURS:
            raise ValueError(f"{self.name} is among the platform's own, {', '.join(sorted(streams.OURS))}")
        columns = [_column(name, said) for name, said in self.columns.items()]
        return Entity(
            name=self.name,
            key=self.key,
            version=self.version,
            attributes=tuple(Attribute(column.name, column.type, column.comment) for column in columns),
            partitioned_by=tuple(self.partitioned_by),
            unknown_update=self.unknown_update,
            inserts_are_new=self.inserts_are_new,
        )

    @model_validator(mode="after")
    def _is_one(self) -> MergeOnReadEntityDeclaration:
        assert self.entity.base
        return self


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

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics that jobs read, each once."""
        every = (*(stream.topic for stream in self.streams), *(entity.topic for entity in self.entities))
        return tuple(dict.fromkeys(every))


_KINDS: Mapping[str, type[KafkaTableDeclaration | MergeOnReadEntityDeclaration | MaintainedTableDeclaration]] = {
    f"{NAMESPACE}.KafkaTable": KafkaTableDeclaration,
    f"{NAMESPACE}.MergeOnReadEntity": MergeOnReadEntityDeclaration,
    f"{NAMESPACE}.MaintainedTable": MaintainedTableDeclaration,
}


def declarations(settings: Settings) -> Declarations:
    """What the folder of the settings declares; nothing without one. Other components' files are passed by.

    Raises DeclarationRefused with the file and what is wrong in it.
    """
    if settings.defs_folder is None:
        return Declarations()
    folder = settings.defs_folder.expanduser().absolute()
    if not folder.is_dir():
        raise DeclarationRefused(folder, "there is no such folder (setting defs_folder)")
    streams_of, entities, last = list[Stream](), list[DeclaredEntity](), folder
    for path, declared in _declared(folder):
        last = path
        if isinstance(declared, KafkaTableDeclaration):
            streams_of.append(declared.stream)
        elif isinstance(declared, MergeOnReadEntityDeclaration):
            entities.append(DeclaredEntity(declared.topic, declared.entity))
    if twice := clashing(streams_of):
        raise DeclarationRefused(last, f"the table {twice[0]} is declared twice")
    names = [declared.entity.name for declared in entities]
    if again := {name for name in names if names.count(name) > 1}:
        raise DeclarationRefused(last, f"the entity {min(again)} is declared twice")
    return Declarations(tuple(streams_of), tuple(entities))


def _declared(folder: Path) -> Iterator[tuple[Path, BaseModel]]:
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


def _read(path: Path, kind: type[_Declared], document: Mapping[str, Any]) -> BaseModel:
    attributes = document.get("attributes")
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

"""What may stand in a `defs.yaml` file, kind by kind: attributes of a component, and what the platform makes of them.

The same classes are what Dagster's components are made of (`defs.components`). Reading files is `declared`.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from engagement_platform.pipelines.games.event_type import Cleaning, Declared, EventType, FieldType, Partitioning
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.games.registry import read_folder, what_is_wrong
from engagement_platform.pipelines.kafka_tables import tables as streams
from engagement_platform.pipelines.kafka_tables.tables import Stream
from engagement_platform.pipelines.profiles.entity import Attribute, Entity
from engagement_platform.settings import UnknownUpdate
from engagement_platform.sources import column_types
from engagement_platform.sources.messages import ValueType


class DeclaredColumn(Declared):
    """One column of an entity, where it has more than a type. None is required: a change has some columns only."""

    type: ValueType = Field(description="string, long, double, boolean, date or timestamp.")
    description: str = Field(default="", description="What it holds; shown in the UI.")


Columns = Annotated[
    dict[str, ValueType | DeclaredColumn],
    Field(
        min_length=1,
        description="Columns by name, each with its type (string, long, double, boolean, date or timestamp), or with "
        "`type` and `description`. A column is filled from the field of that name.",
    ),
]


class StreamColumn(Declared):
    """One column of a Kafka table, where it has more than a type."""

    type: str = Field(description=f"{column_types.KINDS}.")
    description: str = Field(default="", description="What it holds; shown in the UI.")
    required: bool = Field(default=False, description="Records without it go to quarantine.")


StreamColumns = Annotated[
    dict[str, str | StreamColumn],
    Field(
        min_length=1,
        description=f"Columns by name, each with its type ({column_types.KINDS}), or with `type`, `description` and "
        "`required`. A column is filled from the field of that name; what is not required may be null or missing, and "
        "so may everything within a nested type.",
    ),
]


def _comment(name: str) -> str:
    return f"`{name}` of the message."


def _column(name: str, given: str | StreamColumn) -> streams.Field:
    column = StreamColumn(type=given) if isinstance(given, str) else given
    try:
        kind = column_types.checked(column.type)
    except ValueError as error:
        raise ValueError(f"columns.{name}: {error}") from None
    return streams.Field(name, kind, column.description or _comment(name), column.required)


class KafkaTableDeclaration(Declared):
    """A Kafka topic whose records land in an append-only Delta table, exactly once; others go to quarantine."""

    topic: str = Field(min_length=1, description="Kafka topic, on the broker of the settings.")
    table: str = Field(description="The table, such as shop/click; its quarantine is shop/click_quarantine.")
    columns: StreamColumns
    key: str = Field(description="String column by which people look rows up; required in every record.")
    event_time: str | None = Field(
        default=None, description="Timestamp column that says when it happened; its UTC day is the column event_date."
    )
    partitioned_by: list[str] = Field(
        default_factory=list,
        description="Columns but the subject, event_date or ingestion_date. Default: event_date, or ingestion_date "
        "without event_time.",
    )
    unique: list[str] = Field(
        default_factory=list,
        description="Columns of plain types that name a record: the second of a name lands only once, and is refused "
        "when it says something else. Default: nothing, every record lands.",
    )
    subject: str | None = Field(
        default=None,
        description="String column with the id of the person a record is about: `erase` takes the person's records "
        "out, and later ones become markers. Default: an erasure does not look into the table, and says so.",
    )
    description: str = Field(default="", description="What the table holds; shown in the UI.")

    @cached_property
    def stream(self) -> Stream:
        """As the platform knows it. Raises ValueError."""
        return Stream(
            topic=self.topic,
            key=tuple(self.table.split("/")),
            description=self.description or f"Records of the topic {self.topic} as they came.",
            fields=tuple(_column(name, given) for name, given in self.columns.items()),
            clustered_by=self.key,
            event_time=self.event_time,
            partitioned_by=tuple(self.partitioned_by),
            unique=tuple(self.unique),
            subject=self.subject,
        )

    @model_validator(mode="after")
    def _is_one(self) -> KafkaTableDeclaration:
        assert self.stream.table
        return self


class MaintainedTableDeclaration(Declared):
    """A Delta table of the lake that another program writes: checked and maintained like the platform's own."""

    table: str = Field(description="The table, such as shop/order: its folder below the lake's root.")
    description: str = Field(default="", description="What the table holds; shown in the UI.")

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.table.split("/"))

    @model_validator(mode="after")
    def _is_one(self) -> MaintainedTableDeclaration:
        if self.path[0] in streams.OURS or len(self.path) < 2 or {"", ".", ".."} & {*self.path}:
            raise ValueError(f"the table {self.table!r} is not called like shop/order, or is the platform's own")
        return self


class MergeOnReadEntityDeclaration(Declared):
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
        columns = {n: DeclaredColumn(type=c) if isinstance(c, str) else c for n, c in self.columns.items()}
        attributes = (Attribute(name, of.type, of.description or _comment(name)) for name, of in columns.items())
        return Entity(
            name=self.name,
            key=self.key,
            version=self.version,
            attributes=tuple(attributes),
            partitioned_by=tuple(self.partitioned_by),
            unknown_update=self.unknown_update,
            inserts_are_new=self.inserts_are_new,
        )

    @model_validator(mode="after")
    def _is_one(self) -> MergeOnReadEntityDeclaration:
        assert self.entity.base
        return self


class DeclaredField(Declared):
    """One field of an event, where it has more than a type."""

    type: FieldType = Field(description="string, long, double, boolean, date, timestamp or array<string>.")
    comment: str = Field(default="", description="What it holds; shown in the UI.")
    required: bool = Field(default=False, description="Events without it go to quarantine.")
    clean: list[Cleaning] = Field(
        default_factory=list,
        description="What is done to a text first: trim, lower, upper, empty_is_null, in this order.",
    )
    one_of: list[str] = Field(default_factory=list, description="Values that are allowed. Default: all.")
    at_least: float | None = Field(default=None, description="Least number that is allowed.")
    at_most: float | None = Field(default=None, description="Greatest number that is allowed.")


class DeclaredType(Declared):
    """One type of event, and by that one table."""

    description: str = Field(description="What the table holds; shown in the UI.")
    fields: dict[str, FieldType | DeclaredField] = Field(
        description="Fields of the event by name, beside those that every event has; each with its type, or with "
        "`type`, `comment`, `required`, `clean`, `one_of`, `at_least`, `at_most`."
    )
    pii: list[str] = Field(default_factory=list, description="JSON pointers to personal data, which is refused.")
    player: Literal["required", "optional"] = Field(default="required", description="Whether events have a player_id.")
    partitioned_by: list[Partitioning] = Field(
        default=["event_date"], description="event_date, and game_id where there are many games."
    )


class S3SqsTablesDeclaration(Declared):
    """Objects that S3 announces in a queue, whose events land in an append-only Delta table for each type."""

    name: str = Field(pattern="^[a-z][a-z0-9_]{0,49}$", description="First part of its tables' names, such as arcade.")
    queue_url: str = Field(
        min_length=1, description="SQS queue in which S3 announces new objects; nobody else may read it."
    )
    bucket: str = Field(min_length=1, description="Bucket of the objects; others that are announced are refused.")
    prefix: str = Field(
        default="events/",
        description="Keys begin so, and go on with the hour of arrival, YYYY/MM/DD/HH/, in UTC; replays list by it.",
    )
    types: dict[str, DeclaredType] = Field(
        default_factory=dict, description="Types of events by name, each a table: its description and its fields."
    )
    types_folder: str | None = Field(
        default=None, description="Folder of more types, one TOML file each; beside this file unless it is absolute."
    )

    def feed(self, beside: Path) -> Feed:
        """As the platform knows it. beside: the folder of the file. Raises ValueError, EventTypeRefused."""
        found = {name: _event_type(self.name, name, of) for name, of in self.types.items()}
        if self.types_folder is not None:
            more = read_folder(beside / Path(self.types_folder).expanduser(), "types_folder", self.name)
            if twice := sorted(found.keys() & more.keys()):
                raise ValueError(f"{', '.join(twice)} is declared in types and in types_folder")
            found |= more
        if not found:
            raise ValueError(f"{self.name} has no types of events")
        own = {"queue_url": self.queue_url, "bucket": self.bucket, "prefix": self.prefix}
        return Feed(self.name, dict(sorted(found.items())), own)

    @model_validator(mode="after")
    def _is_one(self) -> S3SqsTablesDeclaration:
        if self.name in streams.OURS:
            raise ValueError(f"{self.name} is among the platform's own, {', '.join(sorted(streams.OURS))}")
        if not self.types and self.types_folder is None:
            raise ValueError(f"{self.name} has no types of events: say some under types, or a types_folder")
        assert all(_event_type(self.name, name, of).table for name, of in self.types.items())
        return self


def _event_type(group: str, name: str, declared: DeclaredType) -> EventType:
    """Raises ValueError with what is wrong, as for a file of its own."""
    fields = {field: _event_field(field, one) for field, one in declared.fields.items()}
    try:
        return EventType.model_validate({**declared.model_dump(), "name": name, "group": group, "fields": fields})
    except ValidationError as error:
        raise ValueError(f"the type {name}: {what_is_wrong(error)}") from None


def _event_field(name: str, given: FieldType | DeclaredField) -> dict[str, object]:
    comment = f"`{name}` of the event."
    if isinstance(given, str):
        return {"type": given, "comment": comment}
    return {**given.model_dump(), "comment": given.comment or comment}


class ViewAnalyticsDeclaration(Declared):
    """Page views, sessions of them, and days of those."""

    cron: str = Field(default="* * * * *", description="How often the hops are run.")

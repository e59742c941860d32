"""What a type of game event is: its fields, how they are cleaned, what in it is personal, and the table it fills.

Declarations only. Those that ship are read by `registry`; turning a line into a row is `decoding`.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engagement_platform.lake.contract import Column, Mode, Table

GROUP = "game"
"""First part of the tables' names, such as `game/purchase`."""

FieldType = Literal["string", "long", "double", "boolean", "date", "timestamp", "array<string>"]
Cleaning = Literal["trim", "lower", "upper", "empty_is_null"]
Partitioning = Literal["event_date", "game_id"]

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
"""Also a folder, a column, an asset and a process."""
Pointer = Annotated[str, Field(pattern=r"^(/([^~/]|~[01])+)+$")]
"""RFC 6901, in which `*` stands for every element of a list and every key of an object."""

_TEXTS = frozenset({"string", "array<string>"})
_NUMBERS = frozenset({"long", "double"})


class Declared(BaseModel):
    """A part of a declaration; a name that nobody knows is refused, since it is most likely a typing error."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))


class EventField(Declared):
    """One field of an event, at its top level, and one column."""

    type: FieldType
    comment: Annotated[str, Field(min_length=1)]
    required: bool = False
    clean: tuple[Cleaning, ...] = ()
    """In this order, before anything is checked; of texts only."""
    one_of: tuple[str, ...] = ()
    """The values that are allowed, after cleaning; none: all are."""
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _fits_its_type(self) -> EventField:
        if (self.clean or self.one_of) and self.type not in _TEXTS:
            raise ValueError(f"clean and one_of are for texts, not for {self.type}")
        if (self.at_least is not None or self.at_most is not None) and self.type not in _NUMBERS:
            raise ValueError(f"at_least and at_most are for numbers, not for {self.type}")
        return self


OPTIONAL = {
    "session_id": EventField(type="string", clean=("trim", "empty_is_null"), comment="Session of the player."),
    "platform": EventField(
        type="string", clean=("trim", "lower"), comment="Such as ios, android or web; in lower case."
    ),
    "app_version": EventField(type="string", clean=("trim",), comment="Version of the game."),
    "country": EventField(
        type="string", clean=("trim", "upper", "empty_is_null"), comment="ISO 3166 code of the country; in upper case."
    ),
}
"""Fields that an event of any type may have."""

ENVELOPE = (
    Column("event_date", "date", "UTC day of event_ts."),
    Column("event_ts", "timestamp", "When it happened, UTC."),
    Column("game_id", "string", "Game that sent it."),
    Column("player_id", "string", "Player, by a pseudonym; personal data is kept apart."),
    Column("event_id", "string", "Drawn by the sender; one that comes again is dropped."),
    *(Column(name, field.type, field.comment) for name, field in OPTIONAL.items()),
)
"""Columns of every table of events, before its own; statistics cover them."""

ORIGIN = (
    Column("source_object", "string", "Object that the event came in."),
    Column("source_line", "long", "Line in it, from 1."),
    Column("ingestion_ts", "timestamp", "When the batch was planned, UTC; the same for all its rows."),
    Column("batch_id", "long", "Batch that wrote the row."),
)
"""Columns of every table of events, after its own."""

_TAKEN = frozenset(column.name for column in (*ENVELOPE, *ORIGIN)) | {"event_type"}


class EventType(Declared):
    """One type of event and, by that, one table."""

    name: Name
    group: Name = GROUP
    """First part of its table's name; of the feed that it comes through, and so nothing that a file of its own says."""
    description: Annotated[str, Field(min_length=1)]
    fields: dict[Name, EventField]
    pii: tuple[Pointer, ...] = ()
    """Personal data, which the ingest server takes out before: an event that has any all the same is refused."""
    player: Literal["required", "optional"] = "required"
    partitioned_by: tuple[Partitioning, ...] = ("event_date",)

    @model_validator(mode="after")
    def _names_are_free(self) -> EventType:
        if self.name == QUARANTINE_NAME:
            raise ValueError(f"{self.group}/{self.name} is the table of refused events")
        if taken := sorted(_TAKEN & self.fields.keys()):
            raise ValueError(f"every event has the columns {', '.join(taken)} already")
        if personal := sorted({pointer[1:] for pointer in self.pii} & self.fields.keys()):
            raise ValueError(f"{', '.join(personal)} cannot be personal data and a column")
        if "event_date" not in self.partitioned_by:
            raise ValueError("tables of events are partitioned by event_date, and by game_id if there are many games")
        return self

    @cached_property
    def table(self) -> Table:
        own = (Column(name, field.type, field.comment) for name, field in self.fields.items())
        return Table(
            key=(self.group, self.name),
            description=self.description,
            mode=Mode.APPEND_ONLY,
            partitioned_by=self.partitioned_by,
            subject_columns=("player_id",),
            columns=(*ENVELOPE, *own, *ORIGIN),
        )


QUARANTINE_NAME = "quarantine"


@cache
def quarantine_of(group: str) -> Table:
    return Table(
        key=(group, QUARANTINE_NAME),
        description="Every refused event, whole, with its reason and where it came from.",
        mode=Mode.APPEND_ONLY,
        partitioned_by=("ingestion_date",),
        columns=(
            Column("source_object", "string", "Object that the line is in."),
            Column("source_line", "long", "Line in it, from 1."),
            Column("event_type", "string", "What it calls itself, where that could be read."),
            Column("value", "binary", "The line, as it came; null where it holds personal data."),
            Column("reason_code", "string", "Stable code of the rule that was broken."),
            Column("reason", "string", "The same as a sentence."),
            Column("job_name", "string", "Job that refused it."),
            Column("batch_id", "long", "Batch that wrote the row."),
            Column("ingestion_ts", "timestamp", "When the batch was planned, UTC; the same for all its rows."),
            Column("ingestion_date", "date", "UTC day of ingestion_ts."),
        ),
    )


QUARANTINE = quarantine_of(GROUP)

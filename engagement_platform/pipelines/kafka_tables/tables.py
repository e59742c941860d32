"""What a declared stream is: a topic, the table its records land in, and the table of those that were refused.

Declarations only: filling the tables is `job`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from engagement_platform.lake.contract import PLAIN_NAME, Column, Mode, Table, refuse_partitions_of_subjects
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.sources.column_types import split
from engagement_platform.sources.messages import EVENT_DATE, RecordShape

OURS = frozenset({"engagement", "profile", "game", "import", "layout", "perftest", "pii", "view"})
"""First parts of names under which the platform keeps tables of its own."""

INGESTION_DATE = "ingestion_date"

_COORDINATES = QUARANTINE.columns[:3]
_STAMPS = (
    *_COORDINATES,
    Column("ingestion_ts", "timestamp", "When the batch was planned, UTC."),
    Column(INGESTION_DATE, "date", "UTC day of ingestion_ts."),
    Column("batch_id", "long", "Batch that wrote the row."),
)
_DAY = Column(EVENT_DATE, "date", "UTC day of the event time; what data skipping works on.")
# Columns that tables, decoding or writing add.
_RESERVED = frozenset(
    {
        *(column.name for column in (*_STAMPS, *QUARANTINE.columns, _DAY)),
        *("produced_ts", "value_bytes", "unknown_fields", "verdict"),
    }
)
_IN_PARTITIONS = frozenset({"string", "long", "boolean", "date"})
"""Types of columns that may partition: values that make folder names, and few of them."""


@dataclass(frozen=True)
class Field:
    """One column of a stream, and the field of the message that it comes from; both have one name."""

    name: str
    type: str
    """As `sources.column_types` has it."""
    comment: str
    required: bool = False


@dataclass(frozen=True)
class Stream:
    """A topic that lands in an append-only table. Raises ValueError where the parts do not fit."""

    topic: str
    key: tuple[str, ...]
    """Path of the table below the lake's root, such as ("shop", "click")."""
    description: str
    fields: tuple[Field, ...]
    clustered_by: str
    """An id that people look rows up by."""
    event_time: str | None = None
    partitioned_by: tuple[str, ...] = ()
    """Columns, `event_date` or `ingestion_date`. Default: the first of these two that there is."""
    unique: tuple[str, ...] = ()
    """Columns whose values name a record. A second record of the same name is a known duplicate when it says the same,
    and is refused when not. Where the table is partitioned by `event_date`, a name is unique within its day."""
    subject: str | None = None
    """Column with the id of the person a record is about, by which an erasure finds it."""

    def __post_init__(self) -> None:
        if len(self.key) < 2 or not all(map(PLAIN_NAME.fullmatch, self.key)):
            raise ValueError(
                f"the table {self.name!r} is not called like shop/click: small letters, digits and _, parts separated "
                "by /"
            )
        if self.key[0] in OURS:
            raise ValueError(f"the table {self.name} is among the platform's own, {', '.join(sorted(OURS))}")
        names = [field.name for field in self.fields]
        self._refuse_names(names)
        self._refuse_uses(names)
        if not set(self._partitions) <= {*names, EVENT_DATE, INGESTION_DATE}:
            raise ValueError(f"{self.name} has no columns {', '.join(self._partitions)} to be partitioned by")
        refuse_partitions_of_subjects(self.name, self.subject, self._partitions)
        if EVENT_DATE in self._partitions and self.event_time is None:
            raise ValueError(f"{self.name} is partitioned by {EVENT_DATE}, which needs an event_time")
        wrong = [f.name for f in self.fields if f.name in self._partitions and f.type not in _IN_PARTITIONS]
        if wrong:
            raise ValueError(f"{self.name} cannot be partitioned by {', '.join(wrong)}; a day is {EVENT_DATE}")

    def _refuse_names(self, names: Sequence[str]) -> None:
        if bad := [name for name in names if not PLAIN_NAME.fullmatch(name)]:
            raise ValueError(f"{self.name} has columns that are not called like page_views: {', '.join(bad)}")
        if clash := sorted({name for name in names if names.count(name) > 1 or name in _RESERVED}):
            raise ValueError(f"{self.name} cannot have columns called {', '.join(clash)}")

    def _refuse_uses(self, names: Sequence[str]) -> None:
        types = {field.name: field.type for field in self.fields}
        for what, used in (("key", [self.clustered_by]), ("unique", self.unique)):
            if unknown := [name for name in used if name not in names]:
                raise ValueError(f"{self.name} has no columns {', '.join(unknown)}, named by {what}")
        if nested := [name for name in self.unique if split(types[name])[0] in ("array", "map", "struct")]:
            raise ValueError(f"{', '.join(nested)} of {self.name} is nested, and unique needs plain values")
        if self.subject is not None and types.get(self.subject) != "string":
            raise ValueError(f"the subject of {self.name} is {self.subject}, which is no string column of it")
        if self.subject is not None and types.get("organization_id", "string") != "string":
            raise ValueError(f"{self.name} has a subject, and an organization_id that is no string")
        if types[self.clustered_by] != "string":
            raise ValueError(f"the key of {self.name} is {self.clustered_by}, which is no string")
        if self.event_time is not None and types.get(self.event_time) != "timestamp":
            raise ValueError(f"the event_time of {self.name} is {self.event_time}, which is no timestamp column of it")

    @property
    def name(self) -> str:
        """The table's name, such as `shop/click`."""
        return "/".join(self.key)

    @property
    def words(self) -> str:
        """The name as Dagster takes it, such as `shop_click`."""
        return "_".join(self.key)

    @property
    def job(self) -> str:
        """Name of the job that fills the table, such as `ingest-shop-click`."""
        return f"ingest-{'-'.join(self.key)}"

    @property
    def tombstone(self) -> str:
        """Kind of the tombstones of those who are erased from it."""
        return f"stream/{self.name}"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def declared(self) -> tuple[str, ...]:
        """What a record says: the declared columns, after the day of the event time where there is one."""
        return (*((EVENT_DATE,) if self.event_time else ()), *self.columns)

    @property
    def named_by(self) -> tuple[str, ...]:
        """Columns by which a record is found again; without `unique` it is its place on the topic."""
        day = (EVENT_DATE,) if EVENT_DATE in self._partitions else ()
        return (*(self.unique or (column.name for column in _COORDINATES)), *day)

    @property
    def _partitions(self) -> tuple[str, ...]:
        return self.partitioned_by or (EVENT_DATE if self.event_time else INGESTION_DATE,)

    @cached_property
    def shape(self) -> RecordShape:
        """What its messages may say. Key, event time, what is unique and what partitions is required."""
        declared = {field.name for field in self.fields if field.required}
        needed = {self.clustered_by, *self.unique, *self._partitions, *([self.event_time] if self.event_time else [])}
        names_of = {self.clustered_by, *self.unique, *self._partitions}
        return RecordShape(
            columns=tuple((field.name, field.type) for field in self.fields),
            required=frozenset(declared | (needed & set(self.columns))),
            ids=frozenset(f.name for f in self.fields if f.type == "string" and f.name in names_of),
            event_time=self.event_time,
        )

    @cached_property
    def table(self) -> Table:
        """Records as they came, with where they came from."""
        day = (_DAY,) if self.event_time else ()
        return Table(
            key=self.key,
            description=self.description,
            mode=Mode.APPEND_ONLY,
            partitioned_by=self._partitions,
            subject_columns=() if self.subject is None else (self.subject,),
            columns=(*day, *(Column(f.name, f.type, f.comment) for f in self.fields), *_STAMPS),
        )

    @cached_property
    def quarantine(self) -> Table:
        """Records that were refused, whole."""
        return replace(
            QUARANTINE,
            key=(*self.key[:-1], f"{self.key[-1]}_quarantine"),
            description=f"Records of {self.topic} that are none of {self.name}, whole, with the reason.",
        )


def declaration_of(stream: Stream) -> dict[str, Any]:
    """What decides of a stream what becomes of a record, as a manifest has it."""
    decides = {
        "fields": [[field.name, field.type, field.required] for field in stream.fields],
        "clustered_by": stream.clustered_by,
        "event_time": stream.event_time,
        "unique": list(stream.unique),
        "subject": stream.subject,
    }
    return {"stream": decides}


def under_declaration(stream: Stream, pinned: Mapping[str, Any]) -> Stream:
    """The stream as the settings of a manifest have it; as it is where they say nothing.

    Its table may lack columns that were declared since: those of the batch's rows are null.
    """
    if (decides := pinned.get("stream")) is None:
        return stream
    fields = tuple(Field(name, kind, "", required) for name, kind, required in decides["fields"])
    return replace(stream, **{**decides, "fields": fields, "unique": tuple(decides["unique"])})

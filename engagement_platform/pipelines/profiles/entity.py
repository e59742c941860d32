"""What an entity is that partial updates describe, and the two tables that hold it. `profile` is the one that ships.

Declarations only: folding changes is `latest_values`, reading `view`, writing `job` and `rematerialize`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engagement_platform.lake.contract import PLAIN_NAME, Column, Mode, Table, refuse_partitions_of_subjects
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.settings import MergeOnReadSettings, Settings, UnknownUpdate
from engagement_platform.sources.messages import ChangeShape, ValueType

# Columns that the tables, decoding or folding add.
_RESERVED = frozenset(
    {
        *("op", "changes", "set_null", "topic", "partition", "offset", "ingestion_ts", "ingestion_date"),
        *("batch_id", "batch_sequence"),
        *("present", "present_ts", "present_version", "produced_ts", "value_bytes", "value", "key", "reason"),
        *("reason_code", "unknown_fields", "job_name", "inserted", "changed", "presence"),
    }
)


@dataclass(frozen=True)
class Attribute:
    """One column of an entity."""

    name: str
    type: ValueType
    comment: str


@dataclass(frozen=True)
class Entity:
    """A keyed thing whose columns arrive a few at a time. Raises ValueError where names are none, clash or are unknown.

    unknown_update, inserts_are_new: as the settings of the same names say.
    """

    name: str
    """First part of the tables' names, such as `profile`."""
    key: str
    """Column that identifies it; a string, by the rules of ids."""
    version: str
    """Column that orders its changes; a long from 1 on."""
    attributes: tuple[Attribute, ...]
    partitioned_by: tuple[str, ...] = ()
    """Of the base: some of the attributes. A row whose value changes moves to another partition; an empty string and
    `__HIVE_DEFAULT_PARTITION__` are refused in them."""
    unknown_update: UnknownUpdate = "upsert"
    inserts_are_new: bool = False

    def __post_init__(self) -> None:
        names = [self.key, self.version, *self.columns, *map(version_of, self.columns)]
        if not self.attributes:
            raise ValueError(f"{self.name} has no columns")
        if bad := [name for name in (self.key, self.version, *self.columns) if not PLAIN_NAME.fullmatch(name)]:
            raise ValueError(f"{self.name} has columns that are not called like lead_score: {', '.join(bad)}")
        clash = {name for name in names if names.count(name) > 1 or name in _RESERVED}
        if clash:
            raise ValueError(f"{self.name} cannot have columns called {', '.join(sorted(clash))}")
        refuse_partitions_of_subjects(self.name, self.key, self.partitioned_by)
        if unknown := set(self.partitioned_by) - set(self.columns):
            raise ValueError(f"{self.name} has no columns {', '.join(sorted(unknown))} to be partitioned by")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the attributes."""
        return tuple(attribute.name for attribute in self.attributes)

    @property
    def shape(self) -> ChangeShape:
        """What its messages may say."""
        columns = tuple((a.name, a.type) for a in self.attributes)
        return ChangeShape(self.key, self.version, columns, partitions=frozenset(self.partitioned_by))

    @property
    def ingest_job(self) -> str:
        """Name of the job that takes in its changes, such as `ingest-profile-changes`."""
        return f"ingest-{self.name}-changes"

    @property
    def reread_job(self) -> str:
        """Name of the job that reads its changes once more, such as `reread-profile-changes`."""
        return f"reread-{self.name}-changes"

    @property
    def rematerialize_job(self) -> str:
        """Name of the job that moves its changes into the base, such as `rematerialize-profile`."""
        return f"rematerialize-{self.name}"

    @property
    def view(self) -> str:
        """Name under which people read it."""
        return f"{self.name}/current"

    @property
    def view_columns(self) -> tuple[str, ...]:
        """Columns of the view: key, version, attributes."""
        return (self.key, self.version, *self.columns)

    @property
    def watermark(self) -> str:
        """Application id under which a commit of the base says up to which batch its changes are in it."""
        return f"{self.base.name}/watermark"

    @property
    def changeset(self) -> Table:
        """Changes as they came. Mutable, since whole batches leave it; so nobody streams from it."""
        return Table(
            key=(self.name, "changeset"),
            description=f"Partial updates of {self.name}s as they came; batches leave it once they are in the base.",
            mode=Mode.MUTABLE,
            partitioned_by=("batch_id",),
            subject_columns=(self.key,),
            columns=(
                Column(self.key, "string", "Whom the change is about."),
                Column(self.version, "long", "Orders the changes of one key, however they arrive."),
                Column("op", "string", "INSERT, UPDATE or DELETE."),
                *(Column(a.name, a.type, f"{a.comment} Null: no change sets it.") for a in self.attributes),
                Column("set_null", "array<string>", "Columns that the change sets to null."),
                *QUARANTINE.columns[:3],
                Column("ingestion_ts", "timestamp", "When the batch was planned, UTC."),
                Column("batch_id", "long", "Batch that wrote the row; grows, also after a reset."),
            ),
        )

    @property
    def base(self) -> Table:
        """All changes up to a batch, with the version of each word, so that late ones find their place."""
        return Table(
            key=(self.name, "materialized"),
            description=f"The {self.name}s with all changes up to a batch; the view adds what came since.",
            mode=Mode.MUTABLE,
            partitioned_by=self.partitioned_by,
            subject_columns=(self.key,),
            columns=(
                Column(self.key, "string", "Whom the row is about."),
                Column(self.version, "long", "Greatest version of a change that came."),
                Column("present", "boolean", "False: deleted, kept as a tombstone. Null: not inserted yet."),
                Column("present_version", "long", "Version that set it."),
                Column("present_ts", "timestamp", "When that landed, UTC."),
                *(Column(a.name, a.type, a.comment) for a in self.attributes),
                *(Column(version_of(a.name), "long", f"Version that set {a.name}.") for a in self.attributes),
            ),
        )


def version_of(column: str) -> str:
    """Name of the base's column that holds a column's version."""
    return f"{column}_version"


PROFILE = Entity(
    name="profile",
    key="profile_id",
    version="version",
    attributes=(
        Attribute("name", "string", "Full name."),
        Attribute("email", "string", "Mail address."),
        Attribute("title", "string", "Position."),
        Attribute("company", "string", "Employer."),
        Attribute("city", "string", "City."),
        Attribute("plan", "string", "Plan that was bought."),
        Attribute("score", "long", "How likely a purchase is."),
    ),
)
"""The entity that ships, under the default policies; its tables do not depend on them."""


def policies_of(of: Entity | MergeOnReadSettings) -> dict[str, Any]:
    """The policies of an entity, as a manifest has them, or those that the settings give the one that ships."""
    return {"unknown_update": of.unknown_update, "inserts_are_new": of.inserts_are_new}


def declaration_of(entity: Entity) -> dict[str, Any]:
    """What decides of an entity what becomes of a change, as a manifest has it."""
    return {"policies": policies_of(entity), "attributes": [[of.name, of.type] for of in entity.attributes]}


def under_declaration(entity: Entity, pinned: Mapping[str, Any]) -> Entity:
    """The entity as the settings of a manifest have it; as it is where they say nothing.

    Its tables may lack columns that were declared since: those of the batch's rows are null.
    """
    attributes = tuple(Attribute(name, kind, "") for name, kind in pinned.get("attributes", ()))
    return replace(entity, **pinned.get("policies", {}), attributes=attributes or entity.attributes)


def profile(settings: Settings) -> Entity:
    """The entity that ships, under the policies of the settings."""
    return replace(PROFILE, **policies_of(settings.merge_on_read))

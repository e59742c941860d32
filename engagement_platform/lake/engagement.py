"""The engagement tables, declared. Names, columns and their order are contracts that other programs rely on."""

from __future__ import annotations

from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.settings import LayoutScheme

_ORGANIZATION = Column("organization_id", "string", "Tenant; ids are unique within it, not across.")
_BATCH = Column("batch_id", "long", "Batch that wrote the row.")
_SEQUENCE = Column("batch_sequence", "long", "Orders the batches of all jobs, whatever clocks say.")
_INGESTION_TS = Column("ingestion_ts", "timestamp", "When the batch was planned, UTC; the same for all its rows.")
_INGESTION_DATE = Column("ingestion_date", "date", "UTC day of ingestion_ts.")
_TOPIC = Column("topic", "string", "Kafka topic.")
_PARTITION = Column("partition", "int", "Kafka partition.")
_OFFSET = Column("offset", "long", "Kafka offset.")

ENGAGEMENT_STRUCT = "struct<type:string,channel:string,subject:string,attributes:map<string,string>>"

_PARTITIONING: dict[LayoutScheme, tuple[str, ...]] = {
    "organization": ("organization_id",),
    "organization_date": ("organization_id", "engagement_date"),
    "liquid": (),
}
_BY_DAY = ("organization_id", "engagement_date")

_ORIGINAL = Column("original", ENGAGEMENT_STRUCT, "The content of the event; null where no patch changed it.")
_EARLIER = Column(
    "earlier_versions",
    "map<bigint,binary>",
    "Lower versions that landed -> digest of their content; a deleted row without content has its own, too.",
)
_ROW = (
    _ORGANIZATION,
    Column("engagement_date", "date", "UTC day of engagement_ts; what data skipping works on."),
    Column("engagement_ts", "timestamp", "When it happened, UTC; the same in all versions."),
    Column("engagement_id", "string", "Unique within the organization."),
    Column("person_id", "string", "Who the person is, of an image as of its batch; null once deleted."),
    Column("source_person_id", "string", "The person named in the event; never changes."),
    Column("version", "long", "Highest version seen."),
    _BATCH,
)
_CONTENT = (Column("engagement", ENGAGEMENT_STRUCT, "What happened, after all patches."), _ORIGINAL, _EARLIER)

_REQUEST_ID = Column("request_id", "string", "Unique within the organization.")
_TO_ID = Column("to_id", "string", "Person it becomes (CONVERT).")
_SCOPE = (
    Column("engagement_date_from", "date", "First day it applies to; null: no lower end."),
    Column("engagement_date_to", "date", "Last day it applies to; null: no upper end."),
    Column("execution_ts", "timestamp", "Applies to engagements strictly before it, UTC."),
)
_ONE_ENGAGEMENT = Column("engagement_id", "string", "One engagement instead of all of a person.")


def data_table(scheme: LayoutScheme) -> Table:
    """The Data Table in one of its layouts. Dates come before the struct so that statistics cover them."""
    return Table(
        key=("engagement", "data"),
        description="Engagements as they are now: under the identity their person has now, newest version only.",
        mode=Mode.MUTABLE,
        subject_columns=("source_person_id", "person_id"),
        partitioned_by=_PARTITIONING[scheme],
        liquid_by=_BY_DAY if scheme == "liquid" else (),
        columns=(*_ROW, *_CONTENT),
    )


CHANGESET = Table(
    key=("engagement", "changeset"),
    description="Images of rows that the Data Table does not show yet; the view `engagement/current` does.",
    mode=Mode.MUTABLE,
    subject_columns=("source_person_id", "person_id"),
    liquid_by=_BY_DAY,
    columns=(*_ROW, _SEQUENCE, *_CONTENT),
)

NOTIFICATION = Table(
    key=("engagement", "notification"),
    description="One row for every insert, update or delete in the Data Table, for readers to follow.",
    mode=Mode.APPEND_ONLY,
    subject_columns=("person_id", "previous_person_id"),
    liquid_by=("organization_id", "ingestion_date"),
    columns=(
        Column("notification_id", "string", "Unique; the same when a batch is replayed."),
        _ORGANIZATION,
        _INGESTION_DATE,
        _INGESTION_TS,
        _BATCH,
        Column("job_name", "string", "Job that made the change."),
        Column("change_type", "string", "INSERT, UPDATE or DELETE."),
        Column("engagement_id", "string", "Which engagement changed."),
        Column("engagement_date", "date", "Where to find it in the Data Table."),
        Column("person_id", "string", "Identity after the change; null for a DELETE."),
        Column("previous_person_id", "string", "Identity before the change; null for an INSERT."),
        _SEQUENCE,
    ),
)

MAPPING = Table(
    key=("engagement", "mapping"),
    description="Names of persons: as they arrived, and, once moved, one row per id. The view gives one row per id.",
    mode=Mode.MUTABLE,
    subject_columns=("id",),
    liquid_by=("organization_id", "id"),
    columns=(
        _ORGANIZATION,
        Column("id", "string", "Person id."),
        Column("name", "string", "The name as it arrived; of a moved row the newest, null where there is none."),
        Column("name_ts", "timestamp", "When that name was given, UTC."),
        _BATCH,
        _SEQUENCE,
        Column(
            "evidence",
            "array<struct<name:string,name_ts:timestamp,request_id:string>>",
            "What names can still depend on; null: the row was appended by a batch and not moved yet.",
        ),
    ),
)

QUARANTINE = Table(
    key=("engagement", "quarantine"),
    description="Every rejected record, whole, with its reason and where it came from.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("ingestion_date",),
    columns=(
        _TOPIC,
        _PARTITION,
        _OFFSET,
        Column("key", "binary", "Kafka key, as it came."),
        Column("value", "binary", "Kafka value, as it came."),
        Column("reason_code", "string", "Stable code of the rule that was broken."),
        Column("reason", "string", "The same as a sentence."),
        Column("job_name", "string", "Job that rejected it."),
        _BATCH,
        _INGESTION_TS,
        _INGESTION_DATE,
        _SEQUENCE,
    ),
)

MUTATION_REQUEST = Table(
    key=("engagement", "mutation_request"),
    description="Accepted requests to convert, delete, rename or update, as they came; the view shows them at once.",
    mode=Mode.APPEND_ONLY,
    subject_columns=("from_id", "to_id"),
    partitioned_by=("ingestion_date",),
    columns=(
        _REQUEST_ID,
        _ORGANIZATION,
        Column("operation", "string", "CONVERT, DELETE, RENAME or UPDATE."),
        Column("from_id", "string", "Person the request is about."),
        _TO_ID,
        Column("name", "string", "New name (RENAME)."),
        _ONE_ENGAGEMENT,
        Column("type", "string", "New type (UPDATE)."),
        Column("channel", "string", "New channel (UPDATE)."),
        Column("subject", "string", "New subject (UPDATE)."),
        Column("attributes", "map<string,string>", "Keys to set; a null value removes the key (UPDATE)."),
        Column("set_null", "array<string>", "Fields to clear: channel, subject (UPDATE)."),
        *_SCOPE,
        _TOPIC,
        _PARTITION,
        _OFFSET,
        _INGESTION_TS,
        _INGESTION_DATE,
        _BATCH,
        _SEQUENCE,
    ),
)

ALIAS = Table(
    key=("engagement", "alias"),
    description="The edges of identity: every accepted CONVERT and DELETE as it came. All identities follow from it.",
    mode=Mode.APPEND_ONLY,
    subject_columns=("from_id", "to_id"),
    liquid_by=("organization_id",),
    columns=(
        _ORGANIZATION,
        _REQUEST_ID,
        Column("operation", "string", "CONVERT or DELETE."),
        Column("from_id", "string", "Person that the request is about; null: the person of the engagement (DELETE)."),
        _TO_ID,
        _ONE_ENGAGEMENT,
        *_SCOPE,
        _BATCH,
        _SEQUENCE,
    ),
)


def engagement_tables(scheme: LayoutScheme) -> tuple[Table, ...]:
    """The seven tables, in an order in which all of them can be read while batches run: see `snapshot`."""
    return (CHANGESET, ALIAS, MUTATION_REQUEST, data_table(scheme), MAPPING, NOTIFICATION, QUARANTINE)

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


def data_table(scheme: LayoutScheme) -> Table:
    """The Data Table in one of its layouts. Dates stand before the struct so that statistics cover them."""
    return Table(
        key=("engagement", "data"),
        description="Engagements as they are now: under the identity their person has now, newest version only.",
        mode=Mode.MUTABLE,
        partitioned_by=_PARTITIONING[scheme],
        liquid_by=("organization_id", "engagement_date") if scheme == "liquid" else (),
        columns=(
            _ORGANIZATION,
            Column("engagement_date", "date", "UTC day of engagement_ts; what data skipping works on."),
            Column("engagement_ts", "timestamp", "When it happened, UTC; the same in all versions."),
            Column("engagement_id", "string", "Unique within the organization."),
            Column("person_id", "string", "Who the person is now; null once deleted, until the row is purged."),
            Column("source_person_id", "string", "Who the event said the person is; never changes."),
            Column("version", "long", "Highest version seen."),
            _BATCH,
            Column("engagement", ENGAGEMENT_STRUCT, "What happened."),
        ),
    )


NOTIFICATION = Table(
    key=("engagement", "notification"),
    description="One row for every insert, update or delete in the Data Table, for readers to follow.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("organization_id", "ingestion_date"),
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
    ),
)

MAPPING = Table(
    key=("engagement", "mapping"),
    description="Names of persons, kept once and not on every engagement: a rename touches one row.",
    mode=Mode.MUTABLE,
    partitioned_by=("organization_id",),
    columns=(
        _ORGANIZATION,
        Column("id", "string", "Person id."),
        Column("name", "string", "Newest name; null once a DELETE removed it."),
        Column("name_ts", "timestamp", "When that name was said, UTC."),
        _BATCH,
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
    description="Requests to convert, delete, rename or update, as they came; applied by the mutation job.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("ingestion_date",),
    columns=(
        Column("request_id", "string", "Unique within the organization."),
        _ORGANIZATION,
        Column("operation", "string", "CONVERT, DELETE, RENAME or UPDATE."),
        Column("from_id", "string", "Person the request is about."),
        Column("to_id", "string", "Person it becomes (CONVERT)."),
        Column("name", "string", "New name (RENAME)."),
        Column("engagement_id", "string", "One engagement instead of all of a person."),
        Column("type", "string", "New type (UPDATE)."),
        Column("channel", "string", "New channel (UPDATE)."),
        Column("subject", "string", "New subject (UPDATE)."),
        Column("attributes", "map<string,string>", "Keys to set; a null value removes the key (UPDATE)."),
        Column("set_null", "array<string>", "Fields to clear: channel, subject (UPDATE)."),
        Column("engagement_date_from", "date", "First day it applies to; null: no lower end."),
        Column("engagement_date_to", "date", "Last day it applies to; null: no upper end."),
        Column("execution_ts", "timestamp", "Applies to engagements strictly before it, UTC."),
        _TOPIC,
        _PARTITION,
        _OFFSET,
        _INGESTION_TS,
        _INGESTION_DATE,
        _BATCH,
        _SEQUENCE,
    ),
)

_REQUEST_ID = Column("request_id", "string", "Unique within the organization.")
_EXECUTION_TS = Column("execution_ts", "timestamp", "When the request happened, UTC.")

ALIAS = Table(
    key=("engagement", "alias"),
    description="The edges of identity: every accepted CONVERT and DELETE as it came. All identities follow from it.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("organization_id",),
    columns=(
        _ORGANIZATION,
        _REQUEST_ID,
        Column("operation", "string", "CONVERT or DELETE."),
        Column("from_id", "string", "Person that the request is about; null: whoever has the engagement (DELETE)."),
        Column("to_id", "string", "Person it becomes (CONVERT)."),
        Column("engagement_id", "string", "One engagement instead of all of a person."),
        Column("engagement_date_from", "date", "First day it applies to; null: no lower end."),
        Column("engagement_date_to", "date", "Last day it applies to; null: no upper end."),
        Column("execution_ts", "timestamp", "Applies to engagements strictly before it, UTC."),
        _BATCH,
    ),
)

AMENDMENT = Table(
    key=("engagement", "amendment"),
    description="Every accepted UPDATE and RENAME as it came; contents and names are settled from it.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("organization_id",),
    columns=(
        _ORGANIZATION,
        _REQUEST_ID,
        Column("operation", "string", "UPDATE or RENAME."),
        Column("from_id", "string", "Person to rename."),
        Column("name", "string", "New name (RENAME)."),
        Column("engagement_id", "string", "Engagement to patch (UPDATE)."),
        Column("type", "string", "New type (UPDATE)."),
        Column("channel", "string", "New channel (UPDATE)."),
        Column("subject", "string", "New subject (UPDATE)."),
        Column("attributes", "map<string,string>", "Keys to set; a null value removes the key (UPDATE)."),
        Column("set_null", "array<string>", "Fields to clear: channel, subject (UPDATE)."),
        _EXECUTION_TS,
        _BATCH,
    ),
)

SAID_NAME = Table(
    key=("engagement", "said_name"),
    description="Every name that an engagement carried, so that a late request still finds the name of its time.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("organization_id",),
    columns=(
        _ORGANIZATION,
        Column("id", "string", "Person id, as the event said it."),
        Column("name", "string", "The name."),
        Column("name_ts", "timestamp", "engagement_ts of the event that carried it, UTC."),
        _BATCH,
    ),
)

ORIGINAL = Table(
    key=("engagement", "original"),
    description="Contents of patched engagements as the event said them, so that patches can be settled anew.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("organization_id",),
    columns=(
        _ORGANIZATION,
        Column("engagement_id", "string", "Unique within the organization."),
        Column("version", "long", "Version that said so."),
        _BATCH,
        Column("engagement", ENGAGEMENT_STRUCT, "What happened, before any patch."),
    ),
)

SUPERSEDED = Table(
    key=("engagement", "superseded"),
    description="What versions that landed and do not stand said, so that later copies of them can be compared.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("organization_id",),
    columns=(
        _ORGANIZATION,
        Column("engagement_id", "string", "Unique within the organization."),
        Column("version", "long", "Version that said so; the first row of a version counts."),
        Column("source_person_id", "string", "Who the event said the person is."),
        Column("engagement_ts", "timestamp", "When it happened, UTC."),
        _BATCH,
        _SEQUENCE,
        _INGESTION_TS,
        Column("engagement", ENGAGEMENT_STRUCT, "What happened, before any patch."),
    ),
)

OPERATION = Table(
    key=("engagement", "operation"),
    description="What each mutation batch resolved to, one row for each id and time: for audit and replay.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("ingestion_date",),
    columns=(
        _ORGANIZATION,
        Column("from_id", "string", "Identity that the event said."),
        Column("engaged_from", "timestamp", "First engagement_ts it applies to, UTC; null: no lower end."),
        Column("engaged_before", "timestamp", "Engagements before this time, UTC."),
        Column("to_id", "string", "Identity after all requests; null: deleted."),
        Column("request_id", "string", "First request that such rows meet."),
        _BATCH,
        _INGESTION_DATE,
    ),
)

PENDING = Table(
    key=("engagement", "pending"),
    description="Organizations whose newest aliases the Data Table does not show yet; the current view does.",
    mode=Mode.MUTABLE,
    columns=(
        _ORGANIZATION,
        Column("pending_from", "long", "First mutation batch not yet moved into the Data Table; null: none."),
        _BATCH,
    ),
)

MUTATION_LOGS = (ALIAS, AMENDMENT, SAID_NAME, ORIGINAL)
"""What the final tables are settled from: the requests and names that came, and contents before their patches."""

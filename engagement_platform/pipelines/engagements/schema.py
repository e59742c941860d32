"""Columns that pass between the steps of the engagement pipe, as Arrow schemas and Spark DDL.

The tables themselves are declared in `tables`; which rows there are is decided in `rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TEXT_MAP: Final = pa.map_(pa.string(), pa.string())

CONTENT_DDL: Final = "struct<type:string,channel:string,subject:string,attributes:map<string,string>>"
CONTENT: Final = pa.struct(
    [
        *(pa.field(name, pa.string()) for name in ("type", "channel", "subject")),
        pa.field("attributes", TEXT_MAP),
    ]
)

EARLIER_DDL: Final = "map<bigint,binary>"
EARLIER: Final = pa.map_(pa.int64(), pa.binary())

ROW_DDL: Final = (
    "organization_id string, engagement_date date, engagement_ts timestamp, engagement_id string, person_id string, "
    f"source_person_id string, version bigint, engagement {CONTENT_DDL}, original {CONTENT_DDL}, "
    f"earlier_versions {EARLIER_DDL}"
)
"""What a row of the Data Table says of its engagement: all of its columns but the audit columns."""

_ROW_FIELDS: Final = [
    pa.field("organization_id", pa.string()),
    pa.field("engagement_date", pa.date32()),
    pa.field("engagement_ts", TIMESTAMP),
    pa.field("engagement_id", pa.string()),
    pa.field("person_id", pa.string()),
    pa.field("source_person_id", pa.string()),
    pa.field("version", pa.int64()),
    pa.field("engagement", CONTENT),
    pa.field("original", CONTENT),
    pa.field("earlier_versions", EARLIER),
]
ROW: Final = pa.schema(_ROW_FIELDS)

CURRENT_ROW: Final = pa.schema([field for field in _ROW_FIELDS if field.name not in ("original", "earlier_versions")])
"""What readers of `engagement/current` get of a row."""

COPY: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        *(field for field in _ROW_FIELDS[:4]),
        pa.field("person_id", pa.string()),
        pa.field("person_name", pa.string()),
        pa.field("version", pa.int64()),
        *(pa.field(name, pa.string()) for name in ("type", "channel", "subject")),
        pa.field("attributes", TEXT_MAP),
    ]
)
"""A decoded copy of an engagement: what the message says, and where it stands in Kafka."""

STATE_FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    "row": {
        "engagement_date": "date", "engagement_ts": "timestamp", "engagement_id": "string", "person_id": "string",
        "source_person_id": "string", "version": "bigint", "engagement": CONTENT_DDL, "original": CONTENT_DDL,
        "earlier_versions": EARLIER_DDL, "sequence": "bigint",
    },
    "edge": {
        "request_id": "string", "operation": "string", "from_id": "string", "to_id": "string",
        "engagement_id": "string", "engagement_date_from": "date", "engagement_date_to": "date",
        "execution_ts": "timestamp", "sequence": "bigint",
    },
    "patch": {
        "request_id": "string", "engagement_id": "string", "execution_ts": "timestamp", "type": "string",
        "channel": "string", "subject": "string", "attributes": "map<string,string>",
        "set_null": "array<string>", "sequence": "bigint",
    },
    "said": {"id": "string", "name": "string", "name_ts": "timestamp", "request_id": "string"},
}  # fmt: skip
"""The structs of the state, with their fields."""


def struct_ddl(fields: Mapping[str, str]) -> str:
    """A struct of these fields as Spark DDL."""
    return f"struct<{','.join(f'{name}:{of}' for name, of in fields.items())}>"


STATE_DDL: Final = ", ".join(
    ["organization_id string", *(f"{kind} {struct_ddl(fields)}" for kind, fields in STATE_FIELDS.items())]
)
"""What is known of an organization: each row of the state has one of row, edge, patch and said.

sequence orders what was written: of two images of one version the greater counts, of two requests the smaller came
first. Null: a row of the base, older than any image.
"""

_STRING: Final = pa.string()
STATE: Final = pa.schema(
    [
        pa.field("organization_id", _STRING),
        pa.field("row", pa.struct([*_ROW_FIELDS[1:], pa.field("sequence", pa.int64())])),
        pa.field(
            "edge",
            pa.struct(
                [
                    *(pa.field(n, _STRING) for n in ("request_id", "operation", "from_id", "to_id", "engagement_id")),
                    pa.field("engagement_date_from", pa.date32()),
                    pa.field("engagement_date_to", pa.date32()),
                    pa.field("execution_ts", TIMESTAMP),
                    pa.field("sequence", pa.int64()),
                ]
            ),
        ),
        pa.field(
            "patch",
            pa.struct(
                [
                    pa.field("request_id", _STRING),
                    pa.field("engagement_id", _STRING),
                    pa.field("execution_ts", TIMESTAMP),
                    *(pa.field(n, _STRING) for n in ("type", "channel", "subject")),
                    pa.field("attributes", TEXT_MAP),
                    pa.field("set_null", pa.list_(_STRING)),
                    pa.field("sequence", pa.int64()),
                ]
            ),
        ),
        pa.field(
            "said",
            pa.struct(
                [*(pa.field(n, _STRING) for n in ("id", "name")), ("name_ts", TIMESTAMP), ("request_id", _STRING)]
            ),
        ),
    ]
)
"""STATE_DDL as Arrow has it."""

PLAN_DDL: Final = (
    "topic string, partition int, offset bigint, verdict string, reason_code string, reason string, "
    "change_type string, announced_person_id string, previous_person_id string, person_said string, name string, "
    "name_ts timestamp, target string, " + ROW_DDL
)
"""The batch plan: one row per copy. The columns of the row are null where the copy writes none.

change_type, announced_person_id and previous_person_id: what the notification says, by the requests that have been
announced. Those that have not are announced by `apply-mutations`, for this row, too.
"""

PLAN: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        *(
            pa.field(name, pa.string())
            for name in (
                "verdict",
                "reason_code",
                "reason",
                "change_type",
                "announced_person_id",
                "previous_person_id",
                "person_said",
                "name",
            )
        ),
        pa.field("name_ts", TIMESTAMP),
        pa.field("target", pa.string()),
        *_ROW_FIELDS,
    ]
)

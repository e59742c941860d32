"""Columns that pass between the steps of the engagement pipe: Spark DDL, and the Arrow schema that follows from it.

The tables themselves are declared in `lake.engagement`; which rows there are is decided in `rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from engagement_platform.lake.engagement import ENGAGEMENT_STRUCT
from engagement_platform.sources.decoded_batches import arrow_type


def arrow_schema(ddl: str) -> pa.Schema:
    """Columns as Arrow has them. ddl: `name type, name type`, types without blanks.

    >>> arrow_schema("id string, days array<date>").names
    ['id', 'days']
    """
    return pa.schema([pa.field(name, arrow_type(of)) for name, of in _columns(ddl).items()])


def _columns(ddl: str) -> dict[str, str]:
    return dict(column.split(" ", 1) for column in ddl.split(", "))


COORDINATES_DDL: Final = "topic string, partition int, offset bigint"
_ID_DDL: Final = (
    "organization_id string, engagement_date date, engagement_ts timestamp, engagement_id string, person_id string"
)
_CURRENT_DDL: Final = f"{_ID_DDL}, source_person_id string, version bigint, engagement {ENGAGEMENT_STRUCT}"

ROW_DDL: Final = f"{_CURRENT_DDL}, original {ENGAGEMENT_STRUCT}, earlier_versions map<bigint,binary>"
"""What a row of the Data Table says of its engagement: all of its columns but the audit columns."""
ROW: Final = arrow_schema(ROW_DDL)
CURRENT_ROW: Final = arrow_schema(_CURRENT_DDL)
"""What readers of `engagement/current` get of a row."""

COPY: Final = arrow_schema(
    f"{COORDINATES_DDL}, {_ID_DDL}, person_name string, version bigint, type string, channel string, subject string, "
    "attributes map<string,string>"
)
"""A decoded copy of an engagement: what the message says, and where it stands in Kafka."""

STATE_FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    "row": _columns(f"{ROW_DDL.partition(', ')[2]}, sequence bigint"),
    "edge": _columns(
        "request_id string, operation string, from_id string, to_id string, engagement_id string, "
        "engagement_date_from date, engagement_date_to date, execution_ts timestamp, sequence bigint"
    ),
    "patch": _columns(
        "request_id string, engagement_id string, execution_ts timestamp, type string, channel string, subject string, "
        "attributes map<string,string>, set_null array<string>, sequence bigint"
    ),
    "name_evidence": _columns("id string, name string, name_ts timestamp, request_id string"),
}
"""The structs of the state, with their fields."""


def struct_ddl(fields: Mapping[str, str]) -> str:
    """A struct of these fields as Spark DDL."""
    return f"struct<{','.join(f'{name}:{of}' for name, of in fields.items())}>"


STATE_DDL: Final = ", ".join(
    ["organization_id string", *(f"{kind} {struct_ddl(fields)}" for kind, fields in STATE_FIELDS.items())]
)
"""What is known of an organization: each row of the state has one of row, edge, patch and name_evidence.

sequence orders what was written: of two images of one version the greater counts, of two requests the smaller came
first. Null: a row of the base, older than any image.
"""
STATE: Final = arrow_schema(STATE_DDL)

PLAN_DDL: Final = (
    f"{COORDINATES_DDL}, verdict string, reason_code string, reason string, change_type string, "
    "announced_person_id string, previous_person_id string, named_id string, name string, name_ts timestamp, "
    f"target string, {ROW_DDL}"
)
"""The batch plan: one row per copy. The columns of the row are null where the copy writes none.

change_type, announced_person_id and previous_person_id: what the notification says, by the requests that have been
announced. Those that have not are announced by `apply-mutations`, for this row, too.
"""
PLAN: Final = arrow_schema(PLAN_DDL)

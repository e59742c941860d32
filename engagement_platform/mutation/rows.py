"""Rows of a mutation batch as their tables take them, made in this process. Nothing is decided here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.engine.model import Manifest
from engagement_platform.lake.arrow import schema_of, table_of
from engagement_platform.lake.audit_columns import stamped_here
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import NOTIFICATION, OPERATION
from engagement_platform.mutation.batch import KEY
from engagement_platform.mutation.model import Operation
from engagement_platform.mutation.requests import REASONS, Request

REJECTED = ("topic", "partition", "offset", "key", "value", "reason_code", "reason")


def rejected(row: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """A row of `engagement/mutation_request` as REJECTED: the message as it could have been said."""
    request = Request.of(row)
    place = {name: row[name] for name in ("topic", "partition", "offset")}
    key = request.organization_id.encode()
    return {**place, "key": key, "value": request.message(), "reason_code": reason, "reason": REASONS[reason]}


def logged(requests: pa.Table, table: Table, manifest: Manifest) -> pa.Table:
    """Accepted requests as rows of the log of their operation."""
    columns = [name for name in table.column_names if name != "batch_id"]
    stamp = pa.repeat(pa.scalar(manifest.batch_id, pa.int64()), requests.num_rows)
    return (
        requests.select(columns)
        .append_column("batch_id", stamp)
        .select(list(table.column_names))
        .cast(schema_of(table))
    )


def operation_rows(operations: Iterable[Operation]) -> pa.Table:
    """Operations as rows of `engagement/operation`, without stamps."""
    values = list(zip(*operations, strict=True)) or [()] * len(Operation._fields)
    schema = schema_of(OPERATION, *Operation._fields)
    return pa.table([pa.array(of, field.type) for of, field in zip(values, schema, strict=True)], schema=schema)


def data_rows(rows: pa.Table, data: Table, manifest: Manifest) -> pa.Table:
    """Rows of the Data Table that get another identity and keep their content."""
    schema = schema_of(data, *KEY, "person_id", "batch_id", "engagement")
    columns = {name: rows.column(name) for name in KEY} | {"person_id": rows.column("now")}
    columns["batch_id"] = pa.repeat(pa.scalar(manifest.batch_id, pa.int64()), rows.num_rows)
    columns["engagement"] = pa.nulls(rows.num_rows, schema.field("engagement").type)
    return pa.table(columns).cast(schema)


def walked_rows(rows: Sequence[Mapping[str, Any]], direct: set[str], data: Table, manifest: Manifest) -> pa.Table:
    """Rows that were looked up by their engagement."""
    of = [
        {
            **{name: row[name] for name in KEY},
            "person_id": row["now"] if row["organization_id"] in direct else row["person_id"],
            "batch_id": manifest.batch_id,
            "engagement": row["engagement"],
        }
        for row in rows
    ]
    return table_of(of, data, *KEY, "person_id", "batch_id", "engagement")


def notified(moved: pa.Table, walked: Sequence[Mapping[str, Any]], manifest: Manifest) -> dict[str, Any]:
    """Rows for the notification table and how many of each kind, ordered so that a replay makes the same."""
    columns = ("organization_id", "engagement_date", "engagement_id", "now", "previous")
    schema = pa.schema([moved.schema.field(name) for name in columns])
    few = pa.Table.from_pylist([{name: row[name] for name in columns} for row in walked], schema=schema)
    rows = pa.concat_tables([moved.select(list(columns)), few])
    now, previous = rows.column("now"), rows.column("previous")
    kind = pc.if_else(pc.is_null(now), "DELETE", pc.if_else(pc.is_null(previous), "INSERT", "UPDATE"))
    length = pc.utf8_length(rows.column("organization_id")).cast(pa.string())
    begin = f"{manifest.app_id}/{manifest.batch_id}"
    # The length says where the organization ends: ids may hold any character.
    identity = pc.binary_join_element_wise(
        begin, length, rows.column("organization_id"), rows.column("engagement_id"), "/"
    )
    made = pa.table(
        {
            "notification_id": identity,
            **{name: rows.column(name) for name in KEY},
            "change_type": kind,
            "person_id": now,
            "previous_person_id": previous,
        }
    )
    counts = Counter({count["values"]: count["counts"] for count in kind.value_counts().to_pylist()})
    stamped = stamped_here(made, manifest)
    return {
        "notifications": stamped.select(list(NOTIFICATION.column_names)),
        "inserted": counts["INSERT"],
        "updated": counts["UPDATE"],
        "deleted": counts["DELETE"],
    }

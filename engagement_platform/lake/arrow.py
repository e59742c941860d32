"""A contract's columns as Arrow types, for rows that are made in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ENGAGEMENT_STRUCT

_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "map<bigint,binary>": pa.map_(pa.int64(), pa.binary()),
    "array<struct<name:string,name_ts:timestamp,request_id:string>>": pa.list_(
        pa.struct([("name", pa.string()), ("name_ts", pa.timestamp("us", tz="UTC")), ("request_id", pa.string())])
    ),
}
_STRUCT = pa.struct(
    [
        *(pa.field(name, pa.string()) for name in ("type", "channel", "subject")),
        pa.field("attributes", _TYPES["map<string,string>"]),
    ]
)


def schema_of(table: Table, *columns: str) -> pa.Schema:
    """Arrow schema of these columns of a table, or of all."""
    types = {c.name: _STRUCT if c.type == ENGAGEMENT_STRUCT else _TYPES[c.type] for c in table.columns}
    return pa.schema([pa.field(name, types[name]) for name in (columns or table.column_names)])


def moments(times: pa.ChunkedArray) -> list[datetime]:
    """Times as datetimes in UTC; none is null.

    Arrow would make a time zone of its own for each value, and those are slow to make and to compare.
    """
    plain = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy().astype("datetime64[us]").tolist()
    return [moment.replace(tzinfo=UTC) for moment in plain]


def table_of(rows: Iterable[Mapping[str, Any]], table: Table, *columns: str) -> pa.Table:
    """Rows as these columns of a table, or all; what a row does not have is null."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema_of(table, *columns))

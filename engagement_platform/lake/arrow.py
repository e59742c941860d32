"""A contract's columns as Arrow types, rows that are made in this process, and Arrow values as JSON has them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from engagement_platform.lake.contract import Table
from engagement_platform.sources.decoded_batches import arrow_type


def schema_of(table: Table, *columns: str) -> pa.Schema:
    """Arrow schema of these columns of a table, or of all."""
    types = {column.name: column.type for column in table.columns}
    return pa.schema([pa.field(name, arrow_type(types[name])) for name in (columns or table.column_names)])


def moments(times: pa.ChunkedArray) -> list[datetime]:
    """Times as datetimes in UTC; none is null.

    Arrow would make a time zone of its own for each value, and those are slow to make and to compare.
    """
    plain = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy().astype("datetime64[us]").tolist()
    return [moment.replace(tzinfo=UTC) for moment in plain]


def table_of(rows: Iterable[Mapping[str, Any]], table: Table, *columns: str) -> pa.Table:
    """Rows as these columns of a table, or all; what a row does not have is null."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema_of(table, *columns))


def plain_rows(table: pa.Table) -> Iterator[dict[str, object]]:
    """Each row as an object for JSON."""
    kinds = {field.name: field.type for field in table.schema}
    for row in table.to_pylist():
        yield {name: plain_value(value, kinds[name]) for name, value in row.items()}


def plain_value(value: Any, kind: pa.DataType) -> object:
    """A value for JSON: times in ISO 8601, binary in base64, a map as an object."""
    plain: object = value
    if value is None or isinstance(value, bool | int | float | str):
        pass
    elif pa.types.is_map(kind):
        plain = {str(key): plain_value(item, kind.item_type) for key, item in value}
    elif pa.types.is_struct(kind):
        plain = {field.name: plain_value(value[field.name], field.type) for field in kind}
    elif pa.types.is_list(kind):
        plain = [plain_value(item, kind.value_type) for item in value]
    elif isinstance(value, bytes):
        plain = base64.b64encode(value).decode()
    else:
        plain = value.isoformat() if isinstance(value, date) else str(value)
    return plain

"""A contract's columns as Arrow types, for rows that are made in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
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

"""Reads rows of a table by their values in this process, through delta-rs: without a JVM, in 0.02 s.

Nothing here writes: rows of pipelines are Spark's to write, and `store_tables` fills the stores that are tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

MAX_LITERALS = 1000
"""More values are not listed in a predicate but looked up in what was read: a literal costs 0.13 ms to plan, and with
50,000 of them the planner's stack overflows, which ends the process (deltalake 1.6.6)."""


def find(
    found: DeltaTable,
    columns: Sequence[str],
    where: Mapping[str, Sequence[Any]],
    between: Mapping[str, tuple[Any, Any]] | None = None,
) -> pa.Table:
    """The given columns of the rows whose columns have one of the given values, or lie between two, both included.

    Files are skipped by partition and by the bounds in the log; of the others the given columns and those in `where`
    are read, batch after batch. Not through a pyarrow dataset: that missed rows here (deltalake 1.6.6, pyarrow 26:
    `isin` on strings against bounds of another string type).
    """
    return pa.concat_tables(batches(found, columns, where, between))


def batches(
    found: DeltaTable,
    columns: Sequence[str],
    where: Mapping[str, Sequence[Any]],
    between: Mapping[str, tuple[Any, Any]] | None = None,
) -> Iterator[pa.Table]:
    """What `find` finds, as it is read; first a table without rows, so that there is one."""
    wanted = {name: pa.array(values) for name, values in where.items() if len(values) > MAX_LITERALS}
    read = [*columns, *(name for name in wanted if name not in columns)]
    reader = pa.RecordBatchReader.from_stream(
        found.scan(columns=read, predicate=condition(where, between or {}) or None)
    )
    plain = pa.schema([pa.field(field.name, _plain(field.type)) for field in reader.schema])
    yield plain.empty_table().select(list(columns))
    for batch in reader:
        rows = pa.table(batch).cast(plain)
        for name, values in wanted.items():
            rows = rows.filter(pc.is_in(rows.column(name), values.cast(plain.field(name).type)))
        yield rows.select(list(columns))


def condition(where: Mapping[str, Sequence[Any]], between: Mapping[str, tuple[Any, Any]]) -> str:
    """As SQL; of too many values only the bounds."""
    parts = [f'"{name}" BETWEEN {_literal(low)} AND {_literal(high)}' for name, (low, high) in between.items()]
    for name, values in where.items():
        if len(values) <= MAX_LITERALS:
            parts.append(f'"{name}" IN ({", ".join(map(_literal, values))})' if values else "FALSE")
        else:
            parts.append(f'"{name}" BETWEEN {_literal(min(values))} AND {_literal(max(values))}')
    return " AND ".join(parts)


def _literal(value: object) -> str:
    """As delta-rs's SQL reads it; in its strings only the quote is special. Raises TypeError for other types."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        # Cast from text, since the parser takes the least 64-bit number for the negative of one that is too great.
        return f"CAST('{value}' AS BIGINT)"
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    raise TypeError(f"{type(value).__name__} is no type of a column that rows are looked up by")


def _plain(arrow_type: pa.DataType) -> pa.DataType:
    """The type without views, which not every Arrow function takes."""
    if pa.types.is_string_view(arrow_type) or pa.types.is_large_string(arrow_type):
        return pa.string()
    if pa.types.is_struct(arrow_type):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in arrow_type.fields])
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return pa.list_(_plain(arrow_type.value_type))
    if pa.types.is_map(arrow_type):
        return pa.map_(_plain(arrow_type.key_type), _plain(arrow_type.item_type))
    if pa.types.is_dictionary(arrow_type):
        return _plain(arrow_type.value_type)
    return arrow_type

"""Arrow values as JSON knows them, for people and programs that read lines. Writes nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import date
from typing import Any

import pyarrow as pa


def plain_rows(table: pa.Table) -> Iterator[dict[str, object]]:
    """Each row as an object that JSON knows."""
    kinds = {field.name: field.type for field in table.schema}
    for row in table.to_pylist():
        yield {name: plain_value(value, kinds[name]) for name, value in row.items()}


def plain_value(value: Any, kind: pa.DataType) -> object:
    """A value as JSON knows it: times in ISO 8601, binary in base64, a map as an object."""
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

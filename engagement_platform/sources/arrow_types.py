"""Types of columns as Arrow has them. How people write them is `column_types`."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from engagement_platform.sources.column_types import split

TIMESTAMP = pa.timestamp("us", tz="UTC")

_PLAIN: Mapping[str, pa.DataType] = {
    "string": pa.string(), "long": pa.int64(), "bigint": pa.int64(), "int": pa.int32(), "integer": pa.int32(),
    "short": pa.int16(), "smallint": pa.int16(), "byte": pa.int8(), "tinyint": pa.int8(), "double": pa.float64(),
    "float": pa.float32(), "boolean": pa.bool_(), "date": pa.date32(), "timestamp": TIMESTAMP, "binary": pa.binary(),
}  # fmt: skip


def arrow_type(kind: str) -> pa.DataType:
    """A type as people write it. Raises ValueError.

    >>> arrow_type("struct<a:long,b:array<string>>")
    StructType(struct<a: int64, b: list<element: string>>)
    """
    word, parts = split(kind)
    match word.lower(), parts:
        case plain, () if plain in _PLAIN:
            return _PLAIN[plain]
        case "decimal", (digits, after) if digits.isdecimal() and after.isdecimal():
            return pa.decimal128(int(digits), int(after))
        case "array", (element,):
            return pa.list_(pa.field("element", arrow_type(element)))
        case "map", (key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case "struct", _ if all(":" in part for part in parts):
            return pa.struct([pa.field(name, arrow_type(of)) for name, _, of in (p.partition(":") for p in parts)])
    raise ValueError(f"{kind!r} is no type of a column")

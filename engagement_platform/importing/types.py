"""Types of columns: as people write them (Spark's words), as Arrow has them, and which one holds two others."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from engagement_platform.errors import PlatformError
from engagement_platform.sources.arrow_types import TIMESTAMP, arrow_type

_WORDS: Mapping[pa.DataType, str] = {
    pa.string(): "string", pa.int64(): "long", pa.int32(): "int", pa.int16(): "short", pa.int8(): "byte",
    pa.float64(): "double", pa.float32(): "float", pa.bool_(): "boolean", pa.date32(): "date",
    TIMESTAMP: "timestamp", pa.binary(): "binary",
}  # fmt: skip
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


class UnknownType(PlatformError):
    """A type that there is none of, or that no column of a Delta table has."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what!r} is no type of a column. There are {', '.join(sorted(set(_WORDS.values())))}, decimal(p,s), "
            "array<type>, map<type,type> and struct<name:type,...>. Nothing was written."
        )


def parsed(text: str) -> pa.DataType:
    """A type as people write it. Raises UnknownType.

    >>> parsed("struct<a:long,b:array<string>>")
    StructType(struct<a: int64, b: list<element: string>>)
    """
    try:
        return arrow_type(text)
    except ValueError:
        raise UnknownType(text) from None


def words(kind: pa.DataType) -> str:
    """A type as people write it; of what `plain` returns. Raises UnknownType."""
    if kind in _WORDS:
        return _WORDS[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{words(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{words(kind.key_type)},{words(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{words(field.type)}' for field in kind)}>"
    raise UnknownType(str(kind))


def plain(kind: pa.DataType) -> pa.DataType:  # noqa: PLR0911
    """The type of a Delta table's column that holds all values of an Arrow type. Raises UnknownType.

    Times get microseconds and UTC, which is also what times without a zone are taken to be in.
    """
    if pa.types.is_null(kind) or pa.types.is_time(kind) or _is_text(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return TIMESTAMP
    if pa.types.is_date(kind):
        return pa.date32()
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if kind == pa.float16():
        return pa.float32()
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if kind in _WORDS or pa.types.is_decimal(kind):
        return kind
    raise UnknownType(str(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def holds(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType:  # noqa: PLR0911
    """The narrowest type that holds two plain ones; text when nothing else does. None: nothing is known of it."""
    if one is None or other is None or one == other:
        return one or other or pa.string()
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        names = dict.fromkeys([*(field.name for field in one), *(field.name for field in other)])
        kinds = [{field.name: field.type for field in each} for each in (one, other)]
        return pa.struct([pa.field(name, holds(kinds[0].get(name), kinds[1].get(name))) for name in names])
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(pa.field("element", holds(one.value_type, other.value_type)))
    if one in _INTEGERS and other in _INTEGERS:
        return max(one, other, key=_INTEGERS.index)
    numbers = (*_INTEGERS, pa.float32(), pa.float64())
    if one in numbers and other in numbers:
        return pa.float64()
    if {one, other} == {pa.date32(), TIMESTAMP}:
        return TIMESTAMP
    return pa.string()

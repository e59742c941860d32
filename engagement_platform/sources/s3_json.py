"""JSON values as Arrow columns, by the strict rules of `values`: a value of another kind makes the record a bad one.

Types in, functions out; which bytes are a record is `s3_formats`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from engagement_platform.sources.messages import DecodingLimits, Reason
from engagement_platform.sources.strict_json import JsonObject, Refused, objects_parser
from engagement_platform.sources.values import (
    Reader,
    array_reader,
    integer_reader,
    map_reader,
    read_text,
    struct_reader,
    value_reader,
)

MAX_DEPTH = 500
"""Of a record. Python's parser takes about 1,000 levels, by how deep its caller is."""
_ANY_TIME = DecodingLimits(earliest=datetime.min.replace(tzinfo=UTC), max_ahead=timedelta.max)


class NotInJson(Exception):
    """A type of which JSON has no values."""


def record_reader(fields: Iterable[pa.Field], max_bytes: int) -> Callable[[bytes], Iterator[JsonObject]]:
    """A function from a line to the columns of the objects in it, by name; absent and null are null.

    It raises Refused. Timestamps are ISO 8601 with an offset, timestamps without zone without one; binary is Base64;
    decimals are texts, or numbers of at most 15 digits. Raises NotInJson when JSON cannot fill a type.
    """
    read, parse = _struct(fields), objects_parser(max_bytes, MAX_DEPTH)
    return lambda line: (read(record, "") for record in parse(line))


def _struct(fields: Iterable[pa.Field]) -> Reader:
    return struct_reader({field.name: _nullable(field) for field in fields})


def _nullable(field: pa.Field) -> Reader:
    read = _reader(field.type)

    def read_or_null(value: object, name: str) -> object:
        if value is None and not field.nullable:
            raise Refused(Reason.MISSING_FIELD, name)
        return None if value is None else read(value, name)

    return read_or_null


def _reader(kind: pa.DataType) -> Reader:
    """Reads values, never null, of a type."""
    for matches, make in _READERS:
        if matches(kind):
            return make(kind)
    raise NotInJson


def _plain(name: str) -> Reader:
    return value_reader(name, _ANY_TIME, datetime.now(UTC))


def _floating(kind: pa.DataType) -> Reader:
    read = _plain("double")
    if kind != pa.float32():
        return read

    def read_single(value: object, name: str) -> float:
        number: float = read(value, name)
        try:
            struct.pack("<f", number)
        except OverflowError:
            raise Refused(Reason.NUMBER_OUT_OF_RANGE, name) from None
        return number

    return read_single


def _map(kind: pa.DataType) -> Reader:
    if not pa.types.is_string(kind.key_type):
        raise NotInJson
    return map_reader(_nullable(kind.item_field))


def _base64(value: object, name: str) -> bytes:
    try:
        return base64.b64decode(read_text(value, name), validate=True)
    except ValueError:
        raise Refused(Reason.WRONG_TYPE, name) from None


def _local_time(value: object, name: str) -> datetime:
    try:
        time = datetime.fromisoformat(read_text(value, name))
    except ValueError:
        raise Refused(Reason.BAD_TIME, name) from None
    if time.tzinfo is not None:
        raise Refused(Reason.BAD_TIME, name)
    return time


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Reader]], ...] = (
    (pa.types.is_string, lambda _: _plain("string")),
    (pa.types.is_boolean, lambda _: _plain("boolean")),
    (pa.types.is_floating, _floating),
    (pa.types.is_date32, lambda _: _plain("date")),
    (pa.types.is_timestamp, lambda kind: _plain("timestamp") if kind.tz else _local_time),
    (pa.types.is_decimal, lambda kind: _plain(f"decimal({kind.precision},{kind.scale})")),
    (pa.types.is_integer, lambda kind: integer_reader(kind.bit_width)),
    (pa.types.is_binary, lambda _: _base64),
    (pa.types.is_list, lambda kind: array_reader(_nullable(kind.value_field))),
    (pa.types.is_map, _map),
    (pa.types.is_struct, _struct),
)

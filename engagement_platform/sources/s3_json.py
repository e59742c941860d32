"""JSON values as Arrow columns, by the strict rules of `values`: a value of another kind makes the record a bad one.

Types in, functions out; which bytes are a record is `s3_formats`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pyarrow as pa

from engagement_platform.sources.messages import DecodingLimits, Reason
from engagement_platform.sources.strict_json import JsonObject, Refused, objects_parser
from engagement_platform.sources.values import Reader, value_reader

T = TypeVar("T")

MAX_DEPTH = 500
"""Of a record. Python's parser takes about 1,000 levels, by how deep its caller is."""
_ANY_TIME = DecodingLimits(earliest=datetime.min.replace(tzinfo=UTC), max_ahead=timedelta.max)


def record_reader(fields: list[pa.Field], max_bytes: int) -> Callable[[bytes], Iterator[JsonObject]] | None:
    """A function from a line to the columns of the objects in it, by name; absent and null are null.

    It raises Refused. None when JSON cannot fill a type. Timestamps are ISO 8601 with an offset, timestamps without
    zone without one; binary is Base64; decimals are texts, or numbers of at most 15 digits.
    """
    read, parse = _struct(fields), objects_parser(max_bytes, MAX_DEPTH)
    if read is None:
        return None
    return lambda line: (read(record, "") for record in parse(line))


def _reader(kind: pa.DataType) -> Reader | None:
    """Reads values, never null, for a type; None for types that JSON cannot fill."""
    make = next((make for matches, make in _READERS if matches(kind)), None)
    return None if make is None else make(kind)


def _plain(name: str) -> Reader:
    return value_reader(name, _ANY_TIME, datetime.now(UTC))


def _nullable(field: pa.Field) -> Reader | None:
    read = _reader(field.type)
    if read is None:
        return None

    def read_or_null(value: object, name: str) -> object:
        if value is None and not field.nullable:
            raise Refused(Reason.MISSING_FIELD, name)
        return None if value is None else read(value, name)

    return read_or_null


def _struct(fields: list[pa.Field]) -> Callable[[object, str], JsonObject] | None:
    readers = {field.name: read for field in fields if (read := _nullable(field)) is not None}
    if len(readers) < len(fields):
        return None

    def read_object(value: object, name: str) -> JsonObject:
        parsed = _of(dict, value, name)
        return {own: read(parsed.get(own), f"{name}.{own}" if name else own) for own, read in readers.items()}

    return read_object


def _list(kind: pa.DataType) -> Reader | None:
    item = _nullable(kind.value_field)
    return item and (lambda value, name: [item(each, name) for each in _of(list, value, name)])


def _map(kind: pa.DataType) -> Reader | None:
    item = _nullable(kind.item_field) if pa.types.is_string(kind.key_type) else None
    return item and (lambda value, name: [(key, item(each, name)) for key, each in _of(dict, value, name).items()])


def _of(kind: type[T], value: object, name: str) -> T:
    if type(value) is not kind:
        raise Refused(Reason.WRONG_TYPE, name)
    return value


def _integer(kind: pa.DataType) -> Reader:
    limit = 2 ** (kind.bit_width - 1)

    def read(value: object, name: str) -> int:
        number = _of(int, value, name)
        if not -limit <= number < limit:
            raise Refused(Reason.NUMBER_OUT_OF_RANGE, name)
        return number

    return read


def _base64(value: object, name: str) -> bytes:
    try:
        return base64.b64decode(_of(str, value, name), validate=True)
    except ValueError:
        raise Refused(Reason.WRONG_TYPE, name) from None


def _local_time(value: object, name: str) -> datetime:
    try:
        time = datetime.fromisoformat(_of(str, value, name))
    except ValueError:
        raise Refused(Reason.BAD_TIME, name) from None
    if time.tzinfo is not None:
        raise Refused(Reason.BAD_TIME, name)
    return time


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Reader | None]], ...] = (
    (pa.types.is_string, lambda _: _plain("string")),
    (pa.types.is_boolean, lambda _: _plain("boolean")),
    (pa.types.is_floating, lambda _: _plain("double")),
    (pa.types.is_date32, lambda _: _plain("date")),
    (pa.types.is_timestamp, lambda kind: _plain("timestamp") if kind.tz else _local_time),
    (pa.types.is_decimal, lambda kind: _plain(f"decimal({kind.precision},{kind.scale})")),
    (pa.types.is_integer, _integer),
    (pa.types.is_binary, lambda _: _base64),
    (pa.types.is_list, _list),
    (pa.types.is_map, _map),
    (pa.types.is_struct, lambda kind: _struct([kind.field(number) for number in range(kind.num_fields)])),
)

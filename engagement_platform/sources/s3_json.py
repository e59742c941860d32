"""JSON values as Arrow columns, strictly: a value of another kind than its column makes the record a bad one.

Types in, functions out; which bytes are a record is `s3_formats`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation

import pyarrow as pa

Converter = Callable[[object], object]
_BLANKS = " \t\n\r"


class BadRecord(ValueError):
    """Says what is wrong with a record and where, without any of its content."""

    def __init__(self, what: str, path: tuple[str, ...] = ()) -> None:
        self.what, self.path = what, path
        super().__init__(f"{'.'.join(path)} is {what}" if path else what)


def converter(kind: pa.DataType) -> Converter | None:
    """A function from a parsed JSON value (never null) to what Arrow takes for a type; it raises BadRecord.

    None for types that JSON cannot fill. Timestamps are ISO 8601 with an offset, timestamps without zone without
    one; binary is Base64; decimals are numbers or text.
    """
    for matches, make in _KINDS:
        if matches(kind):
            return make(kind)
    return None


def record_converter(fields: list[pa.Field]) -> Callable[[object], dict[str, object]] | None:
    """A function from a JSON object to its columns by name; absent and null are null. None when a type cannot be."""
    return _struct(fields)


def objects(text: str, *, exact: bool) -> Iterator[object]:
    """The JSON values of a line, one after the other: Firehose puts no line breaks between them unless told to.

    exact: numbers with a fraction as Decimal. Raises BadRecord where a value ends in the middle, or is none.
    """
    decoder = _EXACT if exact else _QUICK
    position, end = _skip(text, 0), len(text)
    while position < end:
        try:
            value, position = decoder.raw_decode(text, position)
        except BadRecord:
            raise
        except RecursionError:
            raise BadRecord("nested too deep") from None
        except ValueError:
            raise BadRecord("no JSON") from None
        yield value
        position = _skip(text, position)


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _BLANKS:
        position += 1
    return position


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadRecord("a key twice in one object")
    return found


def _no_constant(_name: str) -> object:
    raise BadRecord("NaN or Infinity, which are no JSON")


_QUICK = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
_EXACT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=Decimal)


def _text(value: object) -> object:
    if type(value) is not str:
        raise BadRecord("no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRecord("half of a surrogate pair") from None
    return value


def _boolean(value: object) -> object:
    if type(value) is not bool:
        raise BadRecord("neither true nor false")
    return value


def _float(value: object) -> object:
    if type(value) not in (int, float, Decimal):
        raise BadRecord("no number")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise BadRecord("a number out of range") from None


def _integer(bits: int) -> Converter:
    limit = 2 ** (bits - 1)

    def convert(value: object) -> object:
        if type(value) is not int:
            raise BadRecord("no whole number")
        if not -limit <= value < limit:
            raise BadRecord("a number out of range")
        return value

    return convert


def _decimal(precision: int, scale: int) -> Converter:
    def convert(value: object) -> object:
        if type(value) not in (int, Decimal, str):
            raise BadRecord("no decimal number")
        try:
            number = Decimal(value)  # type: ignore[arg-type]
        except InvalidOperation:
            raise BadRecord("no decimal number") from None
        if not number.is_finite() or number != round(number, scale) or abs(number) >= 10 ** (precision - scale):
            raise BadRecord("a number out of range")
        return number

    return convert


def _time(value: object) -> datetime:
    if type(value) is not str:
        raise BadRecord("no time")
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise BadRecord("no time") from None


def _instant(value: object) -> object:
    time = _time(value)
    if time.tzinfo is None:
        raise BadRecord("a time without an offset")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise BadRecord("a time out of range") from None


def _local_time(value: object) -> object:
    time = _time(value)
    if time.tzinfo is not None:
        raise BadRecord("a time with an offset")
    return time


def _date(value: object) -> object:
    try:
        return date.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise BadRecord("no date") from None


def _bytes(value: object) -> object:
    try:
        return base64.b64decode(value, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        raise BadRecord("no Base64") from None


def _nullable(convert: Converter, field: pa.Field, value: object) -> object:
    if value is None:
        if not field.nullable:
            raise BadRecord("null or missing")
        return None
    return convert(value)


def _list(item: Converter, field: pa.Field) -> Converter:
    def convert(value: object) -> object:
        if type(value) is not list:
            raise BadRecord("no array")
        return [_nullable(item, field, each) for each in value]

    return convert


def _map(item: Converter, field: pa.Field) -> Converter:
    def convert(value: object) -> object:
        if type(value) is not dict:
            raise BadRecord("no object")
        return [(_text(key), _nullable(item, field, each)) for key, each in value.items()]

    return convert


def _struct(fields: list[pa.Field]) -> Callable[[object], dict[str, object]] | None:
    convert_field = [(field, converter(field.type)) for field in fields]
    known = [(field, convert) for field, convert in convert_field if convert is not None]
    if len(known) < len(fields):
        return None

    def convert(value: object) -> dict[str, object]:
        if type(value) is not dict:
            raise BadRecord("no object")
        made = {}
        for field, convert_value in known:
            try:
                made[field.name] = _nullable(convert_value, field, value.get(field.name))
            except BadRecord as bad:
                raise BadRecord(bad.what, (field.name, *bad.path)) from None
        return made

    return convert


def _of_list(kind: pa.DataType) -> Converter | None:
    item = converter(kind.value_type)
    return None if item is None else _list(item, kind.value_field)


def _of_map(kind: pa.DataType) -> Converter | None:
    item = converter(kind.item_type)
    return None if item is None or not pa.types.is_string(kind.key_type) else _map(item, kind.item_field)


_KINDS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Converter | None]]] = [
    (pa.types.is_string, lambda _kind: _text),
    (pa.types.is_boolean, lambda _kind: _boolean),
    (pa.types.is_floating, lambda _kind: _float),
    (pa.types.is_date32, lambda _kind: _date),
    (pa.types.is_binary, lambda _kind: _bytes),
    (pa.types.is_integer, lambda kind: _integer(kind.bit_width)),
    (pa.types.is_timestamp, lambda kind: _instant if kind.tz else _local_time),
    (pa.types.is_decimal, lambda kind: _decimal(kind.precision, kind.scale)),
    (pa.types.is_list, _of_list),
    (pa.types.is_map, _of_map),
    (pa.types.is_struct, lambda kind: _struct([kind.field(i) for i in range(kind.num_fields)])),
]

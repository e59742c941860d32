"""The rules of one value of a declared column: from a JSON value to the column's value.

Which columns a message has is `changes` and `records`. Nothing here raises anything but Refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal

from engagement_platform.sources.column_types import fields_of, split
from engagement_platform.sources.decoding import read_date, time_reader
from engagement_platform.sources.messages import DecodingLimits, Reason
from engagement_platform.sources.strict_json import Refused

_LONG = range(-(2**63), 2**63)
_DECIMAL = re.compile(r"-?(\d+)(?:\.(\d+))?", re.ASCII)
_EXACT_DIGITS = 15
"""A double gives so many digits back as they were written."""

Reader = Callable[[object, str], object]
"""From a JSON value and the name of its field to the column's value; raises Refused."""
Count = Callable[[int], None]
"""Called with how many fields of an object nobody declared."""


def value_reader(
    kind: str, limits: DecodingLimits, ingestion_ts: datetime, on_unknown: Count = lambda _fields: None
) -> Reader:
    """Reads values of a type; null is for the caller, within a nested one it stays null.

    Times within the limits, both ends included. on_unknown: called for each struct.
    """
    word, parts = split(kind)

    def nested(part: str) -> Reader:
        return _or_null(value_reader(part, limits, ingestion_ts, on_unknown))

    match word:
        case "decimal":
            return _decimal(*map(int, parts))
        case "array":
            return _array(nested(parts[0]))
        case "map":
            return _map(nested(parts[1]))
        case "struct":
            return _struct({name: nested(of) for name, of in fields_of(parts).items()}, on_unknown)
    return {
        "string": _exactly(str),
        "boolean": _exactly(bool),
        "long": _long,
        "double": _double,
        "date": read_date,
        "timestamp": time_reader(limits, ingestion_ts),
    }[word]


def _or_null(read: Reader) -> Reader:
    return lambda value, field: None if value is None else read(value, field)


def _decimal(precision: int, scale: int) -> Reader:
    """From text, a whole number, or another number of at most 15 digits: JSON's are doubles."""

    def read(value: object, field: str) -> Decimal:
        if type(value) not in (str, int, float):
            raise Refused(Reason.WRONG_TYPE, field)
        text = f"{Decimal(repr(value)):f}" if type(value) is float else str(value)
        found = _DECIMAL.fullmatch(text)
        if found is None:
            raise Refused(Reason.BAD_DECIMAL, field)
        whole, after = found[1].lstrip("0"), (found[2] or "").rstrip("0")
        digits = len(whole) + len(after)
        if len(after) > scale or len(whole) > precision - scale or (type(value) is float and digits > _EXACT_DIGITS):
            raise Refused(Reason.BAD_DECIMAL, field)
        return Decimal(f"{'-' if text[0] == '-' else ''}{whole or 0}.{after}")

    return read


def _array(element: Reader) -> Reader:
    def read(value: object, field: str) -> list[object]:
        if type(value) is not list:
            raise Refused(Reason.WRONG_TYPE, field)
        return [element(each, field) for each in value]

    return read


def _map(entry: Reader) -> Reader:
    """In the order of keys, since JSON objects have none: two that say the same come out the same."""

    def read(value: object, field: str) -> dict[str, object]:
        if type(value) is not dict:
            raise Refused(Reason.WRONG_TYPE, field)
        return {key: entry(value[key], field) for key in sorted(value)}

    return read


def _struct(readers: Mapping[str, Reader], on_unknown: Count) -> Reader:
    def read(value: object, field: str) -> dict[str, object]:
        if type(value) is not dict:
            raise Refused(Reason.WRONG_TYPE, field)
        on_unknown(len(value.keys() - readers.keys()))
        return {name: of(value.get(name), f"{field}.{name}") for name, of in readers.items()}

    return read


def _exactly(kind: type) -> Reader:
    def read(value: object, field: str) -> object:
        if type(value) is not kind:
            raise Refused(Reason.WRONG_TYPE, field)
        return value

    return read


def _long(value: object, field: str) -> int:
    if type(value) is not int:
        raise Refused(Reason.WRONG_TYPE, field)
    if value not in _LONG:
        raise Refused(Reason.NUMBER_OUT_OF_RANGE, field)
    return value


def _double(value: object, field: str) -> float:
    if type(value) is not int and type(value) is not float:
        raise Refused(Reason.WRONG_TYPE, field)
    return float(value)

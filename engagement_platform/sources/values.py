"""The rules of one value of a declared column: from what JSON says to what the column holds.

Which columns a message has is `changes` and `records`. Nothing here raises anything but Refused.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from engagement_platform.sources.decoding import read_date, time_reader
from engagement_platform.sources.messages import DecodingLimits, Reason, ValueType
from engagement_platform.sources.strict_json import Refused

_LONG = range(-(2**63), 2**63)

Reader = Callable[[object, str], object]
"""From a JSON value and the name of its field to the column's value; raises Refused."""


def value_reader(kind: ValueType, limits: DecodingLimits, ingestion_ts: datetime) -> Reader:
    """Reads values of a type; null is for the caller. Times within the limits, both ends included."""
    return {
        "string": _exactly(str),
        "boolean": _exactly(bool),
        "long": _long,
        "double": _double,
        "date": read_date,
        "timestamp": time_reader(limits, ingestion_ts),
    }[kind]


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

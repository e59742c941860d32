"""The rules of one value: from a JSON value to the value of a column, by its type. Raises nothing but Refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from engagement_platform.sources.column_types import fields_of, split
from engagement_platform.sources.messages import DecodingLimits, Reason
from engagement_platform.sources.strict_json import JsonObject, Refused

_DECIMAL = re.compile(r"-?(\d+)(?:\.(\d+))?", re.ASCII)
_EXACT_DIGITS = 15
"""A double gives so many digits back as they were written."""

# Unicode category Cc, all of it.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Hours end at 23 and seconds at 59 here, because fromisoformat takes 24:00 in later Pythons only.
ISO_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?"
    r"(Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?",
    re.ASCII,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)

MAX_VERSION = 2**63 - 1
RESERVED_ORGANIZATION_ID = "__HIVE_DEFAULT_PARTITION__"

Reader = Callable[[object, str], Any]
"""From a JSON value that is not null and the name of its field to the column's value; raises Refused."""
Count = Callable[[int], None]
"""Called with how many fields of an object nobody declared."""


def exactly(kind: type, value: object, field: str) -> Any:
    """A value of just this JSON type; true is no number."""
    if type(value) is not kind:
        raise Refused(Reason.WRONG_TYPE, field)
    return value


read_text: Reader = partial(exactly, str)
read_object: Reader = partial(exactly, dict)


def value_reader(kind: str, limits: DecodingLimits, ingestion_ts: datetime, on_unknown: Count | None = None) -> Reader:
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
            return array_reader(nested(parts[0]))
        case "map":
            return map_reader(nested(parts[1]))
        case "struct":
            return struct_reader({name: nested(of) for name, of in fields_of(parts).items()}, on_unknown)
    scalars: dict[str, Reader] = {
        "string": read_text,
        "boolean": partial(exactly, bool),
        "long": integer_reader(64),
        "double": _double,
        "date": read_date,
        "timestamp": time_reader(limits, ingestion_ts),
    }
    return scalars[word]


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


def array_reader(element: Reader) -> Reader:
    """element: takes null, too; so do the readers of entries and fields below."""
    return lambda value, field: [element(each, field) for each in exactly(list, value, field)]


def map_reader(entry: Reader) -> Reader:
    """In the order of keys, since JSON objects have none: equal maps become equal values."""
    return lambda value, field: {key: entry(of, field) for key, of in sorted(read_object(value, field).items())}


def struct_reader(readers: Mapping[str, Reader], on_unknown: Count | None = None) -> Reader:
    """field: of the object, empty for a whole record."""

    def read(value: object, field: str) -> dict[str, object]:
        fields = read_object(value, field)
        if on_unknown is not None:
            on_unknown(len(fields.keys() - readers.keys()))
        return {name: of(fields.get(name), f"{field}.{name}" if field else name) for name, of in readers.items()}

    return read


def integer_reader(bits: int) -> Reader:
    """Whole numbers that a signed integer of so many bits holds."""
    limit = 2 ** (bits - 1)

    def read(value: object, field: str) -> int:
        number: int = exactly(int, value, field)
        if not -limit <= number < limit:
            raise Refused(Reason.NUMBER_OUT_OF_RANGE, field)
        return number

    return read


def _double(value: object, field: str) -> float:
    if type(value) is not int and type(value) is not float:
        raise Refused(Reason.WRONG_TYPE, field)
    return float(value)


def wrong_or_missing(value: object, field: str) -> Refused:
    """Why a field that is required does not have its type."""
    return Refused(Reason.MISSING_FIELD if value is None else Reason.WRONG_TYPE, field)


def subject_in(event: Mapping[str, Any], path: Sequence[str]) -> object:
    """What stands where an event says whom it is about, a whole number as its digits; None where nothing does."""
    found: object = event
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return str(found) if type(found) is int else found


def read_id(value: object, field: str, max_length: int) -> str:
    """An id, verbatim: 1 to max_length code points, no control characters, no blank ends, otherwise any character."""
    if type(value) is not str:
        raise wrong_or_missing(value, field)
    # Printable text has no control character, and the ASCII space is the only blank in it: nearly every id ends here.
    if value.isprintable() and 0 < len(value) <= max_length and value[0] != " " and value[-1] != " ":
        return value
    if not value:
        raise Refused(Reason.EMPTY_ID, field)
    if len(value) > max_length:
        raise Refused(Reason.ID_TOO_LONG, field)
    if _CONTROL.search(value):
        raise Refused(Reason.CONTROL_CHARACTER, field)
    # No JSON brings one in (`strict_json`), but the bytes of a command line do.
    if _SURROGATE.search(value):
        raise Refused(Reason.UNPAIRED_SURROGATE, field)
    if value.strip() != value:
        raise Refused(Reason.BLANK_END, field)
    return value


def read_partition_id(value: object, field: str, max_length: int) -> str:
    """An id that may partition a table: it is not the value that Hive partitioning reserves."""
    checked = read_id(value, field, max_length)
    if checked == RESERVED_ORGANIZATION_ID:
        raise Refused(Reason.RESERVED_ID, field)
    return checked


def read_version(value: object, field: str) -> int:
    """A whole number from 1 on."""
    # type() and not isinstance(): true is an int to Python.
    if type(value) is not int:
        raise wrong_or_missing(value, field)
    if not 1 <= value <= MAX_VERSION:
        raise Refused(Reason.BAD_VERSION, field)
    return value


def read_texts(value: object, field: str, *, nulls: bool = False) -> JsonObject:
    """Strings by name. nulls: a value may be null."""
    for text in read_object(value, field).values():
        if text is not None or not nulls:
            read_text(text, field)
    return value  # type: ignore[return-value]


def time_reader(limits: DecodingLimits, ingestion_ts: datetime) -> Callable[[object, str], datetime]:
    """A function from a field's value to a UTC time within the limits, both ends included."""
    if ingestion_ts.tzinfo is None:
        raise ValueError("ingestion_ts has no offset; the manifest's is UTC")
    earliest = limits.earliest.replace(tzinfo=limits.earliest.tzinfo or UTC).astimezone(UTC)
    try:
        latest = ingestion_ts.astimezone(UTC) + limits.max_ahead
    except OverflowError:
        latest = datetime.max.replace(tzinfo=UTC)
    matches = ISO_TIME.fullmatch

    def read_time(value: object, field: str) -> datetime:
        if type(value) is not str:
            raise wrong_or_missing(value, field)
        match = matches(value)
        if match is None:
            raise Refused(Reason.BAD_TIME, field)
        try:
            # Cuts what is finer than microseconds.
            time = datetime.fromisoformat(value)
        except ValueError:
            raise Refused(Reason.BAD_TIME, field) from None
        if time.tzinfo is not UTC:
            if time.tzinfo is None:
                raise Refused(Reason.TIME_WITHOUT_OFFSET, field)
            try:
                time = time.astimezone(UTC)
            except OverflowError:
                raise Refused(Reason.TIME_OUT_OF_RANGE, field) from None
        if not earliest <= time <= latest:
            raise Refused(Reason.TIME_OUT_OF_RANGE, field)
        return time

    return read_time


def read_date(value: object, field: str) -> date:
    """A day such as 2026-01-31."""
    text: str = exactly(str, value, field)
    try:
        if _DATE.fullmatch(text) is not None:
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise Refused(Reason.BAD_DATE, field)

"""The rules of one message: which fields an engagement and a mutation request must have, and what they may hold.

Bytes to a JSON object is `strict_json`; whole Arrow batches are `decoded_batches`. Nothing here raises on any bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, TypeVar

from engagement_platform.sources.messages import DecodingLimits, Engagement, MutationRequest, Reason, Rejection
from engagement_platform.sources.strict_json import JsonObject, Refused, object_parser

Decoded = TypeVar("Decoded", bound=tuple[Any, ...])
"""The values of a message's columns; the first is how many fields nobody declared."""

MAX_VERSION = 2**63 - 1
RESERVED_ORGANIZATION_ID = "__HIVE_DEFAULT_PARTITION__"

_REQUEST_FIELDS = frozenset(MutationRequest._fields) - {"unknown_fields", "set_null"}
_RANGE = ("engagement_date_from", "engagement_date_to")
# Operation -> the fields that it uses, each with the reason to refuse a request that does not have it.
_OPERATIONS: dict[str, dict[str, Reason | None]] = {
    "CONVERT": {
        "from_id": Reason.MISSING_FROM_ID,
        "to_id": Reason.MISSING_TO_ID,
        **dict.fromkeys(("engagement_id", *_RANGE)),
    },
    "DELETE": dict.fromkeys(("from_id", "engagement_id", *_RANGE)),
    "RENAME": {"from_id": Reason.MISSING_FROM_ID, "name": Reason.MISSING_NAME},
    "UPDATE": {
        "engagement_id": Reason.MISSING_ENGAGEMENT_ID,
        **dict.fromkeys(("type", "channel", "subject", "attributes")),
    },
}
# Unicode category Cc, all of it.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Hours end at 23 and seconds at 59 here, because fromisoformat takes 24:00 in later Pythons only.
_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?"
    r"(Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?",
    re.ASCII,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def engagement_decoder(
    limits: DecodingLimits, ingestion_ts: datetime
) -> Callable[[bytes | None], Engagement | Rejection]:
    """A function from a message of the topic `engagements` to its engagement, or to why it is none.

    Never raises on any bytes. ingestion_ts: the manifest's, with an offset; times may lie up to limits.max_ahead after.
    """
    read_time = time_reader(limits, ingestion_ts)
    id_length = limits.max_id_length

    def read(fields: JsonObject) -> Engagement:
        # pop: what is left in the end are the fields that nobody declared.
        take = fields.pop
        engagement_id = read_id(take("engagement_id", None), "engagement_id", id_length)
        organization_id = read_partition_id(take("organization_id", None), "organization_id", id_length)
        person_id = read_id(take("person_id", None), "person_id", id_length)
        engagement_ts = read_time(take("engagement_ts", None), "engagement_ts")
        kind = take("type", None)
        if type(kind) is not str:
            raise wrong_or_missing(kind, "type")
        person_name = _optional_text(take("person_name", None), "person_name")
        version = take("version", None)
        version = 1 if version is None else read_version(version, "version")
        channel = _optional_text(take("channel", None), "channel")
        subject = _optional_text(take("subject", None), "subject")
        attributes = _attributes(take("attributes", None), "attributes")
        # Positional, in the declared order: keywords cost a tenth of the whole decoding.
        return Engagement(
            len(fields),
            organization_id,
            engagement_ts.date(),
            engagement_ts,
            engagement_id,
            person_id,
            person_name,
            version,
            kind,
            channel,
            subject,
            attributes,
        )

    return decoder_of(limits, respelled(limits, read))


def mutation_request_decoder(
    limits: DecodingLimits, ingestion_ts: datetime
) -> Callable[[bytes | None], MutationRequest | Rejection]:
    """The same for messages of the topic `mutation-requests`."""
    read_time = time_reader(limits, ingestion_ts)
    id_length = limits.max_id_length
    readers: dict[str, Callable[[object, str], Any]] = {
        **dict.fromkeys(("from_id", "to_id", "engagement_id"), partial(read_id, max_length=id_length)),
        **dict.fromkeys(("name", "type", "channel", "subject"), _optional_text),
        "attributes": partial(_attributes, nulls=True),
        **dict.fromkeys(_RANGE, read_date),
    }

    def read(fields: JsonObject) -> MutationRequest:
        request_id = read_id(fields.get("request_id"), "request_id", id_length)
        organization_id = read_partition_id(fields.get("organization_id"), "organization_id", id_length)
        operation = fields.get("operation")
        if type(operation) is not str:
            raise wrong_or_missing(operation, "operation")
        if operation not in _OPERATIONS:
            raise Refused(Reason.UNKNOWN_OPERATION, "operation")
        execution_ts = read_time(fields.get("execution_ts"), "execution_ts")
        values: dict[str, Any] = dict.fromkeys(MutationRequest._fields)
        for name, missing in _OPERATIONS[operation].items():
            if fields.get(name) is not None:
                values[name] = readers[name](fields[name], name)
            elif missing is not None:
                raise Refused(missing, name)
        _check_together(operation, values)
        if operation == "UPDATE":
            # A null clears channel or subject, so it differs from a field that is absent; it leaves the type.
            values["set_null"] = [name for name in ("channel", "subject") if name in fields and fields[name] is None]
        values |= {"unknown_fields": len(fields.keys() - _REQUEST_FIELDS), "request_id": request_id}
        values |= {"organization_id": organization_id, "operation": operation, "execution_ts": execution_ts}
        return MutationRequest(**values)

    return decoder_of(limits, respelled(limits, read))


def _check_together(operation: str, values: Mapping[str, Any]) -> None:
    """Rules over more than one field of a request."""
    if operation == "CONVERT" and values["from_id"] == values["to_id"]:
        raise Refused(Reason.SELF_CONVERSION)
    if operation == "DELETE" and values["from_id"] is None and values["engagement_id"] is None:
        raise Refused(Reason.NO_TARGET)
    first, last = (values[name] for name in _RANGE)
    if first is not None and last is not None and first > last:
        raise Refused(Reason.REVERSED_RANGE)


def decoder_of(
    limits: DecodingLimits, read: Callable[[JsonObject], Decoded]
) -> Callable[[bytes | None], Decoded | Rejection]:
    """From bytes to what `read` makes of their object, or to why it is refused."""
    parse = object_parser(limits.max_bytes, limits.max_depth)
    refuse_unknown = limits.unknown_fields == "quarantine"

    def decode(value: bytes | None) -> Decoded | Rejection:
        try:
            decoded = read(parse(value))
            if refuse_unknown and decoded[0]:
                raise Refused(Reason.UNKNOWN_FIELDS)
        except Refused as refused:
            return refused.rejection
        return decoded

    return decode


def respelled(limits: DecodingLimits, read: Callable[[JsonObject], Decoded]) -> Callable[[JsonObject], Decoded]:
    """`read` for messages that may spell fields otherwise."""
    if not limits.aliases:
        return read

    def read_respelled(fields: JsonObject) -> Decoded:
        for alias, field in limits.aliases:
            if alias in fields:
                if field in fields:
                    raise Refused(Reason.DUPLICATE_KEY)
                fields[field] = fields.pop(alias)
        return read(fields)

    return read_respelled


def wrong_or_missing(value: object, field: str) -> Refused:
    """Why a field that is required does not have its type."""
    return Refused(Reason.MISSING_FIELD if value is None else Reason.WRONG_TYPE, field)


def read_id(value: object, field: str, max_length: int) -> str:
    """An id, verbatim: 1 to max_length code points, no control characters, no blank ends, otherwise any Unicode."""
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
    if value.strip() != value:
        raise Refused(Reason.BLANK_END, field)
    return value


def read_partition_id(value: object, field: str, max_length: int) -> str:
    """An id that may partition a table: it is not the value that Hive partitioning reserves."""
    checked = read_id(value, field, max_length)
    if checked == RESERVED_ORGANIZATION_ID:
        raise Refused(Reason.RESERVED_ID, field)
    return checked


def _optional_text(value: object, field: str) -> str | None:
    if value is None or type(value) is str:
        return value
    raise Refused(Reason.WRONG_TYPE, field)


def read_version(value: object, field: str) -> int:
    """A whole number from 1 on, required."""
    # type() and not isinstance(): true is an int to Python.
    if type(value) is not int:
        raise wrong_or_missing(value, field)
    if not 1 <= value <= MAX_VERSION:
        raise Refused(Reason.BAD_VERSION, field)
    return value


def _attributes(value: object, field: str, *, nulls: bool = False) -> dict[str, Any] | None:
    """Texts by name. nulls: a value may be null."""
    if value is None:
        return None
    if type(value) is not dict:
        raise Refused(Reason.WRONG_TYPE, field)
    for entry in value.values():
        if type(entry) is not str and not (nulls and entry is None):
            raise Refused(Reason.WRONG_TYPE, field)
    return value


def time_reader(limits: DecodingLimits, ingestion_ts: datetime) -> Callable[[object, str], datetime]:
    """A function from a field's value to a UTC time within the limits, both ends included."""
    if ingestion_ts.tzinfo is None:
        raise ValueError("ingestion_ts has no offset; the manifest's is UTC")
    earliest = limits.earliest.replace(tzinfo=limits.earliest.tzinfo or UTC).astimezone(UTC)
    try:
        latest = ingestion_ts.astimezone(UTC) + limits.max_ahead
    except OverflowError:
        latest = datetime.max.replace(tzinfo=UTC)
    matches = _TIME.fullmatch

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


def read_date(value: object, field: str) -> date | None:
    """A day such as 2026-01-31; None for null."""
    if value is None:
        return None
    if type(value) is not str:
        raise Refused(Reason.WRONG_TYPE, field)
    if _DATE.fullmatch(value) is None:
        raise Refused(Reason.BAD_DATE, field)
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise Refused(Reason.BAD_DATE, field) from None

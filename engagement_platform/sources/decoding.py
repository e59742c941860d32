"""The rules of messages: engagements, mutation requests, records of declared streams and changes of declared entities.

`strict_json` parses the bytes, `values` reads declared types, `decoded_batches` decodes whole Arrow batches. Nothing
here raises on any bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

from engagement_platform.sources.messages import (
    ChangeShape,
    DecodingLimits,
    Engagement,
    MutationRequest,
    Reason,
    RecordShape,
    Rejection,
)
from engagement_platform.sources.strict_json import JsonObject, Refused, object_parser
from engagement_platform.sources.values import (
    RESERVED_ORGANIZATION_ID,
    Reader,
    exactly,
    read_date,
    read_id,
    read_object,
    read_partition_id,
    read_text,
    read_texts,
    read_version,
    time_reader,
    value_reader,
)

Decoded = TypeVar("Decoded", bound=tuple[Any, ...])
"""The values of a message's columns; the first is how many fields nobody declared."""
Decode = Callable[[bytes | None], tuple[Any, ...] | Rejection]
"""From a message to its columns, or to why it has none; never raises on any bytes."""

OPS = ("INSERT", "UPDATE", "DELETE")
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


class Field(NamedTuple):
    """A field of a message: its reader, and why a message without it is refused (None: it is optional)."""

    name: str
    read: Reader
    missing: Reason | None = None


def values_of(fields: Sequence[Field], message: JsonObject) -> list[Any]:
    """The values of the fields, in their order; null is the same as missing. Raises Refused for the first bad one."""
    values = []
    for name, read, missing in fields:
        value = message.get(name)
        if value is not None:
            values.append(read(value, name))
        elif missing is None:
            values.append(None)
        else:
            raise Refused(missing, name)
    return values


def engagement_decoder(
    limits: DecodingLimits, ingestion_ts: datetime
) -> Callable[[bytes | None], Engagement | Rejection]:
    """A function from a message of the topic `engagements` to its engagement, or to why it is none.

    Never raises on any bytes. ingestion_ts: the manifest's, with an offset; times may lie up to limits.max_ahead after.
    """
    id_, required = partial(read_id, max_length=limits.max_id_length), Reason.MISSING_FIELD
    fields = (
        Field("engagement_id", id_, required),
        Field("organization_id", partial(read_partition_id, max_length=limits.max_id_length), required),
        Field("person_id", id_, required),
        Field("engagement_ts", time_reader(limits, ingestion_ts), required),
        Field("type", read_text, required),
        Field("person_name", read_text),
        Field("version", read_version),
        Field("channel", read_text),
        Field("subject", read_text),
        Field("attributes", read_texts),
    )
    known = frozenset(field.name for field in fields)

    def read(message: JsonObject) -> Engagement:
        engagement_id, organization_id, person_id, at, kind, name, version, *content = values_of(fields, message)
        unknown = len(message.keys() - known)
        # Positional, in the order of the columns: keywords cost a tenth of the whole decoding.
        return Engagement(
            unknown, organization_id, at.date(), at, engagement_id, person_id, name, version or 1, kind, *content
        )

    return decoder_of(limits, respelled(limits, read))


def mutation_request_decoder(
    limits: DecodingLimits, ingestion_ts: datetime
) -> Callable[[bytes | None], MutationRequest | Rejection]:
    """The same for messages of the topic `mutation-requests`."""
    id_, required = partial(read_id, max_length=limits.max_id_length), Reason.MISSING_FIELD
    always = (
        Field("request_id", id_, required),
        Field("organization_id", partial(read_partition_id, max_length=limits.max_id_length), required),
        Field("operation", partial(_one_of, _OPERATIONS, Reason.UNKNOWN_OPERATION), required),
        Field("execution_ts", time_reader(limits, ingestion_ts), required),
    )
    readers: dict[str, Reader] = {
        **dict.fromkeys(("from_id", "to_id", "engagement_id"), id_),
        **dict.fromkeys(("name", "type", "channel", "subject"), read_text),
        "attributes": partial(read_texts, nulls=True),
        **dict.fromkeys(_RANGE, read_date),
    }
    used = {of: [Field(n, readers[n], missing) for n, missing in names.items()] for of, names in _OPERATIONS.items()}

    def read(message: JsonObject) -> MutationRequest:
        values: dict[str, Any] = dict.fromkeys(MutationRequest._fields)
        values |= zip((field.name for field in always), values_of(always, message), strict=True)
        operation = values["operation"]
        fields = used[operation]
        values |= zip((field.name for field in fields), values_of(fields, message), strict=True)
        _check_together(operation, values)
        if operation == "UPDATE":
            # A null clears channel or subject, so it differs from a field that is absent; it leaves the type.
            values["set_null"] = [name for name in ("channel", "subject") if name in message and message[name] is None]
        values["unknown_fields"] = len(message.keys() - _REQUEST_FIELDS)
        return MutationRequest(**values)

    return decoder_of(limits, respelled(limits, read))


def record_decoder(shape: RecordShape, limits: DecodingLimits, ingestion_ts: datetime) -> Decode:
    """A function from a message of a declared stream to its columns, or to why it has none.

    Out: unknown_fields, the UTC day of the event time (None where the stream has none), the declared columns.
    """
    nested: list[int] = []
    readers = {name: value_reader(kind, limits, ingestion_ts, nested.append) for name, kind in shape.columns}
    readers |= dict.fromkeys(shape.ids, partial(read_partition_id, max_length=limits.max_id_length))
    needed = dict.fromkeys(shape.required, Reason.MISSING_FIELD)
    fields = [Field(name, readers[name], needed.get(name)) for name, _ in shape.columns]
    time_at = None if shape.event_time is None else [field.name for field in fields].index(shape.event_time)

    def read(message: JsonObject) -> tuple[Any, ...]:
        nested.clear()
        values = values_of(fields, message)
        # In UTC, as every time that is read.
        time = None if time_at is None else values[time_at]
        return len(message.keys() - readers.keys()) + sum(nested), time and time.date(), *values

    return decoder_of(limits, read)


def change_decoder(shape: ChangeShape, limits: DecodingLimits, ingestion_ts: datetime) -> Decode:
    """A function from a message to its change of a declared entity, or to why it is none.

    Out: unknown_fields, key, version, op, the declared columns, and the names of those that the change sets to null
    (None: of none). A column in `set_null` is null whatever `changes` has for it. A DELETE has no columns. Columns that
    nobody declared are unknown fields.
    """
    required = Reason.MISSING_FIELD
    envelope = (
        Field(shape.key, partial(read_id, max_length=limits.max_id_length), required),
        Field(shape.version, read_version, required),
        Field("op", partial(_one_of, OPS, Reason.UNKNOWN_OP), required),
    )
    readers = {name: value_reader(kind, limits, ingestion_ts) for name, kind in shape.columns}
    readers |= {name: partial(_of_partition, readers[name]) for name in shape.partitions}
    fields = [Field(name, read) for name, read in readers.items()]
    changed = (Field("changes", read_object, required), Field("set_null", _names))
    known = {shape.key, shape.version, "op", "changes", "set_null"}

    def read(message: JsonObject) -> tuple[Any, ...]:
        key, version, op = values_of(envelope, message)
        unknown = len(message.keys() - known)
        if op == "DELETE":
            return unknown, key, version, op, *(None for _ in readers), None
        changes, cleared = values_of(changed, message)
        cleared = cleared or set()
        values = values_of(fields, {name: value for name, value in changes.items() if name not in cleared})
        unknown += len(changes.keys() - readers.keys()) + len(cleared - readers.keys())
        return unknown, key, version, op, *values, [name for name in readers if name in cleared] or None

    return decoder_of(limits, read)


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


def _one_of(words: Collection[str], otherwise: Reason, value: object, field: str) -> str:
    if (word := read_text(value, field)) not in words:
        raise Refused(otherwise, field)
    return str(word)


def _names(value: object, field: str) -> set[str]:
    return {read_text(name, field) for name in exactly(list, value, field)}


def _of_partition(read: Reader, value: object, field: str) -> object:
    if value == "":
        raise Refused(Reason.EMPTY_ID, field)
    if value == RESERVED_ORGANIZATION_ID:
        raise Refused(Reason.RESERVED_ID, field)
    return read(value, field)

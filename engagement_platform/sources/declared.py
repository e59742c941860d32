"""The rules of messages with declared columns: records of a stream, and changes of an entity.

Bytes to a JSON object is `strict_json`, values of a type are `values`. Nothing here raises on any bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from engagement_platform.sources.decoding import (
    decoder_of,
    read_id,
    read_partition_id,
    read_version,
    wrong_or_missing,
)
from engagement_platform.sources.messages import ChangeShape, DecodingLimits, Reason, RecordShape, Rejection
from engagement_platform.sources.strict_json import JsonObject, Refused
from engagement_platform.sources.values import Reader, value_reader

OPERATIONS = ("INSERT", "UPDATE", "DELETE")
_FIELDS = frozenset({"op", "changes", "set_null"})
Decode = Callable[[bytes | None], tuple[Any, ...] | Rejection]


def record_decoder(shape: RecordShape, limits: DecodingLimits, ingestion_ts: datetime) -> Decode:
    """A function from a message to its columns, or to why it has none. Never raises on any bytes.

    Out: unknown_fields, the UTC day of the event time (None where the stream has none), the declared columns.
    A missing field is the same as null: refused where the column is required. Fields that nobody declared are unknown.
    ingestion_ts: the manifest's, with an offset.
    """
    nested: list[int] = []
    readers = {name: value_reader(kind, limits, ingestion_ts, nested.append) for name, kind in shape.columns}
    readers |= dict.fromkeys(shape.ids, partial(read_partition_id, max_length=limits.max_id_length))
    rules = [(name, name in shape.required, readers[name]) for name, _ in shape.columns]
    time_at = None if shape.event_time is None else [name for name, _ in shape.columns].index(shape.event_time)
    known = readers.keys()

    def read(fields: JsonObject) -> tuple[Any, ...]:
        nested.clear()
        values: list[object] = []
        for name, required, reader in rules:
            value = fields.get(name)
            if value is None and required:
                raise Refused(Reason.MISSING_FIELD, name)
            values.append(None if value is None else reader(value, name))
        time = None if time_at is None else values[time_at]
        day = time.astimezone(UTC).date() if isinstance(time, datetime) else None
        return len(fields.keys() - known) + sum(nested), day, *values

    return decoder_of(limits, read)


def change_decoder(shape: ChangeShape, limits: DecodingLimits, ingestion_ts: datetime) -> Decode:
    """A function from a message to its change, or to why it is none. Never raises on any bytes.

    Out: unknown_fields, key, version, op, the declared columns, and the names of those that the change sets to null
    (None: of none). null inside `changes` is the same as absent; a column in `set_null` is null whatever `changes`
    has for it. A DELETE has no columns. Columns that nobody declared are unknown fields.
    """
    readers = {name: value_reader(kind, limits, ingestion_ts) for name, kind in shape.columns}
    readers |= {name: _not_empty(readers[name]) for name in shape.never_empty}
    known = _FIELDS | {shape.key, shape.version}

    def read(fields: JsonObject) -> tuple[Any, ...]:
        key = read_id(fields.get(shape.key), shape.key, limits.max_id_length)
        version = read_version(fields.get(shape.version), shape.version)
        op = fields.get("op")
        if type(op) is not str:
            raise wrong_or_missing(op, "op")
        if op not in OPERATIONS:
            raise Refused(Reason.UNKNOWN_OP, "op")
        unknown = len(fields.keys() - known)
        if op == "DELETE":
            return unknown, key, version, op, *(None for _ in readers), None
        changes = fields.get("changes")
        if type(changes) is not dict:
            raise wrong_or_missing(changes, "changes")
        cleared = _set_null(fields.get("set_null"))
        values = (
            None if (value := changes.get(name)) is None or name in cleared else reader(value, name)
            for name, reader in readers.items()
        )
        unknown += len(changes.keys() - readers.keys()) + len(cleared - readers.keys())
        return unknown, key, version, op, *values, [name for name in readers if name in cleared] or None

    return decoder_of(limits, read)


def _set_null(value: object) -> set[str]:
    if value is None:
        return set()
    if type(value) is not list or any(type(name) is not str for name in value):
        raise Refused(Reason.WRONG_TYPE, "set_null")
    return set(value)


def _not_empty(reader: Reader) -> Reader:
    def read(value: object, field: str) -> object:
        if value == "":
            raise Refused(Reason.EMPTY_ID, field)
        return reader(value, field)

    return read

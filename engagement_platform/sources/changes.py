"""The rules of one change of a declared entity: partial updates as topics such as `profile-changes` carry them.

Bytes to a JSON object is `strict_json`, rules that all messages share are `decoding`. Nothing here raises on any bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from engagement_platform.sources.decoding import MAX_VERSION, decoder_of, read_id, wrong_or_missing
from engagement_platform.sources.messages import Change, ChangeShape, DecodingLimits, Reason, Rejection
from engagement_platform.sources.strict_json import JsonObject, Refused
from engagement_platform.sources.values import Reader, value_reader

OPERATIONS = ("INSERT", "UPDATE", "DELETE")
_FIELDS = frozenset({"op", "changes", "set_null"})


def change_decoder(
    shape: ChangeShape, limits: DecodingLimits, ingestion_ts: datetime
) -> Callable[[bytes | None], Change | Rejection]:
    """A function from a message to its change, or to why it is none. Never raises on any bytes.

    null inside `changes` is the same as absent; a column in `set_null` is null whatever `changes` say of it. Columns
    that nobody declared are unknown fields.
    """
    readers = {name: value_reader(kind, limits, ingestion_ts) for name, kind in shape.columns}
    readers |= {name: _not_empty(readers[name]) for name in shape.never_empty}
    known = _FIELDS | {shape.key, shape.version}

    def read(fields: JsonObject) -> Change:
        key = read_id(fields.get(shape.key), shape.key, limits.max_id_length)
        version = _version(fields.get(shape.version), shape.version)
        op = fields.get("op")
        if type(op) is not str:
            raise wrong_or_missing(op, "op")
        if op not in OPERATIONS:
            raise Refused(Reason.UNKNOWN_OP, "op")
        unknown = len(fields.keys() - known)
        if op == "DELETE":
            return Change(unknown, key, version, op, (None,) * len(readers), None)
        said = fields.get("changes")
        if type(said) is not dict:
            raise wrong_or_missing(said, "changes")
        cleared = _set_null(fields.get("set_null"))
        values = tuple(
            None if (value := said.get(name)) is None or name in cleared else reader(value, name)
            for name, reader in readers.items()
        )
        unknown += len(said.keys() - readers.keys()) + len(cleared - readers.keys())
        return Change(unknown, key, version, op, values, [name for name in readers if name in cleared] or None)

    return decoder_of(limits, read)


def _version(value: object, field: str) -> int:
    # type() and not isinstance(): true is an int to Python.
    if type(value) is not int:
        raise wrong_or_missing(value, field)
    if not 1 <= value <= MAX_VERSION:
        raise Refused(Reason.BAD_VERSION, field)
    return value


def _set_null(value: object) -> set[str]:
    if value is None:
        return set()
    if type(value) is not list:
        raise Refused(Reason.WRONG_TYPE, "set_null")
    for name in value:
        if type(name) is not str:
            raise Refused(Reason.WRONG_TYPE, "set_null")
    return set(value)


def _not_empty(reader: Reader) -> Reader:
    def read(value: object, field: str) -> object:
        if value == "":
            raise Refused(Reason.EMPTY_ID, field)
        return reader(value, field)

    return read

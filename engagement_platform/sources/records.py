"""The rules of one record of a declared stream: one JSON object, one field for each column.

Bytes to a JSON object is `strict_json`, rules that all messages share are `decoding`. Nothing here raises on any bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from engagement_platform.sources.decoding import RESERVED_ORGANIZATION_ID, decoder_of, read_id
from engagement_platform.sources.messages import DecodingLimits, Reason, Record, RecordShape, Rejection
from engagement_platform.sources.strict_json import JsonObject, Refused
from engagement_platform.sources.values import Reader, value_reader


def record_decoder(
    shape: RecordShape, limits: DecodingLimits, ingestion_ts: datetime
) -> Callable[[bytes | None], Record | Rejection]:
    """A function from a message to its record, or to why it is none. Never raises on any bytes.

    A missing field is the same as null: refused where the column is required. Fields that nobody declared are unknown.
    ingestion_ts: the manifest's, with an offset.
    """
    nested: list[int] = []
    readers = {name: value_reader(kind, limits, ingestion_ts, nested.append) for name, kind in shape.columns}
    readers |= {name: _id_reader(limits.max_id_length) for name in shape.ids}
    rules = [(name, name in shape.required, readers[name]) for name, _ in shape.columns]
    time_at = None if shape.event_time is None else [name for name, _ in shape.columns].index(shape.event_time)
    known = readers.keys()

    def read(fields: JsonObject) -> Record:
        nested.clear()
        values: list[object] = []
        for name, required, reader in rules:
            value = fields.get(name)
            if value is None:
                if required:
                    raise Refused(Reason.MISSING_FIELD, name)
                values.append(None)
            else:
                values.append(reader(value, name))
        time = None if time_at is None else values[time_at]
        day = time.astimezone(UTC).date() if isinstance(time, datetime) else None
        return Record(len(fields.keys() - known) + sum(nested), day, tuple(values))

    return decoder_of(limits, read)


def _id_reader(max_length: int) -> Reader:
    def read(value: object, field: str) -> object:
        checked = read_id(value, field, max_length)
        if checked == RESERVED_ORGANIZATION_ID:
            raise Refused(Reason.RESERVED_ID, field)
        return checked

    return read

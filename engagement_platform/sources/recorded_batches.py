"""Decoding of whole Arrow batches of a declared stream, for DataFrame.mapInArrow: one record in, one record out.

The rules of a record are `records`; this module only turns rows into columns.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

from engagement_platform.sources.arrow_types import arrow_type
from engagement_platform.sources.decoded_batches import RECORD_DDL, Decode, Step, batch_step
from engagement_platform.sources.messages import EVENT_DATE, DecodingLimits, RecordShape, Rejection
from engagement_platform.sources.records import record_decoder


def records_ddl(shape: RecordShape) -> str:
    """The columns that `decode_records` makes: those of each record, then the event's day, then the declared ones."""
    return f"{RECORD_DDL}{EVENT_DATE} date, " + ", ".join(f"{name} {kind}" for name, kind in shape.columns)


def decode_records(shape: RecordShape, limits: DecodingLimits, ingestion_ts: datetime) -> Step:
    """As `decode_batches`, for records of this shape. Out: `records_ddl`, in the same order."""
    fields = ("unknown_fields", EVENT_DATE, *(name for name, _ in shape.columns))
    types = {name: arrow_type(kind) for name, kind in shape.columns}
    types |= {"unknown_fields": pa.int32(), EVENT_DATE: pa.date32()}

    def decoder() -> Decode:
        decode = record_decoder(shape, limits, ingestion_ts)

        def flat(value: bytes | None) -> tuple[Any, ...]:
            one = decode(value)
            return one if isinstance(one, Rejection) else (one.unknown_fields, one.event_date, *one.values)

        return flat

    return batch_step(decoder, fields, types)

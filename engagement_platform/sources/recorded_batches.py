"""Decoding of whole Arrow batches of a declared stream, for DataFrame.mapInArrow: one record in, one record out.

The rules of a record are `records`; this module only turns rows into columns. In Spark's Python workers or, for few
records, in the run's own process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from engagement_platform.sources.changed_batches import ARROW_TYPES
from engagement_platform.sources.decoded_batches import RECORD_DDL, decoded_batch
from engagement_platform.sources.messages import EVENT_DATE, DecodingLimits, RecordShape, Rejection
from engagement_platform.sources.records import record_decoder


def records_ddl(shape: RecordShape) -> str:
    """The columns that `decode_records` makes: those of each record, then the event's day, then the declared ones."""
    return f"{RECORD_DDL}{EVENT_DATE} date, " + ", ".join(f"{name} {kind}" for name, kind in shape.columns)


def decode_records(
    shape: RecordShape, limits: DecodingLimits, ingestion_ts: datetime
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """As `decode_batches`, for records of this shape. Out: `records_ddl`, in the same order."""
    fields = ("unknown_fields", EVENT_DATE, *(name for name, _ in shape.columns))
    types = {name: ARROW_TYPES[kind] for name, kind in shape.columns}
    types |= {"unknown_fields": pa.int32(), EVENT_DATE: pa.date32()}

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Made in the worker: the parser inside cannot be pickled.
        one = record_decoder(shape, limits, ingestion_ts)

        def flat(value: bytes | None) -> tuple[Any, ...]:
            record = one(value)
            if isinstance(record, Rejection):
                return record
            return (record.unknown_fields, record.event_date, *record.values)

        for batch in batches:
            yield decoded_batch(batch, flat, fields, types)

    return decode

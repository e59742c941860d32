"""Decoding of whole Arrow batches of changes, for DataFrame.mapInArrow: one record in, one record out.

The rules of a change are `changes`; this module only turns rows into columns.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

from engagement_platform.sources.arrow_types import arrow_type
from engagement_platform.sources.changes import change_decoder
from engagement_platform.sources.decoded_batches import RECORD_DDL, Decode, Step, batch_step
from engagement_platform.sources.messages import ChangeShape, DecodingLimits, Rejection


def changes_ddl(shape: ChangeShape) -> str:
    """The columns that `decode_changes` makes: those of each record, then key, version, op, columns, set_null."""
    columns = ", ".join(f"{name} {kind}" for name, kind in shape.columns)
    return f"{RECORD_DDL}{shape.key} string, {shape.version} long, op string, {columns}, set_null array<string>"


def decode_changes(shape: ChangeShape, limits: DecodingLimits, ingestion_ts: datetime) -> Step:
    """As `decode_batches`, for changes of this shape. Out: `changes_ddl`, in the same order."""
    fields = ("unknown_fields", shape.key, shape.version, "op", *(name for name, _ in shape.columns), "set_null")
    types = {name: arrow_type(kind) for name, kind in shape.columns}
    types |= {"unknown_fields": pa.int32(), shape.version: pa.int64(), "set_null": pa.list_(pa.string())}

    def decoder() -> Decode:
        decode = change_decoder(shape, limits, ingestion_ts)

        def flat(value: bytes | None) -> tuple[Any, ...]:
            one = decode(value)
            return (
                one
                if isinstance(one, Rejection)
                else (one.unknown_fields, one.key, one.version, one.op, *one.values, one.set_null)
            )

        return flat

    return batch_step(decoder, fields, types)

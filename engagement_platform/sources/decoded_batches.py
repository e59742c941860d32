"""Decoding of whole Arrow batches, for DataFrame.mapInArrow: one record in, one record out, whatever it holds.

The rules of a message are `decoding`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.sources.column_types import fields_of, split
from engagement_platform.sources.decoding import (
    Decode,
    change_decoder,
    engagement_decoder,
    mutation_request_decoder,
    record_decoder,
)
from engagement_platform.sources.lateness import Check, refuse_late
from engagement_platform.sources.messages import EVENT_DATE, ChangeShape, DecodingLimits, RecordShape, Rejection

MessageKind = Literal["engagement", "mutation_request"]

RECORD_DDL = (
    "topic string, partition int, offset long, produced_ts timestamp, value_bytes int, key binary, value binary, "
    "reason_code string, reason string, "
)
"""What is kept of each record, whatever it is: begins the decoded columns."""
ENGAGEMENT_DECODED_DDL = RECORD_DDL + (
    "unknown_fields int, organization_id string, engagement_date date, engagement_ts timestamp, engagement_id string, "
    "person_id string, person_name string, version long, type string, channel string, subject string, "
    "attributes map<string,string>"
)
MUTATION_REQUEST_DECODED_DDL = RECORD_DDL + (
    "unknown_fields int, request_id string, organization_id string, operation string, from_id string, to_id string, "
    "name string, engagement_id string, type string, channel string, subject string, attributes map<string,string>, "
    "set_null array<string>, engagement_date_from date, engagement_date_to date, execution_ts timestamp"
)

TIMESTAMP = pa.timestamp("us", tz="UTC")
_ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(), "long": pa.int64(), "bigint": pa.int64(), "int": pa.int32(), "integer": pa.int32(),
    "short": pa.int16(), "smallint": pa.int16(), "byte": pa.int8(), "tinyint": pa.int8(), "double": pa.float64(),
    "float": pa.float32(), "boolean": pa.bool_(), "date": pa.date32(), "timestamp": TIMESTAMP, "binary": pa.binary(),
}  # fmt: skip

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for DataFrame.mapInArrow."""


def arrow_type(kind: str) -> pa.DataType:
    """A type as people write it. Raises ValueError.

    >>> arrow_type("struct<a:long,b:array<string>>")
    StructType(struct<a: int64, b: list<element: string>>)
    """
    word, parts = split(kind)
    match word.lower(), parts:
        case plain, () if plain in _ARROW:
            return _ARROW[plain]
        case "decimal", (digits, after) if digits.isdecimal() and after.isdecimal():
            return pa.decimal128(int(digits), int(after))
        case "array", (element,):
            return pa.list_(pa.field("element", arrow_type(element)))
        case "map", (key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case "struct", _ if all(":" in part for part in parts):
            return pa.struct([pa.field(name, arrow_type(of)) for name, of in fields_of(parts).items()])
    raise ValueError(f"{kind!r} is no type of a column")


def decode_batches(
    kind: MessageKind, limits: DecodingLimits, ingestion_ts: datetime, max_lateness: timedelta | None = None
) -> Step:
    """A function for DataFrame.mapInArrow that decodes the records of a Kafka read.

    In:  topic, partition, offset, key, value, timestamp; more columns are dropped.
    Out: ENGAGEMENT_DECODED_DDL or MUTATION_REQUEST_DECODED_DDL, one row per record in the same order. key and value
         (whole) only where reason_code is not null, the decoded columns only where it is null. value_bytes always.
    ingestion_ts: the manifest's, with an offset. max_lateness: requests that are further back when they were produced
    are refused; None: none is.
    """
    if kind == "engagement":
        return _step(lambda: engagement_decoder(limits, ingestion_ts), ENGAGEMENT_DECODED_DDL)
    check = None if max_lateness is None else refuse_late(ingestion_ts, max_lateness)
    return _step(lambda: mutation_request_decoder(limits, ingestion_ts), MUTATION_REQUEST_DECODED_DDL, check)


def records_ddl(shape: RecordShape) -> str:
    """The columns that `decode_records` makes: those of each record, then the event's day, then the declared ones."""
    return f"{RECORD_DDL}unknown_fields int, {EVENT_DATE} date, {_declared(shape)}"


def decode_records(shape: RecordShape, limits: DecodingLimits, ingestion_ts: datetime) -> Step:
    """As `decode_batches`, for records of a declared stream. Out: `records_ddl`, in the same order."""
    return _step(lambda: record_decoder(shape, limits, ingestion_ts), records_ddl(shape))


def changes_ddl(shape: ChangeShape) -> str:
    """The columns that `decode_changes` makes: those of each record, then key, version, op, columns, set_null."""
    envelope = f"unknown_fields int, {shape.key} string, {shape.version} long, op string"
    return f"{RECORD_DDL}{envelope}, {_declared(shape)}, set_null array<string>"


def decode_changes(shape: ChangeShape, limits: DecodingLimits, ingestion_ts: datetime) -> Step:
    """As `decode_batches`, for changes of a declared entity. Out: `changes_ddl`, in the same order."""
    return _step(lambda: change_decoder(shape, limits, ingestion_ts), changes_ddl(shape))


def _declared(shape: RecordShape | ChangeShape) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in shape.columns)


def _step(decoder: Callable[[], Decode], ddl: str, check: Check | None = None) -> Step:
    """A function for DataFrame.mapInArrow: of each record its coordinates, then what its decoder makes of it.

    decoder: called in the worker, since the parser inside cannot be pickled. check: asked of each record once it is
    decoded.
    """
    columns = [column.split(" ", 1) for column in ddl.removeprefix(RECORD_DDL).split(", ")]

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decode, types = decoder(), {name: arrow_type(kind) for name, kind in columns}
        for batch in batches:
            yield _decoded(batch, decode, types, check)

    return step


def _decoded(
    batch: pa.RecordBatch, decode: Decode, types: Mapping[str, pa.DataType], check: Check | None
) -> pa.RecordBatch:
    value, produced = batch.column("value"), batch.column("timestamp").cast(TIMESTAMP)
    decoded: list[Any] = list(map(decode, value.to_pylist()))
    if check is not None:
        decoded = list(map(check, decoded, produced.cast(pa.int64()).to_pylist()))
    rejections = [row if type(row) is Rejection else None for row in decoded]
    if any(rejections):
        nothing = (None,) * len(types)
        decoded = [row if rejection is None else nothing for row, rejection in zip(decoded, rejections, strict=True)]
    codes = pa.array([rejection and rejection.code.value for rejection in rejections], pa.string())
    rejected = codes.is_valid()
    columns = list(zip(*decoded, strict=True)) if decoded else [()] * len(types)
    arrays = {
        "topic": batch.column("topic"),
        "partition": batch.column("partition"),
        "offset": batch.column("offset"),
        "produced_ts": produced,
        "value_bytes": pc.fill_null(pc.binary_length(value), 0).cast(pa.int32()),
        "key": pc.if_else(rejected, batch.column("key"), None),
        "value": pc.if_else(rejected, value, None),
        "reason_code": codes,
        "reason": pa.array([rejection and rejection.sentence for rejection in rejections], pa.string()),
    }
    arrays |= {name: pa.array(column, types[name]) for name, column in zip(types, columns, strict=True)}
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

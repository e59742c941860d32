"""Decoding of whole Arrow batches, for DataFrame.mapInArrow: one record in, one record out, whatever it holds.

The rules of a message are `decoding`; this module only turns rows into columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.sources.decoding import engagement_decoder, mutation_request_decoder
from engagement_platform.sources.lateness import Check, refuse_late
from engagement_platform.sources.messages import DecodingLimits, Engagement, MutationRequest, Rejection

MessageKind = Literal["engagement", "mutation_request"]

RECORD_DDL = (
    "topic string, partition int, offset long, produced_ts timestamp, value_bytes int, key binary, value binary, "
    "reason_code string, reason string, unknown_fields int, "
)
"""What is kept of each record, whatever it is: begins the decoded columns."""
ENGAGEMENT_DECODED_DDL = RECORD_DDL + (
    "organization_id string, engagement_date date, engagement_ts timestamp, engagement_id string, person_id string, "
    "person_name string, version long, type string, channel string, subject string, attributes map<string,string>"
)
MUTATION_REQUEST_DECODED_DDL = RECORD_DDL + (
    "request_id string, organization_id string, operation string, from_id string, to_id string, name string, "
    "engagement_id string, type string, channel string, subject string, attributes map<string,string>, "
    "set_null array<string>, engagement_date_from date, engagement_date_to date, execution_ts timestamp"
)

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TEXT_MAP = pa.map_(pa.string(), pa.string())
# Everything that is not named here is a string.
_TYPES: dict[str, pa.DataType] = {
    "unknown_fields": pa.int32(),
    "version": pa.int64(),
    "engagement_ts": _TIMESTAMP,
    "execution_ts": _TIMESTAMP,
    "engagement_date": pa.date32(),
    "engagement_date_from": pa.date32(),
    "engagement_date_to": pa.date32(),
    "attributes": _TEXT_MAP,
    "set_null": pa.list_(pa.string()),
}


Decode = Callable[[bytes | None], tuple[Any, ...]]
"""From a message to a Rejection, or to the values of its columns."""
Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for DataFrame.mapInArrow."""


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
        return batch_step(lambda: engagement_decoder(limits, ingestion_ts), Engagement._fields)
    check = None if max_lateness is None else refuse_late(ingestion_ts, max_lateness)
    return batch_step(lambda: mutation_request_decoder(limits, ingestion_ts), MutationRequest._fields, check=check)


def batch_step(
    decoder: Callable[[], Decode],
    fields: Sequence[str],
    types: Mapping[str, pa.DataType] = _TYPES,
    check: Check | None = None,
) -> Step:
    """A function for DataFrame.mapInArrow: of each record its coordinates, then `fields` as its decoder gives them.

    decoder: called in the worker, since the parser inside cannot be pickled. types: of fields that are no strings.
    check: asked of each record once it is decoded.
    """

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decode = decoder()
        for batch in batches:
            yield _decoded(batch, decode, fields, types, check)

    return step


def _decoded(
    batch: pa.RecordBatch,
    decode: Decode,
    fields: Sequence[str],
    types: Mapping[str, pa.DataType],
    check: Check | None,
) -> pa.RecordBatch:
    value, produced = batch.column("value"), batch.column("timestamp").cast(_TIMESTAMP)
    decoded: list[Any] = list(map(decode, value.to_pylist()))
    if check is not None:
        decoded = list(map(check, decoded, produced.cast(pa.int64()).to_pylist()))
    rejections = [row if type(row) is Rejection else None for row in decoded]
    if any(rejections):
        nothing = (None,) * len(fields)
        decoded = [row if rejection is None else nothing for row, rejection in zip(decoded, rejections, strict=True)]
    codes = pa.array([rejection and rejection.code.value for rejection in rejections], pa.string())
    rejected = codes.is_valid()
    columns = list(zip(*decoded, strict=True)) if decoded else [()] * len(fields)
    arrays = {
        "topic": batch.column("topic"),
        "partition": batch.column("partition"),
        "offset": batch.column("offset"),
        "produced_ts": produced,
        "value_bytes": pc.fill_null(pc.binary_length(value), 0).cast(pa.int32()),
        "key": _only_where(rejected, batch.column("key")),
        "value": _only_where(rejected, value),
        "reason_code": codes,
        "reason": pa.array([rejection and rejection.sentence for rejection in rejections], pa.string()),
    }
    for field, column in zip(fields, columns, strict=True):
        arrays[field] = _array(column, types.get(field, pa.string()))
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _only_where(mask: pa.Array, column: pa.Array) -> pa.Array:
    if not mask.true_count:
        return pa.nulls(len(column), column.type)
    return pc.if_else(mask, column, pa.scalar(None, column.type))


def _array(column: Sequence[Any], arrow_type: pa.DataType) -> pa.Array:
    return _map_array(column) if arrow_type == _TEXT_MAP else pa.array(column, arrow_type)


def _map_array(maps: Iterable[dict[str, str | None] | None]) -> pa.Array:
    """Flat keys and values with offsets: 0.28 us a row where pa.array on lists of pairs takes 0.46 (pyarrow 26).

    A null offset marks a null map, which stays different from an empty one.
    """
    offsets: list[int | None] = []
    keys: list[str] = []
    values: list[str | None] = []
    for entries in maps:
        if entries is None:
            offsets.append(None)
        else:
            offsets.append(len(keys))
            keys.extend(entries)
            values.extend(entries.values())
    offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string()), type=_TEXT_MAP
    )

"""Whole Arrow batches: every record in is a record out, in Spark's types. Single messages are in `test_decoding`.

That each is decoded or kept whole, whatever it holds, is in `conformance/fuzz_messages`.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from engagement_platform.sources.decoded_batches import (
    ENGAGEMENT_DECODED_DDL,
    MUTATION_REQUEST_DECODED_DDL,
    MessageKind,
    decode_batches,
)
from engagement_platform.sources.messages import DecodingLimits
from engagement_platform_tests.sources.test_decoding import FULL, NOW, UPDATE, encoded

ARROW_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "array<string>": pa.list_(pa.string()),
}
PRODUCED = datetime(2026, 3, 1, 11, 59, tzinfo=UTC)


def records(values: list[bytes | None], zone: str = "UTC") -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([b"key-%d" % n if n % 2 else None for n in range(count)], pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(["a-topic"] * count, pa.string()),
            pa.array([3] * count, pa.int32()),
            pa.array(range(100, 100 + count), pa.int64()),
            pa.array([PRODUCED] * count, pa.timestamp("us", tz=zone)),
        ],
        names=["key", "value", "topic", "partition", "offset", "timestamp"],
    )


def decoded(kind: MessageKind, values: list[bytes | None]) -> list[dict[str, Any]]:
    batches = list(decode_batches(kind, DecodingLimits(), NOW)(iter([records(values)])))
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "ddl"), [("engagement", ENGAGEMENT_DECODED_DDL), ("mutation_request", MUTATION_REQUEST_DECODED_DDL)]
)
@pytest.mark.parametrize("values", [[], [None], [encoded(FULL)], [encoded(UPDATE), b"x"]])
def test_columns_have_the_names_order_and_types_of_the_ddl(
    kind: MessageKind, ddl: str, values: list[bytes | None]
) -> None:
    (batch,) = decode_batches(kind, DecodingLimits(), NOW)(iter([records(values, "Asia/Tokyo")]))
    declared = [column.split(" ") for column in ddl.split(", ")]
    assert [(field.name, field.type) for field in batch.schema] == [(name, ARROW_TYPES[of]) for name, of in declared]
    assert batch.num_rows == len(values)


def test_a_good_record_has_its_fields_and_a_refused_one_its_bytes() -> None:
    good, bad = decoded("engagement", [encoded(FULL | {"extra": 1}), b'{"half":'])
    assert good == {
        "topic": "a-topic",
        "partition": 3,
        "offset": 100,
        "produced_ts": PRODUCED,
        "value_bytes": len(encoded(FULL | {"extra": 1})),
        "key": None,
        "value": None,
        "reason_code": None,
        "reason": None,
        "unknown_fields": 1,
        "organization_id": "org-1",
        "engagement_date": date(2026, 2, 28),
        "engagement_ts": datetime(2026, 2, 28, 10, tzinfo=UTC),
        "engagement_id": "e-1",
        "person_id": "p-1",
        "person_name": "Ada",
        "version": 3,
        "type": "email_open",
        "channel": "email",
        "subject": "Hello",
        "attributes": [("campaign", "spring")],
    }
    filled = {name: value for name, value in bad.items() if value is not None}
    assert filled == {
        "topic": "a-topic",
        "partition": 3,
        "offset": 101,
        "produced_ts": PRODUCED,
        "value_bytes": 8,
        "key": b"key-1",
        "value": b'{"half":',
        "reason_code": "not_json",
        "reason": "The message is not JSON.",
    }


def test_maps_that_are_null_empty_or_hold_nulls_stay_apart() -> None:
    patches = [None, {}, {"a": None}, {"b": "1", "c": None}, None]
    rows = decoded("mutation_request", [encoded(UPDATE | {"attributes": patch}) for patch in patches])
    assert [row["attributes"] for row in rows] == [None, [], [("a", None)], [("b", "1"), ("c", None)], None]


def test_the_step_travels_to_a_worker_and_decodes_there_alike() -> None:
    step = decode_batches("engagement", DecodingLimits(), NOW)
    values = [encoded(FULL), None]
    (here,) = step(iter([records(values)]))
    travelled = cloudpickle.loads(cloudpickle.dumps(step))  # type: ignore[no-untyped-call]
    (there,) = travelled(iter([records(values)]))
    assert there.equals(here)

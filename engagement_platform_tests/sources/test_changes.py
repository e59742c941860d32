"""A change is taken as its shape says it, or refused with a reason; whatever bytes come, nothing raises."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.sources.decoded_batches import changes_ddl, decode_changes
from engagement_platform.sources.decoding import change_decoder
from engagement_platform.sources.messages import ChangeShape, DecodingLimits, Reason, Rejection

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
SHAPE = ChangeShape(
    "id",
    "revision",
    (
        ("name", "string"),
        ("score", "long"),
        ("heat", "double"),
        ("on", "boolean"),
        ("day", "date"),
        ("at", "timestamp"),
        ("place", "string"),
    ),
    never_empty=frozenset({"place"}),
)
decode = change_decoder(SHAPE, DecodingLimits(), NOW)


def change(**fields: Any) -> bytes:
    said = {"id": "p", "revision": 1, "op": "UPDATE", "changes": {}} | fields
    return json.dumps({name: value for name, value in said.items() if value is not ...}).encode()


def test_each_column_is_read_by_its_type() -> None:
    said = {
        "name": "",
        "score": -(2**63),
        "heat": 3,
        "on": False,
        "day": "2026-01-31",
        "at": "2026-01-31T01:00:00+01:00",
    }
    values = ("", -(2**63), 3.0, False, date(2026, 1, 31), datetime(2026, 1, 31, tzinfo=UTC), None)
    assert decode(change(changes=said)) == (0, "p", 1, "UPDATE", *values, None)


def test_null_is_absent_and_set_null_wins_over_a_value() -> None:
    found = decode(change(changes={"name": None, "score": 3}, set_null=["score", "heat"]))
    assert found == (0, "p", 1, "UPDATE", *[None] * 7, ["score", "heat"])


def test_a_delete_says_nothing_else() -> None:
    found = decode(change(op="DELETE", changes={"name": 7}, set_null="?"))
    assert found == (0, "p", 1, "DELETE", *[None] * 7, None)
    assert decode(change(op="DELETE", changes=...)) == found


def test_fields_and_columns_that_nobody_declared_are_counted() -> None:
    message = change(changes={"name": "Ann", "age": 3}, set_null=["size"], extra=1)
    found = decode(message)
    assert (found[0], found[4], found[-1]) == (3, "Ann", None)
    refusing = change_decoder(SHAPE, DecodingLimits(unknown_fields="quarantine"), NOW)
    assert isinstance(refusing(message), Rejection)


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"id": ...}, "missing_field", "id"),
        ({"id": ""}, "empty_id", "id"),
        ({"id": 3}, "wrong_type", "id"),
        ({"revision": ...}, "missing_field", "revision"),
        ({"revision": True}, "wrong_type", "revision"),
        ({"revision": 0}, "bad_version", "revision"),
        ({"revision": 2**63}, "bad_version", "revision"),
        ({"op": "UPSERT"}, "unknown_op", "op"),
        ({"op": None}, "missing_field", "op"),
        ({"changes": ...}, "missing_field", "changes"),
        ({"changes": []}, "wrong_type", "changes"),
        ({"changes": {"name": 1}}, "wrong_type", "name"),
        ({"changes": {"score": 1.0}}, "wrong_type", "score"),
        ({"changes": {"score": True}}, "wrong_type", "score"),
        ({"changes": {"score": 2**63}}, "number_out_of_range", "score"),
        ({"changes": {"heat": "1"}}, "wrong_type", "heat"),
        ({"changes": {"on": 1}}, "wrong_type", "on"),
        ({"changes": {"day": "31.1.2026"}}, "bad_date", "day"),
        ({"changes": {"at": "2026-01-31T00:00:00"}}, "time_without_offset", "at"),
        ({"changes": {"place": ""}}, "empty_id", "place"),
        ({"set_null": "name"}, "wrong_type", "set_null"),
        ({"set_null": [1]}, "wrong_type", "set_null"),
    ],
    ids=str,
)
def test_what_breaks_a_rule_is_refused_with_its_code(fields: dict[str, Any], reason: str, field: str) -> None:
    found = decode(change(**fields))
    assert isinstance(found, Rejection)
    assert found.code == Reason(reason)
    assert field in found.sentence


@settings(deadline=None)
@given(
    st.binary()
    | st.text().map(str.encode)
    | st.dictionaries(st.text(), st.none()).map(lambda d: json.dumps(d).encode())
)
def test_nothing_raises_on_any_bytes(value: bytes) -> None:
    assert isinstance(decode(value), Rejection)


def test_a_batch_has_the_declared_columns_and_keeps_what_it_refused() -> None:
    values = [change(changes={"day": "2026-01-31"}, set_null=["on"]), b"{", None]
    batch = pa.record_batch(
        {
            "topic": ["t"] * 3,
            "partition": pa.array([0] * 3, pa.int32()),
            "offset": pa.array(range(3), pa.int64()),
            "key": pa.array([b"k"] * 3),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array([NOW] * 3, pa.timestamp("us", tz="UTC")),
        }
    )
    [found] = decode_changes(SHAPE, DecodingLimits(), NOW)(iter([batch]))
    assert found.schema.names == [column.split()[0] for column in changes_ddl(SHAPE).split(", ")]
    rows = found.to_pylist()
    assert [row["reason_code"] for row in rows] == [None, "not_json", "empty"]
    assert [row["value"] for row in rows] == [None, b"{", None]
    assert (rows[0]["day"], rows[0]["set_null"], rows[1]["id"]) == (date(2026, 1, 31), ["on"], None)

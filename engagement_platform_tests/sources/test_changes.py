"""A change is taken as its shape says it, or refused with a reason. Values of each type are in `test_records`."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest

from engagement_platform.sources.decoded_batches import changes_ddl, decode_changes
from engagement_platform.sources.decoding import change_decoder
from engagement_platform.sources.messages import ChangeShape, DecodingLimits, Reason, Rejection
from engagement_platform_tests.sources.test_decoded_batches import records

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
SHAPE = ChangeShape(
    "id",
    "revision",
    (
        ("name", "string"), ("score", "long"), ("heat", "double"), ("on", "boolean"), ("day", "date"),
        ("at", "timestamp"), ("place", "string"),
    ),
    partitions=frozenset({"place"}),
)  # fmt: skip
decode = change_decoder(SHAPE, DecodingLimits(), NOW)


def change(**fields: Any) -> bytes:
    said = {"id": "p", "revision": 1, "op": "UPDATE", "changes": {}} | fields
    return json.dumps({name: value for name, value in said.items() if value is not ...}).encode()


def test_each_column_is_read_by_its_type() -> None:
    said = {
        "name": "", "score": -(2**63), "heat": 3, "on": False, "day": "2026-01-31", "at": "2026-01-31T01:00:00+01:00",
    }  # fmt: skip
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
        ({"revision": ...}, "missing_field", "revision"),
        ({"revision": 0}, "bad_version", "revision"),
        ({"op": "UPSERT"}, "unknown_op", "op"),
        ({"op": None}, "missing_field", "op"),
        ({"changes": ...}, "missing_field", "changes"),
        ({"changes": []}, "wrong_type", "changes"),
        ({"changes": {"name": 1}}, "wrong_type", "name"),
        ({"changes": {"at": "2026-01-31T00:00:00"}}, "time_without_offset", "at"),
        ({"changes": {"place": ""}}, "empty_id", "place"),
        ({"changes": {"place": "__HIVE_DEFAULT_PARTITION__"}}, "reserved_id", "place"),
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


def test_a_batch_has_the_declared_columns_and_keeps_what_it_refused() -> None:
    values = [change(changes={"day": "2026-01-31"}, set_null=["on"]), b"{", None]
    [found] = decode_changes(SHAPE, DecodingLimits(), NOW)(iter([records(values)]))
    assert found.schema.names == [column.split()[0] for column in changes_ddl(SHAPE).split(", ")]
    rows = found.to_pylist()
    assert [row["reason_code"] for row in rows] == [None, "not_json", "empty"]
    assert [row["value"] for row in rows] == [None, b"{", None]
    assert (rows[0]["day"], rows[0]["set_null"], rows[1]["id"]) == (date(2026, 1, 31), ["on"], None)

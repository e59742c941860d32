"""A record of a declared stream is what its columns say, or goes to quarantine with the rule that it breaks."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.sources.decoding import record_decoder
from engagement_platform.sources.messages import DecodingLimits, RecordShape, Rejection

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SHAPE = RecordShape(
    columns=(
        ("id", "string"), ("at", "timestamp"), ("text", "string"), ("count", "long"), ("price", "double"),
        ("ok", "boolean"), ("day", "date"), ("paid", "decimal(5,2)"), ("tags", "array<string>"),
        ("counts", "map<string,long>"), ("place", "struct<city:string,seen:array<struct<at:timestamp,by:string>>>"),
    ),
    required=frozenset({"id", "at"}),
    ids=frozenset({"id"}),
    event_time="at",
)  # fmt: skip
LEAST = {"id": "a", "at": "2026-11-20T23:30:00-01:00"}

decode = record_decoder(SHAPE, DecodingLimits(), NOW)


def said(**fields: object) -> tuple[Any, ...] | Rejection:
    return decode(json.dumps({**LEAST, **fields}).encode())


def test_each_type_is_read_as_it_is_declared_and_the_day_is_that_of_utc() -> None:
    record = said(text=" x ", count=-3, price=2, ok=False, day="2026-01-31", more=1)
    values = ("a", datetime(2026, 11, 21, 0, 30, tzinfo=UTC), " x ", -3, 2.0, False, date(2026, 1, 31), *[None] * 4)
    assert record == (1, date(2026, 11, 21), *values)


def test_nested_values_are_read_whole_and_everything_in_them_may_be_missing() -> None:
    place = {"city": "Ulm", "seen": [{"at": "2026-11-20T10:00:00Z", "more": 1}, None, {}], "more": 1}
    record = said(tags=["b", None, "a"], counts={"z": 1, "a": None}, place=place, more=1)
    seen = [{"at": datetime(2026, 11, 20, 10, tzinfo=UTC), "by": None}, None, {"at": None, "by": None}]
    assert record[0] == 3
    assert record[10:] == (["b", None, "a"], {"a": None, "z": 1}, {"city": "Ulm", "seen": seen})
    other = said(counts={"a": None, "z": 1})
    assert other[0] == 0
    assert list(other[11].items()) == list(record[11].items()), "JSON objects have no order"


@pytest.mark.parametrize(
    ("said_as", "held"),
    [
        (1, "1"), (-999, "-999"), (0.1, "0.1"), (999.99, "999.99"), (1e2, "100"), ("007.50", "7.5"), ("1.500", "1.5"),
        ("-0.00", "0"),
    ],
)  # fmt: skip
def test_a_decimal_is_what_was_written(said_as: Any, held: str) -> None:
    record = said(paid=said_as)
    assert record[9] == Decimal(held)
    [[column]] = [pa.array([record[9]], pa.decimal128(5, 2)).to_pylist()]
    assert column == Decimal(held)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"id": None}, "missing_field"), ({"id": "__HIVE_DEFAULT_PARTITION__"}, "reserved_id"),
        ({"at": "2026-11-20"}, "bad_time"), ({"text": 5}, "wrong_type"),
        ({"count": 1.5}, "wrong_type"), ({"count": True}, "wrong_type"), ({"count": 2**63}, "number_out_of_range"),
        ({"price": "1"}, "wrong_type"), ({"ok": 1}, "wrong_type"), ({"day": "2026-02-30"}, "bad_date"),
        ({"text": {"a": 1}}, "wrong_type"),
        ({"paid": 1000}, "bad_decimal"), ({"paid": 0.001}, "bad_decimal"), ({"paid": "1e2"}, "bad_decimal"),
        ({"paid": ""}, "bad_decimal"), ({"paid": "٣"}, "bad_decimal"), ({"paid": 1e300}, "bad_decimal"),
        ({"paid": True}, "wrong_type"), ({"paid": [1]}, "wrong_type"), ({"tags": "a"}, "wrong_type"),
        ({"tags": [1]}, "wrong_type"), ({"counts": {"a": "1"}}, "wrong_type"), ({"counts": []}, "wrong_type"),
        ({"counts": {"a": 2**63}}, "number_out_of_range"), ({"place": []}, "wrong_type"),
        ({"place": {"seen": [{"at": "2026-11-20"}]}}, "bad_time"),
    ],
)  # fmt: skip
def test_a_record_that_breaks_a_rule_is_refused_with_its_code(fields: dict[str, object], code: str) -> None:
    refused = said(**fields)
    assert isinstance(refused, Rejection)
    assert refused.code == code


def test_what_is_not_declared_is_refused_where_the_settings_say_so() -> None:
    strict = record_decoder(SHAPE, DecodingLimits(unknown_fields="quarantine"), NOW)
    refused = strict(json.dumps({**LEAST, "more": 1}).encode())
    assert isinstance(refused, Rejection)
    assert refused.code == "unknown_fields"


@given(
    st.text(max_size=20), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False),
    st.datetimes(datetime(2001, 1, 1), datetime(2026, 11, 20)),  # noqa: DTZ001 - the zone is written below
)  # fmt: skip
@settings(deadline=None)
def test_what_a_producer_wrote_comes_out(text: str, count: int, price: float, at: datetime) -> None:
    record = said(text=text, count=count, price=price, at=f"{at.isoformat()}+02:00")
    moment = at.replace(tzinfo=UTC) - timedelta(hours=2)
    assert (record[1], *record[3:7]) == (moment.date(), moment, text, count, price)

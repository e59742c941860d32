"""Lateness of a request is judged by when it was produced, whatever its record says of that and whenever it is read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from engagement_platform.sources.decoded_batches import decode_batches
from engagement_platform.sources.lateness import from_microseconds, microseconds, production_time
from engagement_platform.sources.messages import DecodingLimits, Reason
from engagement_platform_tests.sources.test_decoded_batches import records
from engagement_platform_tests.sources.test_decoding import REQUEST, encoded

LATENESS = timedelta(days=7)
EXECUTED = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIMIT = EXECUTED + LATENESS
"""Produced then, the request is on time for the last moment."""
INSTANT = timedelta(microseconds=1)
YEARS_LATER = EXECUTED + timedelta(days=1000)
ONE = encoded(REQUEST | {"execution_ts": EXECUTED.isoformat()})


def verdict(kafka_us: int | None, read: datetime, value: bytes = ONE) -> str | None:
    """Reason code of one request with this Kafka timestamp, in a batch that was planned then."""
    timestamps = pa.array([kafka_us], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    batch = records([value]).set_column(5, "timestamp", timestamps)
    (decoded,) = decode_batches("mutation_request", DecodingLimits(), read, LATENESS)(iter([batch]))
    (row,) = decoded.select(["value", "value_bytes", "reason_code"]).to_pylist()
    assert (row["value"] == value) is (row["reason_code"] is not None), "what is refused is kept whole, and only that"
    assert row["value_bytes"] == len(value)
    code: str | None = row["reason_code"]
    return code


@pytest.mark.parametrize("read", [LIMIT + INSTANT, YEARS_LATER], ids=["at once", "after years"])
def test_a_request_is_late_by_when_it_was_produced_and_not_by_when_it_is_read(read: datetime) -> None:
    assert verdict(microseconds(LIMIT), read) is None
    assert verdict(microseconds(LIMIT + INSTANT), read) == "too_late"
    assert verdict(microseconds(EXECUTED), read) is None


def test_a_request_from_a_clock_that_runs_ahead_is_judged_by_when_it_was_read() -> None:
    year_55_000 = microseconds(EXECUTED) * 1000
    for ahead in (microseconds(YEARS_LATER), year_55_000):
        assert verdict(ahead, EXECUTED + timedelta(hours=1)) is None
        assert verdict(ahead, LIMIT + INSTANT) == "too_late"


@pytest.mark.parametrize("missing", [None, -1000], ids=["null", "-1 ms"])
def test_a_request_without_a_timestamp_counts_as_produced_when_it_was_read(missing: int | None) -> None:
    assert verdict(missing, LIMIT) is None
    assert verdict(missing, LIMIT + INSTANT) == "too_late"


def test_a_request_that_decoding_refuses_keeps_its_reason() -> None:
    broken = encoded(REQUEST | {"execution_ts": EXECUTED.isoformat(), "to_id": None})
    assert verdict(microseconds(YEARS_LATER), YEARS_LATER, broken) == "missing_to_id"


def test_without_a_limit_no_request_is_late_and_engagements_never_are() -> None:
    batch = records([ONE])
    for kind in ("mutation_request", "engagement"):
        (decoded,) = decode_batches(kind, DecodingLimits(), YEARS_LATER)(iter([batch]))
        assert Reason.TOO_LATE not in decoded.column("reason_code").to_pylist()


def test_the_time_of_production_is_never_after_the_time_of_reading() -> None:
    assert [production_time(kafka, 10) for kafka in (None, -1, 0, 9, 10, 11)] == [10, 10, 0, 9, 10, 10]
    assert from_microseconds(microseconds(LIMIT + INSTANT)) == LIMIT + INSTANT

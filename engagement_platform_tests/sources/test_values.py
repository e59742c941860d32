"""Ids and times: what is refused and why, and what is unusual but fine. Other types are in `test_records`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from engagement_platform.sources.messages import DecodingLimits, Reason
from engagement_platform.sources.strict_json import Refused
from engagement_platform.sources.values import Reader, read_id, read_partition_id, time_reader

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
read_time = time_reader(DecodingLimits(), NOW)


def refusal(read: Reader, value: object) -> Reason:
    with pytest.raises(Refused) as refused:
        read(value, "the field")
    return refused.value.rejection.code


def id_of(value: object, field: str = "id") -> str:
    return read_id(value, field, 256)


BAD_IDS: dict[Reason, list[object]] = {
    Reason.MISSING_FIELD: [None],
    Reason.WRONG_TYPE: [["org-1"], 5],
    Reason.EMPTY_ID: [""],
    Reason.ID_TOO_LONG: ["é" * 257],
    Reason.BLANK_END: [" ", " p-1", "org-1 ", "p-1\u00a0", "\u3000p-1"],
    Reason.CONTROL_CHARACTER: ["p\u0000-1", "p-1\n", "org\t1", "e\u007f1", "e\u0085\u00b51"],
    Reason.UNPAIRED_SURROGATE: ["e\ud800"],
}


@pytest.mark.parametrize(("reason", "value"), [(reason, value) for reason in BAD_IDS for value in BAD_IDS[reason]])
def test_a_bad_id_is_refused(reason: Reason, value: object) -> None:
    assert refusal(id_of, value) == reason


@pytest.mark.parametrize(
    "odd",
    ["../../etc", "/", ".", "a/b=c%2F", "😀", "é" * 256, "😀" * 256, "a b", "\u202eabc", "a\u200d", "null", "A", "a",
     "1", "'; DROP TABLE x", "\\", '"', "__hive_default_partition__", "e\u0301", "é", "a\u2028b", "-"],
)  # fmt: skip
def test_an_odd_id_is_kept_verbatim(odd: str) -> None:
    assert id_of(odd) == read_partition_id(odd, "id", 256) == odd


def test_only_an_id_that_partitions_cannot_be_the_reserved_value() -> None:
    reserved = "__HIVE_DEFAULT_PARTITION__"
    assert id_of(reserved) == reserved
    assert refusal(lambda value, field: read_partition_id(value, field, 256), reserved) == Reason.RESERVED_ID


BAD_TIMES = {
    Reason.BAD_TIME: [
        "", "yesterday", "2026-02-28", "2026-02-28 10:00:00Z", "2026-02-28t10:00:00z", "20260228T100000Z",
        "2026-W09-6T10:00:00Z", "2026-059T10:00:00Z", "2026-2-28T10:00:00Z", "2026-02-29T10:00:00Z",
        "2026-13-01T10:00:00Z", "0000-01-01T10:00:00Z", "2026-02-28T24:00:00Z", "2026-02-28T10:60:00Z",
        "2016-12-31T23:59:60Z", "2026-02-28T10Z", "2026-02-28T10:00:00.Z", "2026-02-28T10:00:00.1234567890Z",
        "2026-02-28T10:00:00+24:00", "2026-02-28T10:00:00+01:60", "2026-02-28T10:00:00 +01:00",
        "2026-02-28T10:00:00Z ", "2026-02-28T10:00:00Z\n", "2026-02-28T10:00:00 UTC",
        "2026-02-28T10:00:00Europe/Oslo", "٢٠٢٦-02-28T10:00:00Z", "1772272800", "+12026-02-28T10:00:00Z",
    ],
    Reason.TIME_WITHOUT_OFFSET: [
        "2026-02-28T10:00:00", "2026-02-28T10:00:00.123",
    ],
    Reason.TIME_OUT_OF_RANGE: [
        "1999-12-31T23:59:59.999999Z", "2000-01-01T00:30:00+01:00", "2026-03-02T12:00:00.000001Z",
        "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("reason", "text"), [(reason, text) for reason in BAD_TIMES for text in BAD_TIMES[reason]])
def test_a_bad_time_is_refused(reason: Reason, text: str) -> None:
    assert refusal(read_time, text) == reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-02-28T10:00:00Z", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("2026-02-28T10:00Z", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("2026-02-28T10:00:00.5Z", datetime(2026, 2, 28, 10, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-02-28T10:00:00,123Z", datetime(2026, 2, 28, 10, 0, 0, 123_000, tzinfo=UTC)),
        ("2026-02-28T10:00:00.123456789Z", datetime(2026, 2, 28, 10, 0, 0, 123_456, tzinfo=UTC)),
        ("2026-02-28T23:59:59.999999999Z", datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("2026-02-28T12:00:00+02:00", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("2026-02-28T12:00:00+0200", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("2026-02-28T12:00:00+02", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("2026-02-28T10:00:00-00:00", datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("2026-02-28T10:00:00+14:00", datetime(2026, 2, 27, 20, tzinfo=UTC)),
        ("2026-02-28T20:00:00-11:30", datetime(2026, 3, 1, 7, 30, tzinfo=UTC)),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC)),
        ("2000-01-01T00:00:00Z", datetime(2000, 1, 1, tzinfo=UTC)),
        ("2026-03-02T12:00:00Z", datetime(2026, 3, 2, 12, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_in_utc_and_cut_to_microseconds(text: str, expected: datetime) -> None:
    assert (read_time(text, "at"), read_time(text, "at").tzinfo) == (expected, UTC)


def test_an_earliest_time_without_offset_is_utc_and_no_limit_ahead_is_too_far() -> None:
    naive = DecodingLimits(earliest=datetime(2026, 2, 28, 10), max_ahead=timedelta.max)  # noqa: DTZ001
    read = time_reader(naive, NOW)
    assert read("2026-02-28T10:00:00Z", "at") == datetime(2026, 2, 28, 10, tzinfo=UTC)
    assert refusal(read, "2026-02-28T09:59:59Z") == Reason.TIME_OUT_OF_RANGE
    assert read("9999-12-31T23:59:59Z", "at").year == 9999

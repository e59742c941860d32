"""What is refused and why, and what is unusual but fine. Whole Arrow batches are in `test_decoded_batches`."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from engagement_platform.settings import DecodingSettings, MessageField
from engagement_platform.sources.decoding import engagement_decoder, mutation_request_decoder
from engagement_platform.sources.messages import (
    DecodingLimits,
    Engagement,
    MutationRequest,
    Reason,
    Rejection,
)

LIMITS = DecodingLimits()
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

ENGAGEMENT: dict[str, Any] = {
    "engagement_id": "e-1",
    "organization_id": "org-1",
    "person_id": "p-1",
    "engagement_ts": "2026-02-28T10:00:00Z",
    "type": "email_open",
}
FULL = ENGAGEMENT | {
    "person_name": "Ada",
    "version": 3,
    "channel": "email",
    "subject": "Hello",
    "attributes": {"campaign": "spring"},
}
REQUEST: dict[str, Any] = {
    "request_id": "r-1",
    "organization_id": "org-1",
    "operation": "CONVERT",
    "from_id": "lead-1",
    "to_id": "contact-1",
    "execution_ts": "2026-02-28T10:00:00Z",
}
DELETE = {field: REQUEST[field] for field in ("request_id", "organization_id", "execution_ts")} | {
    "operation": "DELETE",
    "from_id": "p-1",
}
RENAME = DELETE | {"operation": "RENAME", "name": "Ada"}
UPDATE = DELETE | {"operation": "UPDATE", "engagement_id": "e-1"}


def decode_engagement(value: bytes | None, limits: DecodingLimits, ingestion_ts: datetime) -> Engagement | Rejection:
    return engagement_decoder(limits, ingestion_ts)(value)


def decode_mutation_request(
    value: bytes | None, limits: DecodingLimits, ingestion_ts: datetime
) -> MutationRequest | Rejection:
    return mutation_request_decoder(limits, ingestion_ts)(value)


def encoded(message: object) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode()


def without(message: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != field}


def nested(levels: int) -> object:
    value: object = "x"
    for _ in range(levels):
        value = [value]
    return value


def raw(message: dict[str, Any], name: str, text: str) -> bytes:
    """The message with one more field whose value is written as it stands."""
    return encoded(message)[:-1] + f', "{name}": {text}}}'.encode()


BAD_BYTES: list[tuple[str, bytes | None, Reason]] = [
    ("no value at all", None, Reason.EMPTY),
    ("no bytes", b"", Reason.EMPTY),
    ("only blanks", b" \t\r\n", Reason.EMPTY),
    ("one byte too many", encoded(ENGAGEMENT) + b" " * LIMITS.max_bytes, Reason.TOO_LARGE),
    ("Latin-1", encoded(FULL).replace(b"Ada", b"Zo\xeb"), Reason.NOT_UTF8),
    ("UTF-16 with its mark", json.dumps(ENGAGEMENT).encode("utf-16"), Reason.NOT_UTF8),
    ("UTF-16 without one", json.dumps(ENGAGEMENT).encode("utf-16-le"), Reason.NOT_JSON),
    ("an encoded surrogate", encoded(FULL).replace(b"Ada", b"\xed\xa0\x80"), Reason.NOT_UTF8),
    ("an overlong encoding", encoded(FULL).replace(b"Ada", b"\xc0\x80"), Reason.NOT_UTF8),
    ("a cut character", encoded(FULL).replace(b"Ada", b"\xf0\x9f\x98"), Reason.NOT_UTF8),
    ("a byte order mark", b"\xef\xbb\xbf" + encoded(ENGAGEMENT), Reason.BYTE_ORDER_MARK),
    ("a byte order mark after a blank", b" \xef\xbb\xbf" + encoded(ENGAGEMENT), Reason.BYTE_ORDER_MARK),
    ("a no-break space in front", b"\xc2\xa0" + encoded(ENGAGEMENT), Reason.NOT_JSON),
    ("plain words", b"hello", Reason.NOT_JSON),
    ("a cut object", encoded(ENGAGEMENT)[:-1], Reason.NOT_JSON),
    ("single quotes", str(ENGAGEMENT).encode(), Reason.NOT_JSON),
    ("a comma too many", encoded(ENGAGEMENT)[:-1] + b",}", Reason.NOT_JSON),
    ("a comment", b"/* hello */" + encoded(ENGAGEMENT), Reason.NOT_JSON),
    ("a name without quotes", b"{type: 1}", Reason.NOT_JSON),
    ("a bare line break in a string", encoded(FULL).replace(b"Hello", b"Hel\nlo"), Reason.NOT_JSON),
    ("an unknown escape", encoded(FULL).replace(b"Hello", rb"Hel\xlo"), Reason.NOT_JSON),
    ("a leading zero", raw(ENGAGEMENT, "version", "01"), Reason.NOT_JSON),
    ("a hexadecimal number", raw(ENGAGEMENT, "version", "0x1"), Reason.NOT_JSON),
    ("Python's True", raw(ENGAGEMENT, "extra", "True"), Reason.NOT_JSON),
    ("a NUL byte at the end", encoded(ENGAGEMENT) + b"\0", Reason.TRAILING_CONTENT),
    ("junk after the object", encoded(ENGAGEMENT) + b" junk", Reason.TRAILING_CONTENT),
    ("two objects", encoded(ENGAGEMENT) + encoded(ENGAGEMENT), Reason.TRAILING_CONTENT),
    ("two objects on two lines", encoded(ENGAGEMENT) + b"\n" + encoded(ENGAGEMENT), Reason.TRAILING_CONTENT),
    ("a bracket too many", encoded(ENGAGEMENT) + b"}", Reason.TRAILING_CONTENT),
    ("an array of objects", encoded([ENGAGEMENT]), Reason.NOT_AN_OBJECT),
    ("a string", encoded(json.dumps(ENGAGEMENT)), Reason.NOT_AN_OBJECT),
    ("null", b"null", Reason.NOT_AN_OBJECT),
    ("a number", b"1", Reason.NOT_AN_OBJECT),
    ("a key twice", raw(ENGAGEMENT, "type", '"call"'), Reason.DUPLICATE_KEY),
    ("a key twice, equal values", raw(ENGAGEMENT, "type", '"email_open"'), Reason.DUPLICATE_KEY),
    ("a key twice, once escaped", raw(ENGAGEMENT, r"\u0074ype", '"call"'), Reason.DUPLICATE_KEY),
    ("an attribute twice", raw(ENGAGEMENT, "attributes", '{"a": "1", "a": "2"}'), Reason.DUPLICATE_KEY),
    ("a key twice in an unknown field", raw(ENGAGEMENT, "extra", '[{"a": 1, "a": 2}]'), Reason.DUPLICATE_KEY),
    ("one level too deep", raw(ENGAGEMENT, "extra", json.dumps(nested(LIMITS.max_depth))), Reason.TOO_DEEP),
    ("very deep arrays", b"[" * 200_000, Reason.TOO_DEEP),
    ("very deep objects", b'{"a":' * 100_000, Reason.TOO_DEEP),
    ("NaN", raw(ENGAGEMENT, "extra", "NaN"), Reason.BAD_NUMBER),
    ("Infinity", raw(ENGAGEMENT, "version", "Infinity"), Reason.BAD_NUMBER),
    ("minus Infinity", raw(ENGAGEMENT, "extra", "[-Infinity]"), Reason.BAD_NUMBER),
    ("a float beyond a double", raw(ENGAGEMENT, "extra", "1e999"), Reason.BAD_NUMBER),
    ("an integer of 5,000 digits", raw(ENGAGEMENT, "version", "9" * 5000), Reason.BAD_NUMBER),
    ("an integer of half a million digits", raw(ENGAGEMENT, "extra", "9" * 500_000), Reason.BAD_NUMBER),
    ("half a pair in a value", raw(ENGAGEMENT, "subject", r'"\ud83d"'), Reason.UNPAIRED_SURROGATE),
    ("the wrong half first", raw(ENGAGEMENT, "subject", r'"\ude00\ud83d"'), Reason.UNPAIRED_SURROGATE),
    ("half a pair in an id", encoded(ENGAGEMENT).replace(b"p-1", rb"\uD800"), Reason.UNPAIRED_SURROGATE),
    ("half a pair in an attribute's key", raw(ENGAGEMENT, "attributes", r'{"\udfff": ""}'), Reason.UNPAIRED_SURROGATE),
    ("half a pair in an unknown field", raw(ENGAGEMENT, "extra", r'{"a": ["\udc00"]}'), Reason.UNPAIRED_SURROGATE),
]

BAD_ENGAGEMENTS: list[tuple[str, dict[str, Any], Reason, str]] = [
    ("an empty object", {}, Reason.MISSING_FIELD, "engagement_id"),
    *((f"no {field}", without(FULL, field), Reason.MISSING_FIELD, field) for field in ENGAGEMENT),
    *((f"null as {field}", FULL | {field: None}, Reason.MISSING_FIELD, field) for field in ENGAGEMENT),
    *((f"a number as {field}", FULL | {field: 7}, Reason.WRONG_TYPE, field) for field in ENGAGEMENT),
    ("a key in another case", without(FULL, "type") | {"Type": "call"}, Reason.MISSING_FIELD, "type"),
    ("a key with a blank", without(FULL, "type") | {"type ": "call"}, Reason.MISSING_FIELD, "type"),
    ("a list as organization_id", FULL | {"organization_id": ["org-1"]}, Reason.WRONG_TYPE, "organization_id"),
    ("true as person_name", FULL | {"person_name": True}, Reason.WRONG_TYPE, "person_name"),
    ("an object as channel", FULL | {"channel": {}}, Reason.WRONG_TYPE, "channel"),
    ("a number as subject", FULL | {"subject": 1}, Reason.WRONG_TYPE, "subject"),
    ("text as version", FULL | {"version": "1"}, Reason.WRONG_TYPE, "version"),
    ("true as version", FULL | {"version": True}, Reason.WRONG_TYPE, "version"),
    ("a whole float as version", FULL | {"version": 1.0}, Reason.WRONG_TYPE, "version"),
    ("version 0", FULL | {"version": 0}, Reason.BAD_VERSION, "version"),
    ("a negative version", FULL | {"version": -1}, Reason.BAD_VERSION, "version"),
    ("a version beyond 64 bits", FULL | {"version": 2**63}, Reason.BAD_VERSION, "version"),
    ("a list as attributes", FULL | {"attributes": []}, Reason.WRONG_TYPE, "attributes"),
    ("text as attributes", FULL | {"attributes": "{}"}, Reason.WRONG_TYPE, "attributes"),
    ("a number as an attribute", FULL | {"attributes": {"a": 1}}, Reason.WRONG_TYPE, "attributes"),
    ("null as an attribute", FULL | {"attributes": {"a": "", "b": None}}, Reason.WRONG_TYPE, "attributes"),
    ("an empty id", FULL | {"person_id": ""}, Reason.EMPTY_ID, "person_id"),
    ("257 code points", FULL | {"engagement_id": "é" * 257}, Reason.ID_TOO_LONG, "engagement_id"),
    ("only a blank", FULL | {"person_id": " "}, Reason.BLANK_END, "person_id"),
    ("a blank in front", FULL | {"person_id": " p-1"}, Reason.BLANK_END, "person_id"),
    ("a blank at the end", FULL | {"organization_id": "org-1 "}, Reason.BLANK_END, "organization_id"),
    ("a no-break space at the end", FULL | {"person_id": "p-1\u00a0"}, Reason.BLANK_END, "person_id"),
    ("an ideographic space in front", FULL | {"person_id": "\u3000p-1"}, Reason.BLANK_END, "person_id"),
    ("a NUL", FULL | {"person_id": "p\u0000-1"}, Reason.CONTROL_CHARACTER, "person_id"),
    ("a line break at the end", FULL | {"person_id": "p-1\n"}, Reason.CONTROL_CHARACTER, "person_id"),
    ("a tab", FULL | {"organization_id": "org\t1"}, Reason.CONTROL_CHARACTER, "organization_id"),
    ("a DEL", FULL | {"engagement_id": "e\u007f1"}, Reason.CONTROL_CHARACTER, "engagement_id"),
    ("a C1 control", FULL | {"engagement_id": "e\u0085\u00b51"}, Reason.CONTROL_CHARACTER, "engagement_id"),
    ("the partition of null", FULL | {"organization_id": "__HIVE_DEFAULT_PARTITION__"}, Reason.RESERVED_ID, "organi"),
]

BAD_TIMES: list[tuple[str, Reason]] = [
    ("", Reason.BAD_TIME),
    ("yesterday", Reason.BAD_TIME),
    ("2026-02-28", Reason.BAD_TIME),
    ("2026-02-28 10:00:00Z", Reason.BAD_TIME),
    ("2026-02-28t10:00:00z", Reason.BAD_TIME),
    ("20260228T100000Z", Reason.BAD_TIME),
    ("2026-W09-6T10:00:00Z", Reason.BAD_TIME),
    ("2026-059T10:00:00Z", Reason.BAD_TIME),
    ("2026-2-28T10:00:00Z", Reason.BAD_TIME),
    ("2026-02-29T10:00:00Z", Reason.BAD_TIME),
    ("2026-13-01T10:00:00Z", Reason.BAD_TIME),
    ("0000-01-01T10:00:00Z", Reason.BAD_TIME),
    ("2026-02-28T24:00:00Z", Reason.BAD_TIME),
    ("2026-02-28T10:60:00Z", Reason.BAD_TIME),
    ("2016-12-31T23:59:60Z", Reason.BAD_TIME),
    ("2026-02-28T10Z", Reason.BAD_TIME),
    ("2026-02-28T10:00:00.Z", Reason.BAD_TIME),
    ("2026-02-28T10:00:00.1234567890Z", Reason.BAD_TIME),
    ("2026-02-28T10:00:00+24:00", Reason.BAD_TIME),
    ("2026-02-28T10:00:00+01:60", Reason.BAD_TIME),
    ("2026-02-28T10:00:00 +01:00", Reason.BAD_TIME),
    ("2026-02-28T10:00:00Z ", Reason.BAD_TIME),
    ("2026-02-28T10:00:00Z\n", Reason.BAD_TIME),
    ("2026-02-28T10:00:00 UTC", Reason.BAD_TIME),
    ("2026-02-28T10:00:00Europe/Oslo", Reason.BAD_TIME),
    ("٢٠٢٦-02-28T10:00:00Z", Reason.BAD_TIME),
    ("1772272800", Reason.BAD_TIME),
    ("+12026-02-28T10:00:00Z", Reason.BAD_TIME),
    ("2026-02-28T10:00:00", Reason.TIME_WITHOUT_OFFSET),
    ("2026-02-28T10:00:00.123", Reason.TIME_WITHOUT_OFFSET),
    ("1999-12-31T23:59:59.999999Z", Reason.TIME_OUT_OF_RANGE),
    ("2000-01-01T00:30:00+01:00", Reason.TIME_OUT_OF_RANGE),
    ("2026-03-02T12:00:00.000001Z", Reason.TIME_OUT_OF_RANGE),
    ("0001-01-01T00:00:00+14:00", Reason.TIME_OUT_OF_RANGE),
    ("9999-12-31T23:59:59-14:00", Reason.TIME_OUT_OF_RANGE),
]

BAD_REQUESTS: list[tuple[str, dict[str, Any], Reason, str]] = [
    *(
        (f"no {field}", without(REQUEST, field), Reason.MISSING_FIELD, field)
        for field in ("request_id", "organization_id", "operation", "execution_ts")
    ),
    ("an unknown operation", REQUEST | {"operation": "MERGE"}, Reason.UNKNOWN_OPERATION, "operation"),
    ("an operation in lower case", REQUEST | {"operation": "convert"}, Reason.UNKNOWN_OPERATION, "operation"),
    ("a number as operation", REQUEST | {"operation": 1}, Reason.WRONG_TYPE, "operation"),
    ("a time without offset", REQUEST | {"execution_ts": "2026-02-28T10:00:00"}, Reason.TIME_WITHOUT_OFFSET, "exec"),
    ("CONVERT without from_id", without(REQUEST, "from_id"), Reason.MISSING_FROM_ID, "from_id"),
    ("CONVERT without to_id", without(REQUEST, "to_id"), Reason.MISSING_TO_ID, "to_id"),
    ("CONVERT to null", REQUEST | {"to_id": None}, Reason.MISSING_TO_ID, "to_id"),
    ("CONVERT to a number", REQUEST | {"to_id": 5}, Reason.WRONG_TYPE, "to_id"),
    ("CONVERT to itself", REQUEST | {"to_id": "lead-1"}, Reason.SELF_CONVERSION, "CONVERT"),
    ("CONVERT of a bad engagement", REQUEST | {"engagement_id": ""}, Reason.EMPTY_ID, "engagement_id"),
    ("a range that ends before it begins", REQUEST | {
        "engagement_date_from": "2026-01-02", "engagement_date_to": "2026-01-01"
    }, Reason.REVERSED_RANGE, "engagement_date_from"),
    ("a day that isn't", DELETE | {"engagement_date_to": "2026-02-29"}, Reason.BAD_DATE, "engagement_date_to"),
    ("a time as date", DELETE | {"engagement_date_to": "2026-02-28T00:00:00Z"}, Reason.BAD_DATE, "engagement_date_to"),
    ("a date without dashes", DELETE | {"engagement_date_from": "20260228"}, Reason.BAD_DATE, "engagement_date_from"),
    ("a number as date", DELETE | {"engagement_date_from": 20260228}, Reason.WRONG_TYPE, "engagement_date_from"),
    ("DELETE of nothing", without(DELETE, "from_id"), Reason.NO_TARGET, "DELETE"),
    ("DELETE of two nulls", DELETE | {"from_id": None, "engagement_id": None}, Reason.NO_TARGET, "DELETE"),
    ("DELETE of a range alone", without(DELETE, "from_id") | {"engagement_date_from": "2026-01-01"}, Reason.NO_TARGET,
     "DELETE"),
    ("RENAME without from_id", without(RENAME, "from_id"), Reason.MISSING_FROM_ID, "from_id"),
    ("RENAME without name", without(RENAME, "name"), Reason.MISSING_NAME, "name"),
    ("RENAME to a number", RENAME | {"name": 1}, Reason.WRONG_TYPE, "name"),
    ("UPDATE without engagement_id", without(UPDATE, "engagement_id"), Reason.MISSING_ENGAGEMENT_ID, "engagement_id"),
    ("UPDATE with a number as channel", UPDATE | {"channel": 1}, Reason.WRONG_TYPE, "channel"),
    ("UPDATE with a number as attribute", UPDATE | {"attributes": {"a": 1}}, Reason.WRONG_TYPE, "attributes"),
    ("UPDATE with a list as attributes", UPDATE | {"attributes": ["a"]}, Reason.WRONG_TYPE, "attributes"),
]  # fmt: skip


def refused(outcome: Engagement | MutationRequest | Rejection) -> Rejection:
    assert isinstance(outcome, Rejection), f"it was accepted: {outcome}"
    return outcome


def engagement(message: bytes | dict[str, Any], limits: DecodingLimits = LIMITS) -> Engagement:
    outcome = decode_engagement(message if isinstance(message, bytes) else encoded(message), limits, NOW)
    assert isinstance(outcome, Engagement), outcome
    return outcome


def request(message: dict[str, Any]) -> MutationRequest:
    outcome = decode_mutation_request(encoded(message), LIMITS, NOW)
    assert isinstance(outcome, MutationRequest), outcome
    return outcome


@pytest.mark.parametrize(("value", "reason"), [bad[1:] for bad in BAD_BYTES], ids=[bad[0] for bad in BAD_BYTES])
def test_bytes_that_are_not_one_strict_object_are_refused_for_both_topics(value: bytes | None, reason: Reason) -> None:
    assert refused(decode_engagement(value, LIMITS, NOW)).code == reason
    assert refused(decode_mutation_request(value, LIMITS, NOW)).code == reason


@pytest.mark.parametrize(
    ("message", "reason", "named"), [bad[1:] for bad in BAD_ENGAGEMENTS], ids=[bad[0] for bad in BAD_ENGAGEMENTS]
)
def test_a_bad_engagement_is_refused_with_its_reason_and_the_field(
    message: dict[str, Any], reason: Reason, named: str
) -> None:
    rejection = refused(decode_engagement(encoded(message), LIMITS, NOW))
    assert rejection.code == reason
    assert named in rejection.sentence


@pytest.mark.parametrize(("text", "reason"), BAD_TIMES)
def test_a_bad_time_is_refused_in_engagements_and_requests(text: str, reason: Reason) -> None:
    assert refused(decode_engagement(encoded(FULL | {"engagement_ts": text}), LIMITS, NOW)).code == reason
    assert refused(decode_mutation_request(encoded(REQUEST | {"execution_ts": text}), LIMITS, NOW)).code == reason


@pytest.mark.parametrize(
    ("message", "reason", "named"), [bad[1:] for bad in BAD_REQUESTS], ids=[bad[0] for bad in BAD_REQUESTS]
)
def test_a_bad_request_is_refused_with_its_reason_and_the_field(
    message: dict[str, Any], reason: Reason, named: str
) -> None:
    rejection = refused(decode_mutation_request(encoded(message), LIMITS, NOW))
    assert rejection.code == reason
    assert named in rejection.sentence


def test_an_engagement_arrives_field_by_field() -> None:
    assert engagement(FULL) == Engagement(
        unknown_fields=0,
        organization_id="org-1",
        engagement_date=date(2026, 2, 28),
        engagement_ts=datetime(2026, 2, 28, 10, tzinfo=UTC),
        engagement_id="e-1",
        person_id="p-1",
        person_name="Ada",
        version=3,
        type="email_open",
        channel="email",
        subject="Hello",
        attributes={"campaign": "spring"},
    )


def test_a_null_optional_field_is_a_missing_one_and_the_version_is_one() -> None:
    nulls = dict.fromkeys(("person_name", "version", "channel", "subject", "attributes"))
    assert engagement(ENGAGEMENT | nulls) == engagement(ENGAGEMENT)
    assert engagement(ENGAGEMENT).version == 1


@pytest.mark.parametrize(
    "odd",
    ["../../etc", "/", ".", "a/b=c%2F", "😀", "é" * 256, "😀" * 256, "a b", "\u202eabc", "a\u200d", "null", "A", "a",
     "1", "'; DROP TABLE x", "\\", '"', "__hive_default_partition__", "e\u0301", "é", "a\u2028b", "-"],
)  # fmt: skip
def test_an_odd_id_is_kept_verbatim(odd: str) -> None:
    for ascii_only in (False, True):
        sent = json.dumps(
            ENGAGEMENT | {"engagement_id": odd, "organization_id": odd, "person_id": odd}, ensure_ascii=ascii_only
        )
        arrived = engagement(sent.encode())
        assert (arrived.engagement_id, arrived.organization_id, arrived.person_id) == (odd, odd, odd)


def test_the_reserved_value_is_fine_where_nothing_is_partitioned_by_it() -> None:
    assert engagement(FULL | {"person_id": "__HIVE_DEFAULT_PARTITION__"}).person_id == "__HIVE_DEFAULT_PARTITION__"


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
def test_a_time_arrives_in_utc_cut_to_microseconds_with_its_utc_date(text: str, expected: datetime) -> None:
    arrived = engagement(ENGAGEMENT | {"engagement_ts": text})
    assert (arrived.engagement_ts, arrived.engagement_date) == (expected, expected.date())
    assert arrived.engagement_ts.tzinfo is UTC


def test_white_space_around_the_object_is_fine() -> None:
    assert engagement(b"\r\n\t " + encoded(FULL) + b" \n\n") == engagement(FULL)


def test_an_escaped_pair_is_one_character() -> None:
    assert engagement(raw(ENGAGEMENT, "subject", r'"\ud83d\ude00"')).subject == "😀"
    assert engagement(raw(ENGAGEMENT, "subject", r'"\\ud83d"')).subject == r"\ud83d"


def test_exactly_the_limits_are_fine() -> None:
    exactly = encoded(ENGAGEMENT) + b" " * (LIMITS.max_bytes - len(encoded(ENGAGEMENT)))
    assert engagement(exactly) == engagement(ENGAGEMENT)
    assert engagement(ENGAGEMENT | {"extra": nested(LIMITS.max_depth - 1)}).unknown_fields == 1
    assert engagement(ENGAGEMENT | {"version": 2**63 - 1}).version == 2**63 - 1


def test_brackets_inside_strings_are_not_depth() -> None:
    assert engagement(ENGAGEMENT | {"subject": '[{"' * 1000 + "\\"}).subject == '[{"' * 1000 + "\\"
    wide = {f"k{n}": [n] for n in range(100)}
    assert engagement(ENGAGEMENT | wide).unknown_fields == 100


def test_unknown_fields_are_counted_or_quarantined_as_the_setting_says() -> None:
    message = FULL | {"Type": "x", "extra": None}
    assert engagement(message).unknown_fields == 2
    assert engagement(message)._replace(unknown_fields=0) == engagement(FULL)
    strict = replace(LIMITS, unknown_fields="quarantine")
    assert refused(decode_engagement(encoded(message), strict, NOW)).code == Reason.UNKNOWN_FIELDS
    assert refused(decode_mutation_request(encoded(REQUEST | {"x": 1}), strict, NOW)).code == Reason.UNKNOWN_FIELDS
    assert engagement(FULL, strict) == engagement(FULL)


def test_the_limits_come_from_the_settings() -> None:
    assert DecodingLimits.of(DecodingSettings()) == LIMITS
    naive = DecodingSettings(earliest=datetime(2026, 2, 28, 10), max_ahead=timedelta.max)  # noqa: DTZ001
    assert engagement(ENGAGEMENT, DecodingLimits.of(naive)).engagement_date == date(2026, 2, 28)


def test_a_conversion_keeps_its_range_and_engagement_and_ignores_the_rest() -> None:
    ranged = REQUEST | {
        "engagement_id": "e-1",
        "engagement_date_from": "2026-01-01",
        "engagement_date_to": "2026-01-01",
        "name": 5,
        "channel": ["ignored"],
        "attributes": 7,
    }
    assert request(ranged) == MutationRequest(
        unknown_fields=0,
        request_id="r-1",
        organization_id="org-1",
        operation="CONVERT",
        from_id="lead-1",
        to_id="contact-1",
        name=None,
        engagement_id="e-1",
        type=None,
        channel=None,
        subject=None,
        attributes=None,
        set_null=None,
        engagement_date_from=date(2026, 1, 1),
        engagement_date_to=date(2026, 1, 1),
        execution_ts=datetime(2026, 2, 28, 10, tzinfo=UTC),
    )


def test_a_deletion_names_a_person_an_engagement_or_both() -> None:
    one = without(DELETE, "from_id") | {"engagement_id": "e-1", "to_id": ""}
    assert (request(one).from_id, request(one).engagement_id, request(one).to_id) == (None, "e-1", None)
    both = DELETE | {"engagement_id": "e-1", "engagement_date_to": "2026-01-31"}
    assert (request(both).from_id, request(both).engagement_id) == ("p-1", "e-1")
    assert (request(both).engagement_date_from, request(both).engagement_date_to) == (None, date(2026, 1, 31))


def test_a_rename_uses_nothing_but_id_and_name() -> None:
    renamed = request(RENAME | {"to_id": "x", "engagement_date_from": "never", "engagement_id": "e"})
    assert (renamed.from_id, renamed.name) == ("p-1", "Ada")
    assert (renamed.to_id, renamed.engagement_id, renamed.engagement_date_from) == (None, None, None)


def test_an_update_tells_null_from_absent() -> None:
    patched = request(UPDATE | {"type": None, "channel": None, "attributes": {"keep": "1", "drop": None}})
    assert (patched.type, patched.channel, patched.subject) == (None, None, None)
    assert patched.set_null == ["channel"]
    assert patched.attributes == {"keep": "1", "drop": None}
    assert patched.from_id is None
    assert request(UPDATE | {"subject": "New"}).set_null == []
    assert request(UPDATE | {"subject": None, "channel": None}).set_null == ["channel", "subject"]
    assert request(UPDATE | {"attributes": None}).attributes is None


def test_every_reason_has_a_sentence_and_a_stable_code() -> None:
    assert all(reason.sentence.endswith(".") for reason in Reason)
    assert all(str(reason) == reason.name.lower() for reason in Reason)


def test_a_sentence_never_holds_what_the_message_says() -> None:
    secret = "s3cr3t"
    for message in (
        FULL | {"person_id": f" {secret}"},
        FULL | {"engagement_ts": secret},
        FULL | {"type": [secret]},
        {**FULL, "attributes": {secret: 1}},
    ):
        assert secret not in refused(decode_engagement(encoded(message), LIMITS, NOW)).sentence
    strict = replace(LIMITS, unknown_fields="quarantine")
    assert secret not in refused(decode_engagement(encoded(FULL | {secret: 1}), strict, NOW)).sentence


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(value: bytes) -> None:
    assert isinstance(decode_engagement(value, LIMITS, NOW), Engagement | Rejection)
    assert isinstance(decode_mutation_request(value, LIMITS, NOW), MutationRequest | Rejection)


@given(
    message=st.sampled_from([FULL, REQUEST, DELETE, RENAME, UPDATE]),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=4),
)
def test_no_damage_to_a_good_message_makes_it_raise(
    message: dict[str, Any], cuts: list[tuple[float, int, bytes]]
) -> None:
    value = encoded(message)
    for where, length, other in cuts:
        at = int(where * len(value))
        value = value[:at] + other + value[at + length :]
    assert isinstance(decode_engagement(value, LIMITS, NOW), Engagement | Rejection)
    assert isinstance(decode_mutation_request(value, LIMITS, NOW), MutationRequest | Rejection)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=50)
@given(message=st.dictionaries(st.sampled_from([*FULL, *MutationRequest._fields]), JSON_VALUES))
def test_no_values_in_the_declared_fields_make_it_raise(message: dict[str, Any]) -> None:
    value = json.dumps(message).encode()
    assert isinstance(decode_engagement(value, LIMITS, NOW), Engagement | Rejection)
    outcome = decode_mutation_request(json.dumps(UPDATE | message).encode(), LIMITS, NOW)
    assert isinstance(outcome, MutationRequest | Rejection)


# Half pairs and control characters are in the tables above.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=256).filter(
    lambda text: text.strip() == text
)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@settings(max_examples=50)
@given(
    ids=st.tuples(IDS, IDS, IDS),
    time=st.datetimes(datetime(2000, 1, 2), datetime(2026, 3, 1), timezones=ZONES),  # noqa: DTZ001
    version=st.integers(1, 2**63 - 1),
    texts=st.tuples(TEXTS, *[st.none() | TEXTS] * 3),
    attributes=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=4),
    ascii_only=st.booleans(),
)
def test_what_is_sent_is_what_arrives(
    ids: tuple[str, str, str],
    time: datetime,
    version: int,
    texts: tuple[str, str | None, str | None, str | None],
    attributes: dict[str, str] | None,
    ascii_only: bool,
) -> None:
    sent = {
        "engagement_id": ids[0],
        "organization_id": ids[1],
        "person_id": ids[2],
        "engagement_ts": time.isoformat(),
        "version": version,
        **dict(zip(("type", "person_name", "channel", "subject"), texts, strict=True)),
        "attributes": attributes,
    }
    arrived = engagement(json.dumps(sent, ensure_ascii=ascii_only).encode())
    assert {field: getattr(arrived, field) for field in sent} == sent | {"engagement_ts": time}
    assert arrived.engagement_date == time.astimezone(UTC).date()


FIELDS = sorted(get_args(MessageField))


@given(st.sampled_from([ENGAGEMENT, FULL, REQUEST, DELETE, RENAME, UPDATE]), st.sets(st.sampled_from(FIELDS)))
def test_a_message_that_spells_fields_otherwise_says_the_same(message: dict[str, Any], spelled: set[str]) -> None:
    limits = replace(LIMITS, aliases=tuple((field.title(), field) for field in FIELDS), unknown_fields="quarantine")
    decode = decode_mutation_request if "operation" in message else decode_engagement
    otherwise = {name.title() if name in spelled else name: of for name, of in message.items()}
    assert decode(encoded(otherwise), limits, NOW) == decode(encoded(message), LIMITS, NOW)
    for name in spelled & message.keys():
        both = decode(encoded(otherwise | {name: message[name]}), limits, NOW)
        assert isinstance(both, Rejection)
        assert both.code is Reason.DUPLICATE_KEY


def test_only_fields_of_messages_can_be_spelled_otherwise_and_by_no_field_s_name() -> None:
    fields = (set(Engagement._fields) | set(MutationRequest._fields)) - {
        "unknown_fields",
        "set_null",
        "engagement_date",
    }
    assert set(FIELDS) == fields
    settings = DecodingSettings(aliases={"OrgId": "organization_id"})
    assert DecodingLimits.of(settings).aliases == (("OrgId", "organization_id"),)
    for wrong, complaint in (
        ({"OrgId": "organisation_id"}, "'organization_id'"),
        ({"name": "person_name"}, "name: a f"),
    ):
        with pytest.raises(ValidationError, match=complaint):
            DecodingSettings.model_validate({"aliases": wrong})

"""What fields of engagements and requests may be. Bytes are in `test_strict_json`, ids and times in `test_values`."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from engagement_platform.settings import DecodingSettings, MessageField
from engagement_platform.sources.decoding import (
    Decode,
    change_decoder,
    engagement_decoder,
    mutation_request_decoder,
    record_decoder,
)
from engagement_platform.sources.messages import (
    ChangeShape,
    DecodingLimits,
    Engagement,
    MutationRequest,
    Reason,
    RecordShape,
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


def decode_engagement(value: bytes, limits: DecodingLimits = LIMITS) -> Engagement | Rejection:
    return engagement_decoder(limits, NOW)(value)


def decode_mutation_request(value: bytes, limits: DecodingLimits = LIMITS) -> MutationRequest | Rejection:
    return mutation_request_decoder(limits, NOW)(value)


def encoded(message: object) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode()


def without(message: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != field}


ID_FIELDS = ("engagement_id", "organization_id", "person_id")
BAD_ENGAGEMENTS: list[tuple[str, dict[str, Any], Reason, str]] = [
    ("an empty object", {}, Reason.MISSING_FIELD, "engagement_id"),
    *((f"no {field}", without(FULL, field), Reason.MISSING_FIELD, field) for field in ENGAGEMENT),
    *((f"null as {field}", FULL | {field: None}, Reason.MISSING_FIELD, field) for field in ENGAGEMENT),
    *((f"a number as {field}", FULL | {field: 7}, Reason.WRONG_TYPE, field) for field in ENGAGEMENT),
    ("a key in another case", without(FULL, "type") | {"Type": "call"}, Reason.MISSING_FIELD, "type"),
    ("a key with a blank", without(FULL, "type") | {"type ": "call"}, Reason.MISSING_FIELD, "type"),
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
    *((f"a blank in front of {field}", FULL | {field: " x"}, Reason.BLANK_END, field) for field in ID_FIELDS),
    ("257 code points", FULL | {"engagement_id": "é" * 257}, Reason.ID_TOO_LONG, "engagement_id"),
    ("a day as time", FULL | {"engagement_ts": "2026-02-28"}, Reason.BAD_TIME, "engagement_ts"),
    ("a time too far ahead", FULL | {"engagement_ts": "2026-03-02T12:00:00.000001Z"}, Reason.TIME_OUT_OF_RANGE,
     "engagement_ts"),
    ("the partition of null", FULL | {"organization_id": "__HIVE_DEFAULT_PARTITION__"}, Reason.RESERVED_ID, "organi"),
]  # fmt: skip

BAD_REQUESTS: list[tuple[str, dict[str, Any], Reason, str]] = [
    *(
        (f"no {field}", without(REQUEST, field), Reason.MISSING_FIELD, field)
        for field in ("request_id", "organization_id", "operation", "execution_ts")
    ),
    ("an unknown operation", REQUEST | {"operation": "MERGE"}, Reason.UNKNOWN_OPERATION, "operation"),
    ("an operation in lower case", REQUEST | {"operation": "convert"}, Reason.UNKNOWN_OPERATION, "operation"),
    ("a number as operation", REQUEST | {"operation": 1}, Reason.WRONG_TYPE, "operation"),
    ("a time without offset", REQUEST | {"execution_ts": "2026-02-28T10:00:00"}, Reason.TIME_WITHOUT_OFFSET, "exec"),
    *((f"a blank in front of {field}", REQUEST | {field: " x"}, Reason.BLANK_END, field)
      for field in ("request_id", "organization_id", "from_id", "to_id")),
    ("the partition of null", REQUEST | {"organization_id": "__HIVE_DEFAULT_PARTITION__"}, Reason.RESERVED_ID, "organ"),
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


def refused(outcome: tuple[Any, ...]) -> Rejection:
    assert isinstance(outcome, Rejection), f"it was accepted: {outcome}"
    return outcome


def engagement(message: bytes | dict[str, Any], limits: DecodingLimits = LIMITS) -> Engagement:
    outcome = decode_engagement(message if isinstance(message, bytes) else encoded(message), limits)
    assert isinstance(outcome, Engagement), outcome
    return outcome


def request(message: dict[str, Any]) -> MutationRequest:
    outcome = decode_mutation_request(encoded(message))
    assert isinstance(outcome, MutationRequest), outcome
    return outcome


BAD = [
    *(pytest.param(decode_engagement, *bad, id=name) for name, *bad in BAD_ENGAGEMENTS),
    *(pytest.param(decode_mutation_request, *bad, id=name) for name, *bad in BAD_REQUESTS),
]


@pytest.mark.parametrize(("decode", "message", "reason", "named"), BAD)
def test_a_bad_message_is_refused_with_its_reason_and_the_field(
    decode: Decode, message: dict[str, Any], reason: Reason, named: str
) -> None:
    rejection = refused(decode(encoded(message)))
    assert rejection.code == reason
    assert named in rejection.sentence


def test_a_null_optional_field_is_a_missing_one_and_the_version_is_one() -> None:
    nulls = dict.fromkeys(("person_name", "version", "channel", "subject", "attributes"))
    assert engagement(ENGAGEMENT | nulls) == engagement(ENGAGEMENT)
    assert engagement(ENGAGEMENT).version == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-02-28T10:00:00.123456789+14:00", datetime(2026, 2, 27, 20, 0, 0, 123_456, tzinfo=UTC)),
        ("2026-02-28T20:00:00-11:30", datetime(2026, 3, 1, 7, 30, tzinfo=UTC)),
    ],
)
def test_a_time_arrives_in_utc_cut_to_microseconds_with_its_utc_date(text: str, expected: datetime) -> None:
    arrived = engagement(ENGAGEMENT | {"engagement_ts": text})
    assert (arrived.engagement_ts, arrived.engagement_date) == (expected, expected.date())
    assert arrived.engagement_ts.tzinfo is UTC


def test_unknown_fields_are_counted_or_quarantined_as_the_setting_says() -> None:
    message = FULL | {"Type": "x", "extra": None}
    assert engagement(message).unknown_fields == 2
    assert engagement(message)._replace(unknown_fields=0) == engagement(FULL)
    strict = replace(LIMITS, unknown_fields="quarantine")
    assert refused(decode_engagement(encoded(message), strict)).code == Reason.UNKNOWN_FIELDS
    assert refused(decode_mutation_request(encoded(REQUEST | {"x": 1}), strict)).code == Reason.UNKNOWN_FIELDS
    assert engagement(FULL, strict) == engagement(FULL)


def test_the_limits_come_from_the_settings_and_bound_every_message() -> None:
    assert DecodingLimits.of(DecodingSettings()) == LIMITS
    small = DecodingLimits.of(DecodingSettings(max_bytes=50))
    shallow = DecodingLimits.of(DecodingSettings(max_depth=1))
    assert refused(decode_engagement(encoded(FULL), small)).code == Reason.TOO_LARGE
    assert refused(decode_mutation_request(encoded(UPDATE | {"attributes": {}}), shallow)).code == Reason.TOO_DEEP


def test_a_conversion_keeps_its_range_and_engagement_and_ignores_the_rest() -> None:
    ranged = REQUEST | {
        "engagement_id": "e-1",
        "engagement_date_from": "2026-01-01",
        "engagement_date_to": "2026-01-01",
        "name": 5,
        "channel": ["ignored"],
        "attributes": 7,
    }
    assert {field: value for field, value in request(ranged)._asdict().items() if value is not None} == {
        "unknown_fields": 0,
        "request_id": "r-1",
        "organization_id": "org-1",
        "operation": "CONVERT",
        "from_id": "lead-1",
        "to_id": "contact-1",
        "engagement_id": "e-1",
        "engagement_date_from": date(2026, 1, 1),
        "engagement_date_to": date(2026, 1, 1),
        "execution_ts": datetime(2026, 2, 28, 10, tzinfo=UTC),
    }


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
        assert secret not in refused(decode_engagement(encoded(message))).sentence
    strict = replace(LIMITS, unknown_fields="quarantine")
    assert secret not in refused(decode_engagement(encoded(FULL | {secret: 1}), strict)).sentence


@pytest.mark.parametrize(
    "decode",
    [
        engagement_decoder(LIMITS, NOW),
        mutation_request_decoder(LIMITS, NOW),
        record_decoder(RecordShape((("person_id", "string"), ("version", "long"))), LIMITS, NOW),
        change_decoder(ChangeShape("engagement_id", "version", (("name", "string"),)), LIMITS, NOW),
    ],
    ids=["engagements", "requests", "records", "changes"],
)
@given(
    message=st.sampled_from([FULL, REQUEST, DELETE, RENAME, UPDATE]),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=4),
)
def test_nothing_raises_on_any_bytes(
    decode: Decode, message: dict[str, Any], cuts: list[tuple[float, int, bytes]]
) -> None:
    """A good message, damaged; whatever else may come is tried in `conformance`."""
    value = encoded(message)
    for where, length, other in cuts:
        at = int(where * len(value))
        value = value[:at] + other + value[at + length :]
    assert isinstance(decode(value), tuple)


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
    assert decode(encoded(otherwise), limits) == decode(encoded(message))
    for name in spelled & message.keys():
        both = decode(encoded(otherwise | {name: message[name]}), limits)
        assert isinstance(both, Rejection)
        assert both.code is Reason.DUPLICATE_KEY


def test_only_fields_of_messages_can_be_spelled_otherwise_and_by_no_field_s_name() -> None:
    made = {"unknown_fields", "set_null", "engagement_date"}
    assert set(FIELDS) == (set(Engagement._fields) | set(MutationRequest._fields)) - made
    settings = DecodingSettings(aliases={"OrgId": "organization_id"})
    assert DecodingLimits.of(settings).aliases == (("OrgId", "organization_id"),)
    for wrong, complaint in (
        ({"OrgId": "organisation_id"}, "'organization_id'"),
        ({"name": "person_name"}, "name: a f"),
    ):
        with pytest.raises(ValidationError, match=complaint):
            DecodingSettings.model_validate({"aliases": wrong})

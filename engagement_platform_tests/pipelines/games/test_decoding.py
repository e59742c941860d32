"""Lines to events: what is taken, what is refused and why; on no bytes does anything raise."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.pipelines.games.decoding import Event, GameReason, Refusal, event_decoder
from engagement_platform.pipelines.games.event_type import ENVELOPE, EventType
from engagement_platform.pipelines.games.registry import EventTypeRefused, parse, registry
from engagement_platform.sources.messages import Reason
from engagement_platform_tests.docs.pages import ROOT, blocks, text
from engagement_platform_tests.pipelines.games.events import LIMITS, NOW, event, line

TYPES = registry()
DECODE = event_decoder(TYPES, LIMITS)
PURCHASE = TYPES["purchase"]


def taken(content: bytes) -> dict[str, Any]:
    """The columns of a line that is taken."""
    found = DECODE(content, NOW)
    assert isinstance(found, Event), found
    columns = (*(column.name for column in ENVELOPE), *TYPES[found.event_type].fields)
    return dict(zip(columns, found.values, strict=True))


def refused(content: bytes) -> str:
    """The code of a line that is refused."""
    found = DECODE(content, NOW)
    assert isinstance(found, Refusal), found
    return found.code


def test_thirty_types_are_declared() -> None:
    assert len(TYPES) == 30
    assert {"session_start", "purchase", "level_complete", "offer_shown", "ad_impression", "crash"} <= TYPES.keys()
    assert sum(bool(declared.pii) for declared in TYPES.values()) >= 8


@pytest.mark.parametrize("declared", TYPES.values(), ids=TYPES)
def test_a_good_event_of_every_type_is_taken(declared: EventType) -> None:
    row = taken(line(declared))
    assert row["event_date"] == date(2026, 11, 22)
    assert row["event_ts"] == datetime(2026, 11, 22, 11, 59, 30, tzinfo=UTC)
    assert all(value is not None for value in row.values())


def test_values_are_cleaned_as_declared() -> None:
    row = taken(line(PURCHASE, product_id=" sword ", currency="eur ", price=3, offer_id="", country=" "))
    assert row["platform"] == "ios"
    assert (row["product_id"], row["currency"], row["offer_id"], row["country"]) == ("sword", "EUR", None, None)
    assert (row["price"], type(row["price"])) == (3.0, float)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"event_type": "no_such_type"}, "unknown_event_type"),
        ({"event_type": 5}, "wrong_type"),
        ({"event_type": ...}, "missing_field"),
        ({"event_id": ""}, "empty_id"),
        ({"event_id": "x" * 257}, "id_too_long"),
        ({"game_id": "a/b"}, "bad_game_id"),
        ({"game_id": "__HIVE_DEFAULT_PARTITION__"}, "reserved_id"),
        ({"player_id": None}, "missing_field"),
        ({"event_ts": "yesterday"}, "bad_time"),
        ({"event_ts": "2026-11-22T11:00:00"}, "time_without_offset"),
        ({"event_ts": "2026-11-15T11:59:59Z"}, "late"),
        ({"event_ts": "2026-11-22T13:00:01Z"}, "future"),
        ({"product_id": None}, "missing_field"),
        ({"product_id": 7}, "wrong_type"),
        ({"price": "3.50"}, "wrong_type"),
        ({"price": -0.01}, "out_of_range"),
        ({"price_usd": 1e13}, "out_of_range"),
        ({"price_usd": 1e300}, "out_of_range"),
        ({"quantity": 1.0}, "wrong_type"),
        ({"quantity": True}, "wrong_type"),
        ({"quantity": 2**63}, "number_out_of_range"),
        ({"payment": {"card_number": "4111"}}, "personal_data"),
        ({"email": "ann@example.org"}, "personal_data"),
    ],
)
def test_what_is_wrong_with_an_event_is_told_by_its_code(fields: dict[str, Any], code: str) -> None:
    assert refused(line(PURCHASE, **fields)) == code


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty"),
        (b"{", "not_json"),
        (b"[1]", "not_an_object"),
        (b"\xff\xfe", "not_utf8"),
        (b'{"a":1}{"a":2}', "trailing_content"),
        (b'{"a":1,"a":1}', "duplicate_key"),
        (b'{"a":"' + b"x" * 1024 * 1024 + b'"}', "too_large"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "too_deep"),
        (b'{"a":NaN}', "bad_number"),
        (b'{"a":"\\ud800"}', "unpaired_surrogate"),
    ],
)
def test_what_is_no_json_object_is_told_by_its_code(content: bytes, code: str) -> None:
    assert refused(content) == code


@pytest.mark.parametrize(("ago", "takes"), [(timedelta(days=7), True), (timedelta(days=7, microseconds=1), False)])
def test_exactly_as_late_as_allowed_is_not_late(ago: timedelta, takes: bool) -> None:
    found = DECODE(line(PURCHASE, event_ts=(NOW - ago).isoformat()), NOW)
    assert isinstance(found, Event) == takes


def test_personal_data_below_a_list_is_found_and_its_line_is_not_kept() -> None:
    content = line(TYPES["social"], recipients=[{"id": 1}, {"email": "ann@example.org"}])
    found = DECODE(content, NOW)
    assert isinstance(found, Refusal)
    assert (found.code, found.event_type, found.is_kept) == ("personal_data", "social", False)
    assert "ann" not in found.sentence


@pytest.mark.parametrize(
    ("content", "code", "is_kept"),
    [
        (b'{"event_type":"purchase","payment":{"card_number":"4"},"x":1,"x":2}', "duplicate_key", False),
        (b'{"event_type":"purchase","payment":{"card_number":"4"},"payment":{}}', "duplicate_key", False),
        (b'{"event_type":"no_such_type","payment":{"card_number":"4"}}', "unknown_event_type", False),
        (b'{"event_type":"purchase","payment":{"card_number":"4"},"x":NaN}', "bad_number", False),
        (b'{"event_type":"purchase","payment":{"card_number":null}}', "missing_field", True),
        (b'{"event_type":"purchase","payment":{"card_number":"4"},"n":' + b"7" * 5000 + b"}", "bad_number", False),
        (b'[{"payment":{"card_number":"4"}}]', "not_an_object", False),
        (b'[{"level":4}]', "not_an_object", True),
        (b'{"player_id":"bob","player_id":"amy"}', "duplicate_key", False),
        (b" " * 9 * 1024 * 1024, "too_large", False),
        (b'{"event_type":"crash","payment":{"card_number":"4"}}', "missing_field", True),
        (b'{"event_type":"purchase","payment":{"card_number":"4"', "not_json", True),
    ],
)
def test_a_line_that_is_refused_for_another_reason_is_kept_unless_personal_data_is_found_in_it(
    content: bytes, code: str, is_kept: bool
) -> None:
    found = DECODE(content, NOW)
    assert isinstance(found, Refusal)
    assert (found.code, found.is_kept) == (code, is_kept)


def test_a_player_whose_id_is_a_number_is_its_digits() -> None:
    assert taken(line(PURCHASE, player_id=17))["player_id"] == "17"


def test_a_player_may_be_missing_where_the_declaration_says_so() -> None:
    assert taken(line(TYPES["server_status"], player_id=...))["player_id"] is None


def test_fields_that_nobody_declared_are_counted() -> None:
    found = DECODE(line(PURCHASE, colour="red", size=3), NOW)
    assert isinstance(found, Event)
    assert found.unknown_fields == 2
    strict = LIMITS._replace(decoding=LIMITS.decoding.__class__(unknown_fields="quarantine"))
    again = event_decoder(TYPES, strict)(line(PURCHASE, colour="red"), NOW)
    assert isinstance(again, Refusal)
    assert again.code == Reason.UNKNOWN_FIELDS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*event(PURCHASE), "payment", "billing", "email", "recipients", "flags", "expires_ts"])


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(deadline=None)
def test_no_bytes_make_it_raise(content: bytes) -> None:
    assert isinstance(DECODE(content, NOW), Event | Refusal)


@given(st.sampled_from(list(TYPES.values())), st.dictionaries(NAMES | st.text(max_size=5), JSON, max_size=4))
@settings(deadline=None)
def test_no_value_in_any_field_makes_it_raise_or_passes_as_another_type(
    declared: EventType, fields: dict[str, Any]
) -> None:
    found = DECODE(json.dumps(event(declared) | fields).encode(), NOW)
    if isinstance(found, Refusal):
        assert found.code in {*Reason, *GameReason}
        return
    kinds = {"string": str, "long": int, "double": float, "boolean": bool, "date": date, "timestamp": datetime,
             "array<string>": list}  # fmt: skip
    columns = TYPES[found.event_type].table.columns
    for column, value in zip(columns, found.values, strict=False):
        assert value is None or type(value) is kinds[column.type]


def test_every_reason_has_its_sentence_and_stands_on_the_page() -> None:
    page = text(ROOT / "docs" / "games.md")
    for reason in GameReason:
        assert f"| `{reason}` | {reason.sentence.replace('{field}', '*field*')} |" in page


def test_table_31_is_the_one_file_that_the_page_shows() -> None:
    (shown,) = (block for block in blocks(ROOT / "docs" / "games.md", "text") if "[fields]" in block)
    skip = parse("mine/level_skip.toml", shown)
    assert (skip.table.name, skip.pii) == ("game/level_skip", ("/contact/email",))
    decode = event_decoder({**TYPES, "level_skip": skip}, LIMITS)
    assert isinstance(decode(line(skip), NOW), Event)
    refused = decode(line(skip, reason="tired"), NOW)
    assert isinstance(refused, Refusal)
    assert refused.code == "not_allowed"


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ("description = ", "no TOML"),
        ('description = "x"', "fields"),
        ('description = "x"\n[fields]\nbatch_id = { type = "long", comment = "c" }', "batch_id already"),
        ('description = "x"\n[fields]\na = { type = "decimal", comment = "c" }', "fields.a.type"),
        ('description = "x"\n[fields]\na = { type = "long", comment = "c", clean = ["trim"] }', "for texts"),
        ('description = "x"\npii = ["/a"]\n[fields]\na = { type = "long", comment = "c" }', "personal data and a col"),
        ('description = "x"\ntypo = 1\n[fields]', "typo"),
    ],
)
def test_a_declaration_that_cannot_be_one_says_why(toml: str, why: str) -> None:
    with pytest.raises(EventTypeRefused, match=why):
        parse("mine/level_skip.toml", toml)

"""What an event must have, how bodies are taken apart, how fast and how much may come. No files, no HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.ingest_server.events import (
    EventRefused,
    Refused,
    Sent,
    as_it_was,
    check,
    sent_as_json,
    sent_as_lines,
    subject_of,
)
from engagement_platform.ingest_server.intake import Intake
from engagement_platform.ingest_server.limits import Allowance, Turned, whole_body
from engagement_platform.pii.vault import IdRefused, checked_id, open_vault
from engagement_platform.settings import DecodingSettings, IngestServerSettings, Settings
from engagement_platform_tests.growth import cpu_seconds

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
LIMITS = IngestServerSettings(max_event_bytes=500, max_depth=4, max_values=9, max_ahead=timedelta(days=1))
GOOD = {"event_id": "e", "event_type": "sale", "event_ts": "2026-11-22T12:00:00Z"}


def verdict(sent: Sent) -> str | None:
    try:
        check(sent, "puzzle", NOW, LIMITS, 256)
    except EventRefused as refused:
        return str(refused.reason)
    return None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, None),
        ({"game_id": "puzzle"}, None),
        ({"game_id": "other"}, "wrong_game"),
        ({"event_id": ""}, "bad_event_id"),
        ({"event_id": 7}, "bad_event_id"),
        ({"event_id": "x" * 257}, "bad_event_id"),
        ({"event_id": "a\nb"}, "bad_event_id"),
        ({"event_id": None}, "bad_event_id"),
        ({"event_id": "e "}, "bad_event_id"),
        ({"event_id": "\u00a0e"}, "bad_event_id"),
        ({"event_type": "Level Up"}, "bad_event_type"),
        ({"event_type": ["sale"]}, "bad_event_type"),
        ({"event_ts": "2026-11-22T12:00:00"}, "bad_event_ts"),
        ({"event_ts": 1763812800}, "bad_event_ts"),
        ({"event_ts": "2026-11-22T12:00:00.123456789Z"}, None),
        ({"event_ts": "2026-11-22T12:00:00.0004111111111111111Z"}, "bad_event_ts"),
        ({"event_ts": "2026-11-22T12:00:00.12+00:00:00.4111111111111111"}, "bad_event_ts"),
        ({"event_ts": "2026-11-23T13:00:00+01:00"}, None),
        ({"event_ts": "2026-11-23T12:00:01Z"}, "time_out_of_range"),
        ({"event_ts": "1999-12-31T23:59:59Z"}, "time_out_of_range"),
        ({"note": "x" * 500}, "too_large"),
        ({"a": {"b": {"c": 1}}}, None),
        ({"a": {"b": {"c": {}}}}, None),
        ({"a": {"b": {"c": [[]]}}}, "too_deep"),
        ({"note": "[[[[[[{{{{"}, None),
        ({"n": [{"a": 1, "b": [2, 3]}, [], 4, 5]}, None),
        ({"n": [{"a": 1, "b": [2, 3]}, [], 4, 5, 6]}, "too_many_values"),
        ({"n": [{"a": []}, {"a": []}, {}, {}, [], 4, 5]}, "too_many_values"),
        ({"note": ",,,,,,,,,,,,"}, None),
        ({"n": float("nan")}, "bad_number"),
        ({"note": "\ud800"}, "bad_text"),
    ],
)
def test_an_event_is_refused_for_the_first_rule_it_breaks(change: dict[str, object], code: str | None) -> None:
    assert verdict(Sent({**GOOD, **change})) == code


def test_only_objects_are_events() -> None:
    assert [verdict(Sent(value)) for value in (None, 3, "x", [GOOD])] == ["not_an_object"] * 4


@pytest.mark.parametrize("digits", [309, 4_000, 100_000])
def test_a_number_of_too_many_digits_refuses_its_own_event_only(digits: int) -> None:
    good = json.dumps(GOOD)[:-1]
    bodies = [f'{good}, "n": {number}}}' for number in ("9" * 308, "9" * digits, "-" + "9" * digits)]
    for found in (sent_as_json(f"[{','.join(bodies)}]".encode()), sent_as_lines("\n".join(bodies).encode())):
        assert [verdict(one) for one in found] == [None, "bad_number", "bad_number"]


def test_a_key_that_stands_twice_refuses_its_own_event_only() -> None:
    good = json.dumps(GOOD)
    body = f'[{good}, {{"a": {{"b": 1, "b": 2}}}}, {good}]'
    found = sent_as_json(body.encode())
    assert [verdict(sent) for sent in found] == [None, "duplicate_key", None]
    assert json.loads(as_it_was(found[1])) == {"a": {"b": {"values": [1, 2]}}}, "both values are kept"
    lines = sent_as_lines(b'{"a":1,"a":2}\n' + good.encode())
    assert [verdict(sent) for sent in lines] == ["duplicate_key", None]


def test_of_a_body_with_two_lists_every_event_is_refused_and_kept() -> None:
    good = json.dumps(GOOD)
    two = sent_as_json(f'{{"events": [{good}], "events": [{good}, 3]}}'.encode())
    assert [verdict(sent) for sent in two] == ["duplicate_key"] * 3
    assert [json.loads(as_it_was(sent)) for sent in two] == [GOOD, GOOD, 3]


def test_many_keys_of_which_one_stands_twice_are_read_in_one_pass() -> None:
    def read(keys: int) -> None:
        pairs = ",".join(f'"k{number}":0' for number in range(keys))
        [found] = sent_as_json(f'[{{{pairs},"k0":1}}]'.encode())
        assert verdict(found) == "duplicate_key"

    # 32 times as many; a look at all pairs for each key would take 1,024 times as long. On a busy machine, whose caches
    # hold the few and not the many, eight times as many took up to 24 times as long.
    assert cpu_seconds(lambda: read(160_000)) < 256 * cpu_seconds(lambda: read(5_000))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", Refused.NOT_JSON),
        (b"\xff\xfe", Refused.NOT_JSON),
        (b"[1,", Refused.NOT_JSON),
        (b"[" * 100_000, Refused.TOO_DEEP),
        (b'"events"', Refused.NOT_EVENTS),
        (b'{"events": 3}', Refused.NOT_EVENTS),
    ],
)
def test_a_body_without_events_says_why(body: bytes, reason: Refused) -> None:
    with pytest.raises(EventRefused) as refused:
        sent_as_json(body)
    assert refused.value.reason is reason


def test_every_reason_has_its_sentence() -> None:
    assert all(reason.sentence.endswith(".") for reason in Refused)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5))
@settings(deadline=None)
def test_whatever_is_refused_can_be_kept(value: object) -> None:
    assert as_it_was(Sent(value))


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3), max_size=4))
@settings(deadline=None)
def test_events_are_read_as_they_were_sent(events: list[dict[str, object]]) -> None:
    lines = b"\n".join(json.dumps(event).encode() for event in events)
    assert [sent.value for sent in sent_as_json(json.dumps(events).encode())] == events
    assert [sent.value for sent in sent_as_lines(lines)] == events


def test_a_subject_is_a_text_or_a_whole_number() -> None:
    assert subject_of({"player": {"id": "p"}}, ("player", "id"), 2) == "p"
    assert subject_of({"player_id": 17}, ("player_id",), 2) == "17"
    assert subject_of({"player": 3}, ("player", "id"), 2) is None
    for wrong in (True, 1.5, "", {"a": 1}, "\x00b", "abc", 170, -17):
        with pytest.raises(EventRefused):
            subject_of({"player_id": wrong}, ("player_id",), 2)


def test_ids_that_an_erasure_would_refuse_are_refused_at_the_door(tmp_path: Path) -> None:
    strict = Settings(home=tmp_path, decoding=DecodingSettings(max_id_length=64))
    intake = Intake(strict, open_vault(strict).keyring, "spool")
    events = [{**GOOD, "player_id": id_} for id_ in ("p" * 64, "p" * 65, 10**63, 10**64)]
    events += [{**GOOD, "event_id": "e" * length} for length in (64, 65)]
    taken = intake.take("puzzle", [Sent(each) for each in events], NOW)
    assert [(one.index, one.reason_code) for one in taken.refused] == [
        (1, "bad_subject"), (3, "bad_subject"), (5, "bad_event_id"),
    ]  # fmt: skip
    for refused in ("p" * 65, str(10**64)):
        with pytest.raises(IdRefused):
            checked_id(refused, "The subject's id", strict)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 30)), max_size=20))
@settings(deadline=None)
def test_no_more_events_pass_than_burst_and_rate_allow(asked: list[tuple[float, int]]) -> None:
    allowance, now, passed = Allowance(10.0, 25, 0.0), 0.0, 0
    for pause, events in asked:
        now += pause
        wait = allowance.wait(events, now)
        assert wait >= 0
        if wait == 0:
            passed += events
        # A request larger than the burst passes when the burst is full, and the debt is waited for afterwards.
        assert passed <= 25 + 10 * now + 5 + 1e-6


def test_what_was_read_beyond_the_allowance_is_a_debt_that_is_waited_for_to_the_last_byte() -> None:
    allowance = Allowance(10.0, 100, 0.0)
    allowance.charge(130, 0.0)
    assert allowance.wait(0, 0.0) == pytest.approx(3)
    assert allowance.wait(0, 0.0, debt=29) == pytest.approx(3)
    assert allowance.wait(0, 0.0, debt=30) == 0
    allowance.charge(10_000, 1.0)
    assert allowance.wait(0, 1.0) == pytest.approx(1002)
    assert allowance.wait(0, 1003.0) == 0


def test_who_waits_as_told_may_send() -> None:
    allowance = Allowance(10.0, 5, 0.0)
    assert allowance.wait(5, 0.0) == 0
    wait = allowance.wait(3, 0.0)
    assert wait == pytest.approx(0.3)
    assert allowance.wait(3, wait) == 0


# Of deflate: each block has five bytes and nothing in it; the last one says that it is. Then its checksum and size.
NOTHING = gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * 1000 + b"\1\0\0\xff\xff" + bytes(8)


def body(
    content: bytes,
    *,
    gzipped: bool,
    most: int = 100,
    inflated: int = 1000,
    chunk: int = 7,
    charge: Callable[[int], None] = lambda _: None,
) -> bytes:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(content), chunk):
            yield content[start : start + chunk]

    return asyncio.run(whole_body(chunks(), gzipped=gzipped, max_bytes=most, max_inflated=inflated, charge=charge))


@given(st.binary(max_size=80), st.integers(1, 9))
@settings(deadline=None, max_examples=30)
def test_a_body_arrives_whole_however_it_is_cut(content: bytes, chunk: int) -> None:
    assert body(content, gzipped=False, chunk=chunk) == content
    assert body(gzip.compress(content), gzipped=True, most=10**4, chunk=chunk) == content


def test_a_body_of_exactly_the_limit_is_fine_and_one_more_is_not() -> None:
    assert len(body(b"x" * 100, gzipped=False)) == 100
    assert len(body(gzip.compress(b"x" * 1000), gzipped=True)) == 1000
    bombs = [gzip.compress(b"x" * size) for size in (1001, 10**7)]
    for content, gzipped in ((b"x" * 101, False), *((bomb, True) for bomb in bombs)):
        with pytest.raises(Turned, match="At most"):
            body(content, gzipped=gzipped, most=10**5 if gzipped else 100)


@pytest.mark.parametrize(
    "content",
    [b"plain", gzip.compress(b"x")[:-1], gzip.compress(b"x") + b"more", b""],
    # Without names of their own they would be called by their bytes, of which some are the time.
    ids=["no gzip", "cut", "more behind it", "nothing"],
)
def test_a_broken_gzip_stream_is_refused(content: bytes) -> None:
    with pytest.raises(Turned, match="gzip"):
        body(content, gzipped=True)


@pytest.mark.parametrize(
    ("content", "gzipped", "charged"),
    [
        (gzip.compress(b"x" * 900), True, 900),
        (gzip.compress(b"x" * 900) + b"more", True, 900),
        (gzip.compress(b"x" * 10**7), True, len(gzip.compress(b"x" * 10**7))),
        (NOTHING, True, len(NOTHING)),
        (b"no gzip", True, 7),
        (b"x" * 101, False, 101),
    ],
    ids=["whole", "more behind it", "a bomb", "nothing in many blocks", "no gzip", "too large"],
)
def test_bytes_are_charged_also_of_a_body_that_is_turned_away(content: bytes, gzipped: bool, charged: int) -> None:
    read: list[int] = []
    with suppress(Turned):
        body(content, gzipped=gzipped, most=10**5 if gzipped else 100, chunk=10**5, charge=read.append)
    assert sum(read) == charged

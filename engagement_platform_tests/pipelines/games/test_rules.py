"""Every line of a batch lands, is refused or is known: none is lost and none counts twice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.pipelines.games.decoding import Refusal, event_decoder
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.pipelines.games.rules import decoded_lines, repeated
from engagement_platform_tests.pipelines.games.events import LIMITS, NOW, line

TYPES = {name: registry()[name] for name in ("purchase", "heartbeat", "crash")}
DECODE = event_decoder(TYPES, LIMITS)
WINDOW = timedelta(hours=1)
HALF = timedelta(minutes=30)
UTC_TIME = pa.timestamp("us", "UTC")
LANDED = pa.schema([("event_type", pa.string()), ("event_id", pa.string()), ("event_ts", UTC_TIME)])
Landed = tuple[str, str, datetime]


def sent(name: str, event_id: str, half_hours_ago: int = 0) -> bytes:
    """A good event some time ago."""
    return line(TYPES[name], event_id, event_ts=(NOW - HALF * half_hours_ago).isoformat())


def read(contents: Sequence[bytes], arrived: datetime | None = NOW, file: str = "s3://raw/one") -> pa.RecordBatch:
    """The contents as lines of one object, as the source reads them."""
    arrays = [
        pa.array(contents, pa.binary()),
        pa.array([file] * len(contents), pa.string()),
        pa.array(range(1, len(contents) + 1), pa.int64()),
        pa.array([arrived] * len(contents), UTC_TIME),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=["value", "_file", "_line", "_event_ts"])


def decoded(contents: Sequence[bytes]) -> pa.Table:
    return pa.Table.from_batches([decoded_lines(read(contents), DECODE, TYPES, NOW)])


def events_of(found: pa.Table) -> pa.Table:
    return found.filter(found.column("reason_code").is_null())


GOOD = st.builds(sent, st.sampled_from(list(TYPES)), st.sampled_from("abcd"), st.integers(0, 5))
ANY = GOOD | st.binary(max_size=12) | st.just(line(TYPES["purchase"], price="no number"))
KNOWN = st.lists(
    st.tuples(st.sampled_from(list(TYPES)), st.sampled_from("abcd"), st.integers(0, 5).map(lambda n: NOW - HALF * n)),
    max_size=6,
)


@given(st.lists(ANY, max_size=25))
def test_each_line_that_is_not_blank_is_one_row_with_what_the_decoder_says_of_it(contents: list[bytes]) -> None:
    there = [(number, each) for number, each in enumerate(contents, 1) if each.strip(b" \t\r\n")]
    rows = decoded(contents).to_pylist()
    assert [row["source_line"] for row in rows] == [number for number, _ in there]
    for row, (_, content) in zip(rows, there, strict=True):
        said = DECODE(content, NOW)
        assert row["value_bytes"] == len(content)
        if isinstance(said, Refusal):
            assert (row["reason_code"], row["reason"], row["event_type"]) == said[:3]
            assert row["value"] == content
            assert all(struct is None for struct in row["fields"].values())
        else:
            assert row["reason_code"] is None
            own = row["fields"].pop(row["event_type"])
            assert tuple(row[name] for name in ("event_type", "event_id", "event_ts")) == said[:3]
            assert (row["unknown_fields"], tuple(own.values())) == (said.unknown_fields, said.values[9:])
            assert all(struct is None for struct in row["fields"].values())


@given(st.lists(GOOD, max_size=25), KNOWN)
def test_what_lands_is_what_a_loop_over_pairs_lets_land(contents: list[bytes], known: list[Landed]) -> None:
    events = events_of(decoded(contents))
    landed, expected = list(known), []
    for row in events.to_pylist():
        same = [at for name, event_id, at in landed if (name, event_id) == (row["event_type"], row["event_id"])]
        if all(abs(at - row["event_ts"]) > WINDOW for at in same):
            landed.append((row["event_type"], row["event_id"], row["event_ts"]))
        else:
            expected.append({"source_object": row["source_object"], "source_line": row["source_line"]})
    before = pa.Table.from_pylist([dict(zip(LANDED.names, each, strict=True)) for each in known], schema=LANDED)
    assert repeated(events, before, WINDOW).to_pylist() == expected


def test_of_copies_in_two_objects_the_one_stands_that_arrived_first() -> None:
    one, other = (
        decoded_lines(read([sent("crash", "a")], NOW + timedelta(seconds=late), name), DECODE, TYPES, NOW)
        for late, name in ((2, "s3://raw/a"), (1, "s3://raw/b"))
    )
    found = repeated(pa.Table.from_batches([one, other]), LANDED.empty_table(), WINDOW)
    assert found.column("source_object").to_pylist() == ["s3://raw/a"]


@pytest.mark.parametrize("at", [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), None])
def test_an_object_that_arrived_at_an_end_of_time_or_nobody_knows_when_is_decoded(at: datetime | None) -> None:
    (row,) = decoded_lines(read([sent("crash", "a")], at, "s3://raw/a?versionId=1"), DECODE, TYPES, NOW).to_pylist()
    assert row["arrived"] == (at or NOW)
    assert row["reason_code"] == (None if at is None else "future" if at.year == 1 else "late")
    assert row["source_object"] == "s3://raw/a"


def test_a_refused_line_says_whose_it_is_and_personal_data_is_not_kept() -> None:
    bad = line(TYPES["crash"], "a", event_ts="?", player_id="bob", game_id="chess")
    half = b'{"player_id": "\\ud800", "game_id": 7}'
    [late, broken] = decoded([bad, half]).to_pylist()
    assert (late["player_id"], late["game_id"], late["event_id"]) == ("bob", "chess", None)
    assert (broken["player_id"], broken["game_id"], broken["value"]) == (None, None, half)

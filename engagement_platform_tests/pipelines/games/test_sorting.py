"""Every line of a batch lands, is refused or is known: none is lost and none counts twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.pipelines.games.decoding import event_decoder
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.pipelines.games.sorting import Known, Line, Row, decoded, sorted_out, without_duplicates
from engagement_platform_tests.pipelines.games.events import LIMITS, NOW, line

TYPES = {name: registry()[name] for name in ("purchase", "heartbeat", "crash")}
DECODE = event_decoder(TYPES, LIMITS)
WINDOW = timedelta(hours=1)
HALF = timedelta(minutes=30)


def sent(name: str, event_id: str, half_hours_ago: int = 0) -> bytes:
    """A good event some time ago."""
    return line(TYPES[name], event_id, event_ts=(NOW - HALF * half_hours_ago).isoformat())


def lines(contents: Sequence[bytes]) -> list[Line]:
    """The contents as lines of one object."""
    return [Line("s3://raw/one", number, NOW, content) for number, content in enumerate(contents, 1)]


GOOD = st.builds(sent, st.sampled_from(list(TYPES)), st.sampled_from("abcd"), st.integers(0, 5))
ANY = GOOD | st.binary(max_size=12) | st.just(line(TYPES["purchase"], price="no number"))
KNOWN = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 5).map(lambda n: NOW - HALF * n), max_size=2))


@given(st.lists(ANY, max_size=25), KNOWN)
@settings(deadline=None)
def test_in_is_routed_and_quarantined_and_duplicates(contents: list[bytes], known: dict[str, list[datetime]]) -> None:
    found = decoded(lines(contents), DECODE)
    kept = sorted_out(found, lambda _name, _rows: known, WINDOW)
    routed = sum(len(each.rows) for each in kept.values())
    duplicates = sum(each.duplicates for each in kept.values())
    assert found.lines == len(contents) == routed + duplicates + len(found.refused)
    places = [row.line for each in kept.values() for row in each.rows] + [each.line.number for each in found.refused]
    assert max(Counter(places).values(), default=1) == 1


@given(st.lists(GOOD, max_size=25), KNOWN)
@settings(deadline=None)
def test_what_lands_is_what_a_loop_over_pairs_lets_land(contents: list[bytes], known: Known) -> None:
    for rows in decoded(lines(contents), DECODE).rows.values():
        landed: list[tuple[str, datetime]] = [(event_id, time) for event_id, times in known.items() for time in times]
        expected: list[Row] = []
        for row in rows:
            same = [at for event_id, at in landed if event_id == row.event.event_id]
            if all(max(at, row.event.event_ts) - min(at, row.event.event_ts) > WINDOW for at in same):
                landed.append((row.event.event_id, row.event.event_ts))
                expected.append(row)
        assert without_duplicates(rows, known, WINDOW).rows == expected


@given(st.lists(GOOD, max_size=25))
@settings(deadline=None)
def test_what_landed_is_known_when_it_comes_again(contents: list[bytes]) -> None:
    for rows in decoded(lines(contents), DECODE).rows.values():
        first = without_duplicates(rows, {}, WINDOW)
        known: dict[str, list[datetime]] = {}
        for row in first.rows:
            known.setdefault(row.event.event_id, []).append(row.event.event_ts)
        again = without_duplicates(rows, known, WINDOW)
        assert (again.rows, again.duplicates) == ([], len(rows))


def test_the_same_id_in_two_types_is_two_events() -> None:
    found = decoded(lines([sent("purchase", "a"), sent("heartbeat", "a"), sent("purchase", "a")]), DECODE)
    kept = sorted_out(found, lambda _name, _rows: {}, WINDOW)
    assert {name: (len(each.rows), each.duplicates) for name, each in kept.items()} == {
        "heartbeat": (1, 0), "purchase": (1, 1),
    }  # fmt: skip

"""Whatever is still to be read, and on time, is executed at or after the horizon: below it deletions are final."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.pipelines.mutations.move import purge_horizon
from engagement_platform.settings import MutationSettings
from engagement_platform.sources.lateness import from_microseconds, microseconds, production_time

START = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SETTINGS = MutationSettings(max_lateness=7 * HOUR, max_disorder=2 * HOUR)
BEFORE = SETTINGS.max_lateness + SETTINGS.max_disorder

Record = tuple[int, int]
"""Of one request, in hours after START: when the broker got it, and its Kafka timestamp."""


@st.composite
def partitions(draw: st.DrawFn) -> list[Record]:
    """Requests of a partition in their order, with timestamps that are out of order by up to max_disorder."""
    disorder = SETTINGS.max_disorder // HOUR
    came, newest = 0, -disorder
    made: list[Record] = []
    for _ in range(draw(st.integers(0, 6))):
        came += draw(st.integers(0, 30))
        stamped = max(draw(st.integers(came - 2 * disorder, came + disorder)), came - disorder, newest - disorder)
        newest = max(newest, stamped)
        made.append((came, stamped))
    return made


def moment(hours: float) -> datetime:
    return START + hours * HOUR


@given(st.lists(partitions(), min_size=1, max_size=3), st.integers(0, 200), st.data())
def test_no_request_that_is_on_time_and_not_read_yet_is_executed_before_the_horizon(
    topic: list[list[Record]], hours: int, data: st.DataObject
) -> None:
    """Each partition is read up to anywhere; then the horizon is asked for, and all else is read at any time later."""
    now = moment(hours)
    unread: list[list[Record]] = []
    first: list[int | None] = []
    for records in topic:
        there = sum(came <= hours for came, _ in records)
        read = data.draw(st.integers(0, there))
        unread.append(records[read:])
        first += [microseconds(moment(stamped)) // 1000 for _, stamped in records[read:there][:1]]
    horizon = purge_horizon(now, first, SETTINGS)
    if horizon is None:
        return
    for came, stamped in (record for records in unread for record in records):
        read_ts = moment(max(came, hours))
        produced = production_time(microseconds(moment(stamped)), microseconds(read_ts))
        # The oldest one that is not refused as too late.
        assert from_microseconds(produced) - SETTINGS.max_lateness >= horizon


def test_a_topic_that_is_read_to_its_end_counts_up_to_now() -> None:
    assert purge_horizon(START, [], SETTINGS) == START - BEFORE


def test_while_nothing_is_read_the_horizon_stands_still() -> None:
    first = microseconds(START) // 1000
    for later in (0, 1, 24 * 365):
        assert purge_horizon(moment(later), [first, first + 5], SETTINGS) == START - BEFORE


def test_a_first_record_whose_time_says_nothing_lets_nothing_be_purged() -> None:
    first, ahead = microseconds(START) // 1000, microseconds(START + SETTINGS.max_disorder) // 1000
    for says_nothing in (None, -1, ahead + 1):
        assert purge_horizon(START, [first, says_nothing], SETTINGS) is None
    assert purge_horizon(START, [ahead], SETTINGS) == START - BEFORE

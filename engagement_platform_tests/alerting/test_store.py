"""Which looks at trouble make a message: once, again after a while, when it gets worse, and when it is over."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from engagement_platform.alerting.model import Alert, Message, Severity, State
from engagement_platform.alerting.outbox import Outbox, parcels
from engagement_platform.alerting.schema import make_tables
from engagement_platform.alerting.store import AlertStore, Telling
from engagement_platform.alerting.wording import summed_up
from engagement_platform_tests.engine.conftest import FakeClock

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
TELLING = Telling(("1-json",), dedupe=HOUR, settle=2 * MINUTE)
NOBODY = replace(TELLING, targets=())
KEY = "check/table/fresh"


class Kept:
    """A store and its outbox."""

    def __init__(self, engine: Engine, clock: FakeClock) -> None:
        make_tables(engine)
        self.clock = clock
        self.store, self.outbox = AlertStore(engine, clock), Outbox(engine, clock)

    def look(self, severity: Severity = Severity.WARNING, telling: Telling = TELLING, key: str = KEY) -> State:
        """See the trouble."""
        alert = Alert(key, severity, "table: fresh failed", "It is late.", "asset check", self.clock.now, {"a": "b"})
        return self.store.raised(alert, telling)

    def said(self, per_minute: int = 100, target: str = "1-json") -> list[str]:
        """Titles of what is due, which is then sent."""
        taken = self.outbox.take(target, per_minute, SECOND)
        for parcel in taken:
            self.outbox.sent(target, parcel)
        return [parcel.message.title for parcel in taken]


@pytest.fixture
def kept(engine: Engine, clock: FakeClock) -> Kept:
    return Kept(engine, clock)


def test_trouble_is_told_once_then_once_in_an_hour_and_that_it_is_over(kept: Kept) -> None:
    began = kept.clock.now
    assert kept.look() is State.RAISED
    assert kept.said() == ["[warning] table: fresh failed"]
    for _ in range(119):
        kept.clock.advance(30 * SECOND)
        assert kept.look() is State.REPEATED
    assert kept.said() == []
    kept.clock.advance(30 * SECOND)
    kept.look()
    [parcel] = kept.outbox.take("1-json", 10, SECOND)
    assert parcel.message.title == "[still warning] table: fresh failed"
    assert parcel.message.text.splitlines() == [
        "It is late.", "Since 2026-03-01 23:59:30 UTC, seen 121 times.", "asset check: check/table/fresh", "a: b",
    ]  # fmt: skip
    kept.outbox.sent("1-json", parcel)
    [standing] = kept.store.standing()
    assert (standing.alert.since, standing.times, standing.state) == (began, 121, State.REPEATED)
    assert kept.store.recovered(KEY, "It is on time.", TELLING)
    assert not kept.store.recovered(KEY, "It is on time.", TELLING)
    assert kept.said() == [], "it may not last"
    kept.clock.advance(2 * MINUTE)
    [parcel] = kept.outbox.take("1-json", 10, SECOND)
    assert (parcel.message.title, parcel.message.state) == ("[recovered] table: fresh failed", State.RECOVERED)
    assert parcel.message.text.startswith(
        "It is on time.\nSince 2026-03-01 23:59:30 UTC, until 2026-03-02 00:59:30 UTC."
    )
    assert kept.store.standing() == []


def test_what_comes_and_goes_is_one_alert(kept: Kept) -> None:
    kept.look()
    assert len(kept.said()) == 1
    for _ in range(20):
        kept.clock.advance(MINUTE)
        kept.store.recovered(KEY, "", TELLING)
        kept.clock.advance(30 * SECOND)
        assert kept.look() is State.REPEATED
        assert kept.said() == []
    kept.store.recovered(KEY, "", TELLING)
    kept.clock.advance(2 * MINUTE)
    assert kept.said() == ["[recovered] table: fresh failed"]
    assert kept.look() is State.RAISED
    assert kept.said() == ["[warning] table: fresh failed"]


def test_getting_worse_is_told_at_once_and_only_once(kept: Kept) -> None:
    for severity in (Severity.WARNING, Severity.ERROR, Severity.WARNING, Severity.ERROR):
        kept.look(severity)
    assert kept.said() == ["[warning] table: fresh failed", "[still error] table: fresh failed"]


def test_what_is_not_told_is_kept_and_its_end_is_not_told_either(kept: Kept) -> None:
    assert kept.look(telling=NOBODY) is State.RAISED
    assert [one.alert.key for one in kept.store.standing()] == [KEY]
    kept.store.recovered(KEY, "", TELLING)
    kept.clock.advance(HOUR)
    assert kept.said() == []
    kept.look(telling=NOBODY)
    kept.look(telling=TELLING)
    assert kept.said() == ["[warning] table: fresh failed"], "somebody is to be told from now on"


def test_more_than_a_minute_takes_is_held_back_and_summed_up(kept: Kept) -> None:
    for number in range(30):
        kept.look(key=f"check/{number}")
    assert kept.said(per_minute=3) == [*["[warning] table: fresh failed"] * 2, "28 messages that were held back"]
    kept.look(key="check/more")
    kept.look(key="check/even more")
    assert kept.said(per_minute=3) == []
    kept.clock.advance(MINUTE)
    assert kept.said(per_minute=1) == ["2 messages that were held back"]


def test_what_somebody_is_sending_nobody_else_takes_unless_they_died(kept: Kept) -> None:
    kept.look()
    [parcel] = kept.outbox.take("1-json", 10, SECOND)
    kept.look(key="another")
    assert kept.outbox.take("1-json", 10, SECOND) == []
    kept.clock.advance(2 * MINUTE)
    again = kept.outbox.take("1-json", 10, SECOND)
    assert [one.numbers for one in again] == [parcel.numbers, (parcel.numbers[0] + 1,)]


def test_a_message_that_is_not_taken_is_tried_ever_more_slowly_and_then_given_up(kept: Kept) -> None:
    kept.look()
    tries = []
    for second in range(0, 4000, 10):
        if taken := kept.outbox.take("1-json", 10, SECOND):
            tries.append(second)
            assert kept.outbox.failed("1-json", taken, "refused", keep_trying=HOUR) == (1 if second >= 3600 else 0)
        kept.clock.advance(10 * SECOND)
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses[:5] == [30, 60, 120, 240, 300]
    assert set(pauses[5:]) == {300}
    queue = kept.outbox.queues(["1-json"])["1-json"]
    assert (queue.waiting, queue.given_up) == (0, 1)


def test_messages_to_a_url_that_is_no_longer_set_are_given_up(kept: Kept) -> None:
    kept.look(telling=replace(TELLING, targets=("1-json", "2-slack")))
    kept.outbox.tidy(["2-slack"])
    assert kept.said(target="1-json") == []
    assert len(kept.said(target="2-slack")) == 1


MESSAGES = st.builds(
    Message, st.sampled_from(State), st.sampled_from(Severity), st.sampled_from(["one", "two"]), st.just("words")
)


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=40), st.integers(-1, 12))
def test_parcels_hold_every_message_once_in_order_and_are_never_too_many(messages: list[Message], room: int) -> None:
    made = parcels(list(enumerate(messages)), room)
    assert len(made) <= max(room, 0)
    numbers = [number for parcel in made for number in parcel.numbers]
    assert numbers == (list(range(len(messages))) if room > 0 else [])
    assert all(len(parcel.numbers) == 1 for parcel in made[:-1])


def test_a_summary_looks_as_bad_as_the_worst_of_it_and_says_how_many_it_leaves_out() -> None:
    over = Message(State.RECOVERED, Severity.ERROR, "over", "")
    bad = Message(State.RAISED, Severity.WARNING, "bad", "")
    both = summed_up([over, *[bad] * 24])
    assert (both.state, both.severity, both.title) == (
        State.RAISED,
        Severity.WARNING,
        "25 messages that were held back",
    )
    assert both.text.splitlines()[0] == "- over"
    assert both.text.splitlines()[-1] == "- and 5 more: engagement-platform alert list"
    assert len(both.text.splitlines()) == 21

"""Which looks at trouble make a message: once, again after a while, when it gets worse, and when it is over."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from engagement_platform.alerting.model import Alert, Message, Severity, State
from engagement_platform.alerting.schema import make_tables
from engagement_platform.alerting.store import AlertStore, Parcel, Queue, parcels
from engagement_platform.alerting.wording import summed_up
from engagement_platform.settings import AlertingSettings
from engagement_platform_tests.engine.conftest import FakeClock

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
KEY, URL = "check/table/fresh", "1-json"


class Kept:
    """A store of alerts, and what of it is sent."""

    def __init__(self, engine: Engine, clock: FakeClock) -> None:
        make_tables(engine)
        self.engine, self.clock, self.muted = engine, clock, False

    @property
    def store(self) -> AlertStore:
        return self.under()

    def under(self, **settings: object) -> AlertStore:
        """The store under other settings."""
        chosen = AlertingSettings.model_validate({"per_minute": 100, **settings})
        return AlertStore(self.engine, chosen, lambda _key: self.muted, self.clock)

    def look(self, severity: Severity = Severity.WARNING, key: str = KEY) -> State:
        """See the trouble."""
        alert = Alert(key, severity, "table: fresh failed", "It is late.", "asset check", self.clock.now, {"a": "b"})
        return self.store.raised(alert)

    def parcels(self, target: str = URL, **settings: object) -> list[Parcel]:
        """What is due, which is then sent."""
        store = self.under(**settings)
        taken = store.take(target)
        for place, parcel in enumerate(taken, start=1):
            store.sent(target, parcel, more=place < len(taken))
        return taken

    def said(self, target: str = URL, **settings: object) -> list[str]:
        """Titles of what is due, which is then sent."""
        return [parcel.message.title for parcel in self.parcels(target, **settings)]


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
    [parcel] = kept.parcels()
    assert parcel.message.title == "[still warning] table: fresh failed"
    assert parcel.message.text.splitlines() == [
        "It is late.", "Since 2026-03-01 23:59:30 UTC, seen 121 times.", "asset check: check/table/fresh", "a: b",
    ]  # fmt: skip
    [standing] = kept.store.standing()
    assert (standing.alert.since, standing.times, standing.state) == (began, 121, State.REPEATED)
    assert kept.store.recovered(KEY, "It is on time.")
    assert not kept.store.recovered(KEY, "It is on time.")
    assert kept.said() == [], "it may not last"
    kept.clock.advance(2 * MINUTE)
    [parcel] = kept.parcels()
    assert (parcel.message.title, parcel.message.state) == ("[recovered] table: fresh failed", State.RECOVERED)
    assert parcel.message.text.startswith(
        "It is on time.\nSince 2026-03-01 23:59:30 UTC, until 2026-03-02 00:59:30 UTC."
    )
    assert (kept.store.standing(), kept.said()) == ([], [])


def test_what_comes_and_goes_is_one_alert(kept: Kept) -> None:
    kept.look()
    assert len(kept.said()) == 1
    for _ in range(20):
        kept.clock.advance(MINUTE)
        kept.store.recovered(KEY, "")
        kept.clock.advance(30 * SECOND)
        assert kept.look() is State.REPEATED
        assert kept.said() == []
    kept.store.recovered(KEY, "")
    kept.clock.advance(2 * MINUTE)
    assert kept.said() == ["[recovered] table: fresh failed"]
    assert kept.look() is State.RAISED
    assert kept.said() == ["[warning] table: fresh failed"]


def test_getting_worse_is_told_at_once_and_only_once(kept: Kept) -> None:
    told = []
    for severity in (Severity.WARNING, Severity.ERROR, Severity.WARNING, Severity.ERROR):
        kept.look(severity)
        told += kept.said()
    assert told == ["[warning] table: fresh failed", "[still error] table: fresh failed"]


def test_what_is_muted_is_kept_and_its_end_is_not_told_either(kept: Kept) -> None:
    kept.muted = True
    assert kept.look() is State.RAISED
    assert ([one.alert.key for one in kept.store.standing()], kept.said()) == ([KEY], [])
    kept.store.recovered(KEY, "")
    kept.muted = False
    kept.clock.advance(HOUR)
    assert kept.said() == []
    kept.muted = True
    kept.look()
    assert kept.said() == []
    kept.muted = False
    assert kept.said() == ["[warning] table: fresh failed"], "somebody is to be told from now on"


def test_what_was_told_and_became_less_bad_than_is_told_still_ends(kept: Kept) -> None:
    kept.look(Severity.ERROR)
    assert len(kept.said(severities=["error"])) == 1
    kept.look(Severity.WARNING)
    kept.store.recovered(KEY, "")
    kept.clock.advance(HOUR)
    assert kept.said(severities=["error"]) == ["[recovered] table: fresh failed"]


def test_more_than_a_minute_takes_is_held_back_and_summed_up(kept: Kept) -> None:
    for number in range(30):
        kept.look(key=f"check/{number}")
    assert kept.said(per_minute=3) == [*["[warning] table: fresh failed"] * 2, "28 messages that were held back"]
    kept.look(key="check/more")
    kept.look(key="check/even more")
    assert kept.said(per_minute=3) == []
    kept.clock.advance(MINUTE)
    assert kept.said(per_minute=1) == ["2 messages that were held back"]
    kept.clock.advance(MINUTE)
    assert kept.said() == [], "what was summed up was told"


def test_what_somebody_is_sending_nobody_else_takes_unless_they_died(kept: Kept) -> None:
    kept.look()
    [parcel] = kept.store.take(URL)
    kept.look(key="table/another")
    assert kept.store.take(URL) == []
    kept.clock.advance(2 * MINUTE)
    again = kept.store.take(URL)
    assert [key for one in again for key, _, _ in one.about] == [KEY, "table/another"]
    assert again[0].about == parcel.about


def test_a_url_that_takes_nothing_is_tried_ever_more_slowly_and_gets_what_stands_then(kept: Kept) -> None:
    kept.look()
    kept.look(key="table/another")
    tries = []
    for second in range(0, 2000, 10):
        if kept.store.take(URL):
            tries.append(second)
            kept.store.failed(URL, "refused")
        kept.clock.advance(10 * SECOND)
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses[:5] == [30, 60, 120, 240, 300]
    assert set(pauses[5:]) == {300}
    assert kept.store.queue(URL) == Queue(2, "refused")
    kept.store.recovered(KEY, "")
    kept.clock.advance(5 * MINUTE)
    assert kept.said() == ["[warning] table: fresh failed"], "the other was over before anybody could be told"
    assert kept.store.queue(URL) == Queue(0, None)


def test_each_url_is_sent_everything(kept: Kept) -> None:
    kept.look()
    assert [kept.said(target) for target in ("1-json", "2-slack")] == [["[warning] table: fresh failed"]] * 2
    assert [kept.said(target) for target in ("1-json", "2-slack")] == [[], []]


MESSAGES = st.builds(
    Message, st.sampled_from(State), st.sampled_from(Severity), st.sampled_from(["one", "two"]), st.just("words")
)


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=40), st.integers(-1, 12))
def test_parcels_hold_every_message_once_in_order_and_are_never_too_many(messages: list[Message], room: int) -> None:
    made = parcels([Parcel(m, ((str(n), m.state, m.severity),)) for n, m in enumerate(messages)], room)
    assert len(made) <= max(room, 0)
    keys = [key for parcel in made for key, _, _ in parcel.about]
    assert keys == ([str(n) for n in range(len(messages))] if room > 0 else [])
    assert all(len(parcel.about) == 1 for parcel in made[:-1])


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

"""Which looks at trouble make a message: once, again after a while, when it gets worse, and when it is over."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine

from engagement_platform.alerting.alerts import Alerts, Queue
from engagement_platform.alerting.model import Alert, Message, Severity, State, summed_up
from engagement_platform.alerting.sender import targets_of
from engagement_platform.settings import AlertingSettings
from engagement_platform_tests.alerting.receiver import Receiver
from engagement_platform_tests.engine.conftest import FakeClock

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
KEY = "check/table/fresh"
TITLE = "[warning] table: fresh failed"
WORDS = "It is <900> s late & waits."


class Kept:
    """Alerts of one database, and a webhook that is sent what is due."""

    def __init__(self, engine: Engine, clock: FakeClock, receiver: Receiver) -> None:
        self.engine, self.clock, self.receiver = engine, clock, receiver
        self.alerts = self.under()

    def under(self, **settings: object) -> Alerts:
        """The same under other settings, as another process has them."""
        given = {"per_minute": 100, "urls": [SecretStr(self.receiver.url)], **settings}
        return Alerts(self.engine, AlertingSettings.model_validate(given), clock=self.clock)

    def look(self, severity: Severity = Severity.WARNING, key: str = KEY) -> State | None:
        """See the trouble."""
        alert = Alert(
            key,
            severity,
            "table: fresh failed",
            WORDS,
            "asset check",
            self.clock.now,
            {"a": "b"},
        )
        return self.alerts.raised(alert)

    def titles(self, **settings: object) -> list[str]:
        """Of what is due, which is sent then."""
        before = len(self.receiver.arrived)
        self.under(**settings).deliver()
        return self.receiver.titles[before:]


@pytest.fixture
def kept(engine: Engine, clock: FakeClock, receiver: Receiver) -> Kept:
    return Kept(engine, clock, receiver)


def test_trouble_is_sent_once_then_once_in_an_hour_and_that_it_is_over(kept: Kept) -> None:
    began = kept.clock.now
    assert kept.look() is State.RAISED
    assert kept.titles() == [TITLE]
    assert kept.receiver.arrived[0]["type"] == "warning"
    for _ in range(119):
        kept.clock.advance(30 * SECOND)
        assert kept.look() is State.REPEATED
    assert kept.titles() == []
    kept.clock.advance(30 * SECOND)
    kept.look()
    assert kept.titles() == ["[still warning] table: fresh failed"]
    assert kept.receiver.arrived[-1]["message"].splitlines() == [
        WORDS, "Since 2026-03-01 23:59:30 UTC, seen 121 times.", "asset check: check/table/fresh", "a: b",
    ]  # fmt: skip
    [standing] = kept.alerts.standing()
    assert (standing.alert.since, standing.times, standing.state) == (began, 121, State.REPEATED)
    assert kept.alerts.recovered(KEY, "It is on time.")
    assert not kept.alerts.recovered(KEY, "It is on time.")
    assert kept.titles() == [], "it may not last"
    kept.clock.advance(2 * MINUTE)
    assert kept.titles() == ["[recovered] table: fresh failed"]
    assert kept.receiver.arrived[-1]["type"] == "success"
    assert kept.receiver.arrived[-1]["message"].startswith(
        "It is on time.\nSince 2026-03-01 23:59:30 UTC, until 2026-03-02 00:59:30 UTC."
    )
    assert (kept.alerts.standing(), kept.titles()) == ([], [])


def test_text_that_no_database_takes_is_kept_without_what_it_refuses(kept: Kept) -> None:
    bad, plain = "half a pair \ud800, and \x00", r"half a pair \ud800, and \x00"
    assert kept.alerts.raised(Alert(KEY, Severity.ERROR, bad, bad, "run", kept.clock.now, {})) is State.RAISED
    [standing] = kept.alerts.standing()
    assert (standing.alert.title, standing.alert.body) == (plain, plain)
    assert kept.alerts.recovered(KEY, bad)


def test_what_comes_and_goes_is_one_alert(kept: Kept) -> None:
    kept.look()
    assert len(kept.titles()) == 1
    for _ in range(5):
        kept.clock.advance(MINUTE)
        kept.alerts.recovered(KEY)
        kept.clock.advance(30 * SECOND)
        assert kept.look() is State.REPEATED
        assert kept.titles() == []
    kept.alerts.recovered(KEY)
    kept.clock.advance(2 * MINUTE)
    assert kept.titles() == ["[recovered] table: fresh failed"]
    assert kept.look() is State.RAISED
    assert kept.titles() == [TITLE]


def test_getting_worse_is_sent_at_once_and_only_once(kept: Kept) -> None:
    sent = []
    for severity in (Severity.WARNING, Severity.ERROR, Severity.WARNING, Severity.ERROR):
        kept.look(severity)
        sent += kept.titles()
    assert sent == [TITLE, "[still error] table: fresh failed"]
    assert kept.receiver.arrived[-1]["type"] == "failure"


def test_what_is_muted_is_kept_and_its_end_is_not_sent_either(kept: Kept) -> None:
    assert kept.look() is State.RAISED
    assert kept.titles(mute=["check/*"]) == []
    assert [one.alert.key for one in kept.alerts.standing()] == [KEY]
    kept.alerts.recovered(KEY)
    kept.clock.advance(HOUR)
    assert kept.titles() == []
    kept.look()
    assert kept.titles(mute=["check/*"]) == []
    assert kept.titles() == [TITLE], "people are to know from now on"


def test_what_was_sent_and_became_less_bad_than_is_sent_still_ends(kept: Kept) -> None:
    kept.look(Severity.ERROR)
    assert len(kept.titles(severities=["error"])) == 1
    kept.look(Severity.WARNING)
    kept.alerts.recovered(KEY)
    kept.clock.advance(HOUR)
    assert kept.titles(severities=["error"]) == ["[recovered] table: fresh failed"]


def test_more_than_a_minute_takes_is_held_back_and_summed_up(kept: Kept) -> None:
    for number in range(9):
        kept.look(key=f"check/{number}")
    assert kept.titles(per_minute=3) == [TITLE, TITLE, "7 messages that were held back"]
    kept.look(key="check/more")
    kept.look(key="check/even more")
    assert kept.titles(per_minute=3) == []
    kept.clock.advance(MINUTE)
    assert kept.titles(per_minute=1) == ["2 messages that were held back"]
    kept.clock.advance(MINUTE)
    assert kept.titles() == [], "what was summed up was sent"


def test_messages_about_one_alert_count_each_by_itself(kept: Kept) -> None:
    everything = ["info", "warning", "error"]
    for severity in (Severity.INFO, Severity.WARNING, Severity.ERROR):
        kept.look(severity=severity)
        assert len(kept.titles(per_minute=3, severities=everything)) == 1
    kept.look(key="check/another")
    assert kept.titles(per_minute=3, severities=everything) == []
    kept.clock.advance(MINUTE)
    assert len(kept.titles(per_minute=3, severities=everything)) == 1


def test_what_one_process_is_sending_no_other_takes_unless_the_first_died(kept: Kept) -> None:
    kept.receiver.hang()
    kept.look()
    [first] = kept.under().deliver_in_background()
    while kept.receiver.asked == 0:
        assert first.is_alive(), "nothing was sent"
    kept.look(key="table/another")
    assert kept.titles() == []
    assert kept.receiver.asked == 1
    kept.clock.advance(2 * MINUTE)
    second = kept.under().deliver_in_background()
    while kept.receiver.asked == 1:
        assert second[0].is_alive(), "what the first was sending was not taken over"
    kept.receiver.answer()
    for thread in (first, *second):
        thread.join(timeout=20)
    assert kept.receiver.titles == [TITLE, TITLE, TITLE], "the one that was cut off did arrive, and comes once more"


def test_a_url_that_takes_nothing_is_tried_ever_more_slowly_and_gets_what_is_wrong_then(kept: Kept) -> None:
    kept.receiver.status = 500
    kept.look()
    kept.look(key="table/another")
    tries = []
    for second in range(0, 1300, 10):
        before = kept.receiver.asked
        kept.alerts.deliver()
        tries += [second] * (kept.receiver.asked - before)
        kept.clock.advance(10 * SECOND)
    assert [later - earlier for earlier, later in pairwise(tries)] == [30, 60, 120, 240, 300, 300]
    [queue] = kept.alerts.queues().values()
    assert (queue.waiting, "500" in (queue.reason or "")) == (2, True)
    kept.alerts.recovered(KEY)
    kept.receiver.status = 200
    kept.clock.advance(5 * MINUTE)
    assert kept.titles() == [TITLE], "the other was over before anybody could be told"
    kept.clock.advance(2 * timedelta(days=1))
    kept.alerts.deliver()
    assert list(kept.alerts.queues().values()) == [Queue(0, None)]


def test_a_message_that_a_url_refuses_for_what_it_says_keeps_no_other_from_it(kept: Kept) -> None:
    kept.look(key="check/table/refused")
    kept.receiver.status = 400
    assert kept.titles() == []
    kept.receiver.status = 200
    kept.look(key="check/table/later")
    kept.receiver.refuses = lambda body: "check/table/refused" in body["message"]
    for _ in range(3):
        kept.clock.advance(5 * MINUTE)
        kept.titles()
    [arrived] = kept.receiver.arrived
    assert "check/table/later" in arrived["message"]


def test_what_a_url_takes_ends_its_failures(kept: Kept) -> None:
    kept.look(key="check/table/over")
    kept.receiver.status = 500
    for _ in range(4):
        kept.titles()
        kept.clock.advance(5 * MINUTE)
    kept.alerts.recovered("check/table/over")
    kept.receiver.status = 200
    kept.look()
    assert kept.titles() == [TITLE]
    [queue] = kept.alerts.queues().values()
    assert queue == Queue(0, None)


def test_a_text_that_is_too_long_for_a_service_is_cut() -> None:
    [target] = targets_of([SecretStr("discord://1234567890/abcdefghijklmnopqrstuvwxyz")], SECOND)
    assert target._service is not None
    [plugin] = target._service
    parts = plugin._apply_overflow("x" * 5000, "title", overflow=plugin.overflow_mode)
    assert len(parts) == 1


def test_a_summary_looks_as_bad_as_the_worst_of_it_and_says_how_many_it_leaves_out() -> None:
    over = Message(State.RECOVERED, Severity.ERROR, "over", "")
    bad = Message(State.RAISED, Severity.WARNING, "bad", "")
    both = summed_up([over, *[bad] * 24])
    assert (both.state, both.severity) == (State.RAISED, Severity.WARNING)
    assert both.title == "25 messages that were held back"
    lines = both.text.splitlines()
    assert (lines[0], lines[-1]) == ("- over", "- and 5 more: engagement-platform alert list")
    assert len(lines) == 21

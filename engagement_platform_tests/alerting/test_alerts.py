"""What really arrives at a webhook, what a dead one costs, and that nothing secret gets into a log."""

from __future__ import annotations

import html
import logging
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import create_engine

from engagement_platform.alerting.alerts import Alerts
from engagement_platform.alerting.model import Alert, Message, Severity, State
from engagement_platform.alerting.sender import targets_of
from engagement_platform.engine.database import open_engine
from engagement_platform.settings import AlertingSettings
from engagement_platform_tests.alerting.mailbox import Mailbox
from engagement_platform_tests.alerting.receiver import Receiver
from engagement_platform_tests.engine.conftest import FakeClock

SECRETS = ("pa55word", "t0ken-1234567")
BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEST = Message(State.RAISED, Severity.INFO, "a test", "words")


def trouble(key: str = "check/table/fresh", severity: Severity = Severity.ERROR) -> Alert:
    body = "The oldest of 7 waiting messages is <900> s old & waits."
    return Alert(key, severity, f"{key} failed", body, "asset check", BEGAN, {"table": "table"})


def alerts_of(folder: Path, clock: FakeClock, *receivers: Receiver, **settings: object) -> Alerts:
    urls = [SecretStr(receiver.url) for receiver in receivers]
    chosen = AlertingSettings.model_validate({"urls": urls, "settle": timedelta(0), **settings})
    return Alerts(open_engine(f"sqlite:///{folder / 'stores.db'}"), chosen, clock=clock)


def test_a_dead_receiver_delays_neither_who_raises_nor_the_other_receivers(
    tmp_path: Path, clock: FakeClock, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with Receiver() as dead:
        dead.hang()
        alerts = alerts_of(tmp_path, clock, dead, receiver, timeout=timedelta(seconds=6))
        for number in range(5):
            alerts.raised(trouble(f"check/{number}"))
        assert dead.asked == 0, "raising waited for somebody"
        sending = alerts.deliver_in_background()
        sending[1].join(timeout=20)
        assert sending[0].is_alive(), "starting to send waited for the dead one"
        assert len(receiver.arrived) == 5, "the living receiver did not get everything"
        clock.advance(timedelta(minutes=1))
        assert alerts.deliver_in_background()[0] is sending[0], "one that is still busy is not asked again"
        sending[0].join(timeout=20)
        assert dead.asked == 1, "a receiver that does not answer is asked once in a delivery"
        assert "not delivered to 1-json: refused: " in caplog.text
        assert [queue.waiting for queue in alerts.queues().values()] == [5, 0]
        dead.answer()
        clock.advance(timedelta(minutes=5))
        alerts.deliver()
        # The one that was cut off did arrive; nobody can know, so it comes once more.
        assert sorted(dead.titles) == sorted(["[error] check/0 failed", *receiver.titles])
        assert len(receiver.arrived) == 5


def test_alerts_that_were_sent_by_a_clock_that_was_ahead_keep_none_from_being_sent_by_the_right_one(
    tmp_path: Path, clock: FakeClock, receiver: Receiver
) -> None:
    alerts, ahead = alerts_of(tmp_path, clock, receiver, per_minute=4, dedupe=timedelta(hours=1)), timedelta(days=300)
    clock.advance(ahead)
    for number in range(3):
        alerts.raised(trouble(f"check/{number}"))
        alerts.deliver()
    alerts.recovered("check/0")
    clock.advance(timedelta(minutes=1))
    receiver.status = 500
    alerts.deliver()
    receiver.status, sent = 200, len(receiver.arrived)
    clock.advance(-ahead)
    alerts.raised(trouble("check/new"))
    alerts.raised(trouble("check/1"))
    for _ in range(2):
        alerts.deliver()
        clock.advance(timedelta(minutes=2))
    titles = receiver.titles[sent:]
    assert sorted(titles) == [
        "[error] check/new failed", "[recovered] check/0 failed", "[still error] check/1 failed",
    ]  # fmt: skip


def test_a_receiver_that_answers_a_byte_at_a_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engagement_platform.alerting.sender.LONGEST_S", 0.5)
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not over.wait(0.05):
            try:
                connection.sendall(b"a")
            except OSError:
                over.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        dripping = threading.Thread(target=drip, args=(server,), daemon=True)
        dripping.start()
        url = SecretStr(f"json://127.0.0.1:{server.getsockname()[1]}/hook")
        [target] = targets_of([url], timedelta(seconds=5))
        reasons: list[str | None] = []
        sending = threading.Thread(target=lambda: reasons.append(target.send(TEST)), daemon=True)
        sending.start()
        sending.join(timeout=20)
        assert reasons == ["took longer than 0.5 s"]
        assert over.wait(5), "the connection was left open"


def test_a_database_that_is_down_stops_nobody_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "not a database"
    folder.mkdir()
    alerts = Alerts(create_engine(f"sqlite:///{folder}"), AlertingSettings(urls=[SecretStr("json://127.0.0.1:9")]))
    assert alerts.raised(trouble()) is None
    assert alerts.recovered("check/table/fresh") is None
    alerts.deliver()
    assert caplog.text.count("Alerting could not keep") == 3
    assert "Alerting could not keep check/table/fresh: The stores at" in caplog.text


@pytest.mark.parametrize(
    ("url", "name", "reason"),
    [
        ("slack://t0ken-1234567/pa55word", "1-slack", "not a URL that Apprise understands"),
        ("json://user:pa55word@127.0.0.1:1/t0ken-1234567", "1-json (127.0.0.1)", "refused"),
        ("nosuch://t0ken-1234567@pa55word", "1-nosuch", "not a URL that Apprise understands"),
        ("pa55word t0ken-1234567", "1-unreadable", "not a URL that Apprise understands"),
    ],
)
def test_nothing_of_a_url_is_in_a_log_a_name_or_a_reason(
    caplog: pytest.LogCaptureFixture, url: str, name: str, reason: str
) -> None:
    with caplog.at_level(logging.DEBUG):
        [target] = targets_of([SecretStr(url)], timedelta(seconds=20))
        why = target.send(TEST) or ""
    assert str(target) == name
    assert why.startswith(reason)
    everything = f"{caplog.text} {why} {target!r}"
    assert [secret for secret in SECRETS if secret in everything] == []


def test_mail_arrives_with_its_words_and_so_does_the_recovery(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with Mailbox() as mailbox, caplog.at_level(logging.DEBUG):
        chosen = AlertingSettings.model_validate({"urls": [SecretStr(mailbox.url)], "settle": timedelta(0)})
        alerts = Alerts(open_engine(f"sqlite:///{tmp_path / 'stores.db'}"), chosen, clock=clock)
        alerts.raised(trouble())
        alerts.deliver()
        alerts.recovered("check/table/fresh", "Nothing waits any more.")
        alerts.deliver()
    expected = {"error": "is <900> s old & waits.", "recovered": "Nothing waits any more."}
    for mail, (state, words) in zip(mailbox.arrived, expected.items(), strict=True):
        assert mail["Subject"] == f"[{state}] check/table/fresh failed"
        assert [mail[name].addresses[0].username for name in ("From", "To")] == ["alerts", "oncall"]
        body = mail.get_body(("plain", "html"))
        assert body is not None
        assert words in html.unescape(body.get_content())
    assert "pa55word" not in caplog.text

"""The commands about alerts as people call them."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engagement_platform.alerting.alerts import Alerts
from engagement_platform.alerting.model import Alert, Severity
from engagement_platform.cli import app
from engagement_platform.engine.database import open_engine
from engagement_platform.settings import Settings
from engagement_platform_tests.alerting.receiver import Receiver


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))


def called(*words: str) -> Result:
    return CliRunner().invoke(app, ["alert", *words])


def raise_some() -> None:
    settings = Settings()
    alerts = Alerts(open_engine(settings.store_url), settings.alerting)
    for severity in (Severity.WARNING, Severity.ERROR):
        began = datetime(2026, 3, 1, tzinfo=UTC)
        alerts.raised(Alert(f"check/{severity}", severity, f"{severity} failed", "words", "asset check", began))


def test_without_urls_everything_says_that_nothing_is_sent() -> None:
    tested = called("test")
    assert (tested.exit_code, tested.stderr) == (1, "alerting.urls is empty: nothing is sent\n")
    listed = called("list")
    assert (listed.exit_code, listed.stdout) == (0, "Nothing is wrong.\nalerting.urls is empty: nothing is sent\n")


def test_a_test_message_arrives_and_each_url_is_told_of_and_no_log_has_a_word_of_it(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Receiver() as refusing, caplog.at_level(logging.DEBUG):
        refusing.status = 500
        monkeypatch.setenv("ENGAGEMENT_PLATFORM_ALERTING__URLS", json.dumps([receiver.url]))
        assert called("test").exit_code == 0
        assert receiver.titles == ["[test] engagement-platform alert test"]
        monkeypatch.setenv("ENGAGEMENT_PLATFORM_ALERTING__URLS", json.dumps([receiver.url, refusing.url]))
        tested = called("test")
    assert tested.exit_code == 1
    first, second = tested.stdout.splitlines()
    assert first.startswith("1-json (127.0.0.1): taken")
    assert second.startswith("2-json (127.0.0.1): refused: ")
    assert "500" in second
    assert [secret for secret in ("pa55word", "t0ken") if secret in tested.output + caplog.text] == []


def test_alerts_are_listed_worst_first_and_closed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_ALERTING__MUTE", '["check/warning"]')
    raise_some()
    told = json.loads(called("list", "--json").stdout)
    assert [(one["key"], one["muted"], one["sent"]) for one in told["alerts"]] == [
        ("check/error", False, False),
        ("check/warning", True, False),
    ]
    assert told["urls"] == {}
    assert "check/warning" in called("list").stdout
    closed = called("close", "check/error")
    assert (closed.exit_code, closed.stdout) == (0, "check/error is closed\n")
    assert called("close", "check/error").exit_code == 1
    assert "check/error" not in called("list").stdout
    monkeypatch.setattr(Alerts, "recovered", lambda *_: None)
    assert "could not be closed" in str(called("close", "check/warning").exception)


def test_what_waits_for_a_url_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_ALERTING__URLS", '["nosuch://t0ken-1234567"]')
    raise_some()
    settings = Settings()
    Alerts(open_engine(settings.store_url), settings.alerting).deliver()
    last = called("list").stdout.splitlines()[-1]
    assert last == ("1-nosuch: 2 messages wait; the last attempt: not a URL that Apprise understands")


def test_urls_that_are_no_list_are_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_ALERTING__URLS", "slack://t0ken-1234567")
    result = called("list")
    assert result.exit_code != 0
    assert "t0ken" not in result.output + repr(result.exception)

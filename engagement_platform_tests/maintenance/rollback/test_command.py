"""The command: what is refused before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from engagement_platform.cli import app
from engagement_platform.errors import PlatformError
from engagement_platform.maintenance.rollback.groups import RestoreRefused
from engagement_platform.maintenance.rollback.plan import parsed


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a table and a version or time"),
        (["engagement/data"], "name a table and a version or time"),
        (["engagement/data", "--to", "3"], "say why: --reason"),
    ],
)
def test_half_a_wish_is_refused(arguments: list[str], said: str) -> None:
    ran = CliRunner().invoke(app, ["restore", *arguments], terminal_width=200)
    assert ran.exit_code == 2
    assert said in ran.output


def test_what_is_not_there_is_said_without_spark() -> None:
    def raised(*arguments: str) -> BaseException | None:
        return CliRunner().invoke(app, ["restore", *arguments, "--yes", "--reason", "a test"]).exception

    assert isinstance(raised("engagement/notification", "--to", "3"), RestoreRefused)
    assert isinstance(raised("engagement/data", "--to", "3"), RestoreRefused)
    assert isinstance(raised("engagement/data", "--to", "yesterday"), PlatformError)


def test_a_time_without_a_zone_is_utc() -> None:
    assert parsed("2026-11-21T10:00") == parsed("2026-11-21T12:00+02:00") == parsed("2026-11-21T10:00Z")
    assert parsed("17") == 17
    with pytest.raises(RestoreRefused):
        parsed("last week")

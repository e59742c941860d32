"""When the base is written: at once where something presses, else at the cadence of the settings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from engagement_platform.pipelines.profiles.schedule import Waits, due, pressing
from engagement_platform.settings import RematerializeSettings

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
SETTINGS = RematerializeSettings()


@pytest.mark.parametrize(
    ("waits", "presses"),
    [
        (Waits(500_000, 0, 10.0, None), None),
        (Waits(500_001, 0, 0.1, None), "max_pending_rows"),
        (Waits(1, 0, 10.001, None), "max_view_latency"),
        (Waits(0, 0, 99.0, None), None),
        (Waits(1, 0, 99.0, None, 98.0), None),
        (Waits(1, 0, 99.0, None, 88.0), "took 11.00 s longer than in the base alone"),
        (Waits(0, 2, None, None), "base and changeset"),
    ],
    ids=[
        *("at both limits", "too many", "too slow", "nothing would gain"),
        *("the base is slow", "the changes are slow", "half finished"),
    ],
)
def test_what_presses_is_beyond_a_limit(waits: Waits, presses: str | None) -> None:
    why = pressing(waits, SETTINGS)
    assert why is None if presses is None else presses in (why or "")


@pytest.mark.parametrize(
    ("rows", "minutes", "is_due"), [(1, 10, True), (1, 9, False), (0, 99, False), (500_001, 0, True)]
)
def test_changes_are_due_when_their_time_has_come_or_something_presses(rows: int, minutes: int, is_due: bool) -> None:
    found, why = due(Waits(rows, 0, 0.1, NOW), NOW + timedelta(minutes=minutes), SETTINGS)
    assert found is is_due
    assert f"{rows:,} changes" in why or "no changes" in why

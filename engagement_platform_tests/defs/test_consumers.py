"""What the check of consumers makes of their lag."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from engagement_platform.consumers import Position
from engagement_platform.consumers.lag import Behind, Lag
from engagement_platform.defs.checks import keep_up_result
from engagement_platform.lake.engagement import NOTIFICATION

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
LIMIT = timedelta(hours=1)


def lag(name: str, waited: timedelta | None, *, lost: str | None = None) -> Lag:
    oldest = None if waited is None else NOW - waited
    behind = Behind(7, 2, oldest, lost)
    return Lag(name, NOTIFICATION.name, Position(3), behind, NOW - timedelta(days=1), 100)


@pytest.mark.parametrize("waited", [None, timedelta(0), LIMIT])
def test_who_reads_within_the_limit_keeps_up_and_so_does_nobody(waited: timedelta | None) -> None:
    assert keep_up_result([lag("scoring", waited)], NOW, LIMIT).passed
    assert keep_up_result([], NOW, LIMIT).passed


def test_who_is_late_and_who_is_lost_are_named_with_what_to_do() -> None:
    found = [
        lag("scoring", LIMIT + timedelta(seconds=1)),
        lag("fine", LIMIT),
        lag("backup", None, lost="VACUUM"),
    ]
    result = keep_up_result(found, NOW, LIMIT)
    assert not result.passed
    said = result.description or ""
    assert "scoring has 7 changes to read, the oldest for 3601 s (limit 3600 s)" in said
    assert "`engagement-platform consume --name backup --resnapshot" in said
    assert "fine" not in said

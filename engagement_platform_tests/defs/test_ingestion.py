"""What the partitions of a run ask for."""

from __future__ import annotations

from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.defs.ingestion import run_plan

TODAY = date(2026, 11, 21)
YESTERDAY = TODAY - timedelta(days=1)
DAYS = st.lists(st.dates(TODAY - timedelta(days=9), TODAY), unique=True)


def test_a_run_without_partition_drains() -> None:
    assert run_plan("auto", [], TODAY) == ([], True)


def test_todays_partition_drains() -> None:
    assert run_plan("auto", [TODAY], TODAY) == ([], True)


def test_a_day_before_is_read_again_and_nothing_new_is() -> None:
    assert run_plan("auto", [YESTERDAY], TODAY) == ([YESTERDAY], False)


def test_a_range_that_ends_today_reads_the_days_before_again_and_then_drains() -> None:
    assert run_plan("auto", [TODAY, YESTERDAY], TODAY) == ([YESTERDAY], True)


def test_a_drain_that_starts_after_midnight_still_drains() -> None:
    assert run_plan("drain", [YESTERDAY], TODAY) == ([], True)


def test_today_can_be_read_again_when_that_is_asked_for() -> None:
    assert run_plan("reread", [TODAY], TODAY) == ([TODAY], False)
    assert run_plan("reread", [], TODAY) == ([TODAY], False)


@given(DAYS)
def test_auto_covers_each_day_exactly_once_and_in_order(days: list[date]) -> None:
    again, drains = run_plan("auto", days, TODAY)
    assert again == sorted(set(days) - {TODAY})
    assert drains == (TODAY in days or not days)

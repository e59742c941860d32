"""What the partitions of a run ask for."""

from __future__ import annotations

from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.defs.work import Work, drain_policy, work_of
from engagement_platform.settings import DrainSettings

TODAY = date(2026, 11, 21)
YESTERDAY = TODAY - timedelta(days=1)
DAYS = st.lists(st.dates(TODAY - timedelta(days=9), TODAY), unique=True)


def test_a_run_without_partition_drains() -> None:
    assert work_of("auto", [], TODAY) == Work([], drain=True)


def test_todays_partition_drains() -> None:
    assert work_of("auto", [TODAY], TODAY) == Work([], drain=True)


def test_a_day_before_is_read_again_and_nothing_new_is() -> None:
    assert work_of("auto", [YESTERDAY], TODAY) == Work([YESTERDAY], drain=False)


def test_a_range_that_ends_today_reads_the_days_before_again_and_then_drains() -> None:
    assert work_of("auto", [TODAY, YESTERDAY], TODAY) == Work([YESTERDAY], drain=True)


def test_a_drain_that_starts_after_midnight_still_drains() -> None:
    assert work_of("drain", [YESTERDAY], TODAY) == Work((), drain=True)


def test_today_can_be_read_again_when_that_is_asked_for() -> None:
    assert work_of("reread", [TODAY], TODAY) == Work([TODAY], drain=False)
    assert work_of("reread", [], TODAY) == Work([TODAY], drain=False)


@given(DAYS)
def test_auto_covers_each_day_exactly_once_and_in_order(days: list[date]) -> None:
    work = work_of("auto", days, TODAY)
    assert list(work.reread) == sorted(set(days) - {TODAY})
    assert work.drain == (TODAY in days or not days)


def test_the_drain_settings_reach_the_engine() -> None:
    settings = DrainSettings(idle_timeout=timedelta(seconds=3))
    policy = drain_policy(settings, lambda: True)
    assert policy.gives_way()
    assert (policy.idle_timeout, policy.poll, policy.max_duration) == (
        settings.idle_timeout,
        settings.poll,
        settings.max_duration,
    )

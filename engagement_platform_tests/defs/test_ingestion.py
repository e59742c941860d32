"""What the partitions of a run ask for."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.defs import games, kafka_tables
from engagement_platform.defs.engagement import ENGAGEMENTS, REQUESTS
from engagement_platform.defs.entity import PROFILES
from engagement_platform.defs.ingestion import Ingestion, Mode, run_plan
from engagement_platform.pipelines.games.feed import shipped
from engagement_platform.settings import Settings
from engagement_platform_tests.pipelines.kafka_tables.clicks import CLICK

TODAY = date(2026, 11, 21)
YESTERDAY = TODAY - timedelta(days=1)
DAYS = st.lists(st.dates(TODAY - timedelta(days=9), TODAY), unique=True)


@pytest.mark.parametrize(
    ("mode", "days", "again", "drains"),
    [
        ("auto", [], [], True),
        ("auto", [TODAY], [], True),
        ("auto", [YESTERDAY], [YESTERDAY], False),
        ("auto", [TODAY, YESTERDAY], [YESTERDAY], True),
        ("drain", [YESTERDAY], [], True),
        ("reread", [TODAY], [TODAY], False),
        ("reread", [], [TODAY], False),
    ],
    ids=[
        *("no partition", "today", "a day before", "a range that ends today"),
        *("a drain that starts after midnight", "today once more", "today without a partition"),
    ],
)
def test_days_before_today_are_read_again_and_today_drains_unless_the_mode_says_otherwise(
    mode: Mode, days: list[date], again: list[date], drains: bool
) -> None:
    assert run_plan(mode, days, TODAY) == (again, drains)


@given(DAYS)
def test_auto_covers_each_day_exactly_once_and_in_order(days: list[date]) -> None:
    again, drains = run_plan("auto", days, TODAY)
    assert again == sorted(set(days) - {TODAY})
    assert drains == (TODAY in days or not days)


@pytest.mark.parametrize(
    ("ingestion", "by_day"),
    [
        (ENGAGEMENTS, True),
        (REQUESTS, False),
        (PROFILES.changes, True),
        (games.ingestion(shipped(Settings()), "games"), True),
        (kafka_tables.ingestion(CLICK), False),
    ],
    ids=lambda each: each.job if isinstance(each, Ingestion) else "",
)
def test_assets_have_a_partition_for_each_day_where_a_day_can_be_read_again_and_none_elsewhere(
    ingestion: Ingestion, by_day: bool
) -> None:
    assert (ingestion.reread is not None) == by_day
    assert (ingestion.assets.partitions_def is not None) == by_day
    assert ingestion.tables.by_day == by_day

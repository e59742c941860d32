"""After an hour of everything, a replica that was built in any of the ways equals the Data Table as readers see it.

TESTS_SEED draws another hour.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engagement_platform_tests.consumers.hour import Hour, plain, standing
from engagement_platform_tests.ingestion.world import World

pytestmark = pytest.mark.broker

SEED = int(os.environ.get("TESTS_SEED", "20261124"))
# What may happen, in an order in which it matters; readers read on after some of it.
SHORT = (("traffic", "requests"), ("restore, replay", "optimize"), ("restore, drop", "traffic", "erase", "vacuum"))


def assert_all_equal(hour: Hour) -> None:
    expected = plain(standing(hour.world))
    for name, rows in hour.settle().items():
        assert rows == expected, f"{name} has other rows after {hour.did} (seed {hour.seed})"
    assert expected, "nothing stands, so nothing was compared"


def test_replicas_of_every_mode_equal_the_table_after_each_thing_that_can_happen(world: World, tmp_path: Path) -> None:
    hour = Hour(world, tmp_path / "hour", SEED)
    for steps in SHORT:
        for step in steps:
            hour.do(step)
        hour.read()
    assert_all_equal(hour)
    assert hour.copied.snapshots == 1
    assert (hour.shell.resnapshots, hour.here.resnapshots) == (0, 0)


@pytest.mark.slow
def test_replicas_of_every_mode_equal_the_table_all_through_a_random_hour(world: World, tmp_path: Path) -> None:
    hour = Hour(world, tmp_path / "hour", SEED)
    for _ in range(3):
        hour.walk(12)
        assert_all_equal(hour)
    # Whoever was not drawn by then.
    for step in hour.steps.keys() - set(hour.did):
        hour.do(step)
    hour.sleeper.keep_up(hour.dice)
    hour.do("traffic")
    hour.do("removed from outside")
    assert_all_equal(hour)
    assert hour.sleeper.resnapshots >= 1

"""A function that commits and is no crash point fails here, before anything can be lost by it."""

from __future__ import annotations

from engagement_platform_tests.conformance.points import ELSEWHERE, IN_THE_MATRIX, commits
from engagement_platform_tests.conformance.scenarios import SCENARIOS
from engagement_platform_tests.docs.pages import TESTS

LISTED = [*IN_THE_MATRIX, *(point for points in ELSEWHERE.values() for point in points)]


def test_every_function_that_commits_is_listed_and_every_listed_one_commits() -> None:
    found = commits()
    assert found - set(LISTED) == set(), "add them to conformance/points.py, and a scenario that passes them"
    assert set(LISTED) - found == set(), "these commit nothing any more"
    assert len(LISTED) == len(set(LISTED))


def test_each_point_is_in_a_scenario_or_a_file_that_there_is() -> None:
    assert set(IN_THE_MATRIX.values()) <= {scenario.name for scenario in SCENARIOS}
    assert [file for file in ELSEWHERE if not (TESTS / file).is_file()] == []

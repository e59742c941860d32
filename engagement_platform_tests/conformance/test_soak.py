"""What the figures of a soak say, in milliseconds."""

from __future__ import annotations

import pytest

from engagement_platform_tests.conformance.soak import quarters, verdict


@pytest.mark.parametrize(
    ("name", "found", "says"),
    [
        ("PSS, GB", [2.0, 3.1, 3.0, 3.2], "level"),
        ("PSS, GB", [2.0, 3.0, 4.0, 5.0], ""),
        ("data files", [10.0, 400.0, 500.0, 450.0], "level"),
        ("backlog", [100.0, 300.0, 900.0, 1100.0], ""),
        ("lake, MB", [10.0, 20.0, 30.0, 40.0], "as what arrives"),
        ("lake, MB", [10.0, 20.0, 40.0, 80.0], ""),
    ],
)
def test_only_what_follows_arrivals_may_grow_and_no_faster_than_they(name: str, found: list[float], says: str) -> None:
    assert verdict(name, found) == says


def test_a_quarter_is_as_high_as_its_highest_sample() -> None:
    assert quarters([{"backlog": float(n)} for n in (1, 9, 2, 3, 8, 4, 5, 0)], "backlog") == [9.0, 3.0, 8.0, 5.0]

"""A sample of a matrix for the quick run: another one each UTC day. All of it stands among the slow tests."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")

# Workers inherit it from the process that starts them: begun around midnight, they would collect different tests.
_TODAY = os.environ.setdefault("TESTS_OF_TODAY", datetime.now(UTC).strftime("%Y%m%d"))


def of_today(values: Sequence[object], most: int = 1, *, unpack: bool = False) -> list[ParameterSet]:
    """Parameters of a test, all but `most` of them slow. unpack: each value is a tuple of several parameters.

    The same ones all day, so that a failure can be seen again, and later with ENGAGEMENT_PLATFORM_TEST_SEED, which is
    the day, as in 20261122.
    """
    quick = some_of_today(range(len(values)), most)
    return [
        pytest.param(
            *(value if unpack and isinstance(value, tuple) else (value,)),
            marks=() if number in quick else pytest.mark.slow,
        )
        for number, value in enumerate(values)
    ]


def some_of_today(values: Sequence[T], most: int) -> list[T]:
    """As many of the values, in their order, others each day; all where TESTS_OF_EVERY_DAY is set."""
    if "TESTS_OF_EVERY_DAY" in os.environ:
        return list(values)
    seed = os.environ.get("ENGAGEMENT_PLATFORM_TEST_SEED") or _TODAY
    chosen = random.Random(int(seed)).sample(range(len(values)), min(most, len(values)))
    return [values[number] for number in sorted(chosen)]


def every_third_day(slot: int) -> pytest.MarkDecorator:
    """A long test of the quick run on the days of its slot, 0 to 2, and a slow one on the others.

    Slots are given by hand, so that each day has about as much to do and something of each part of the product.
    """
    assert slot in range(3)
    day = os.environ.get("ENGAGEMENT_PLATFORM_TEST_SEED") or _TODAY
    # Any number is a seed, the one of a day is its date.
    turn = int(day) if len(day) != len("20261122") else date.fromisoformat(day).toordinal()
    due = "TESTS_OF_EVERY_DAY" in os.environ or turn % 3 == slot
    return pytest.mark.of_today if due else pytest.mark.slow

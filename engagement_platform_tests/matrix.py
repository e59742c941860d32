"""A fixed part of a matrix for the quick run; all of it stands among the slow tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")


def quick(values: Sequence[object], most: int = 1, *, unpack: bool = False) -> list[ParameterSet]:
    """Parameters of a test, all but `most` of them slow. unpack: each value is a tuple of several parameters."""
    chosen = spread(range(len(values)), most)
    return [
        pytest.param(
            *(value if unpack and isinstance(value, tuple) else (value,)),
            marks=() if number in chosen else pytest.mark.slow,
        )
        for number, value in enumerate(values)
    ]


def spread(values: Sequence[T], most: int) -> list[T]:
    """As many of the values, in their order and from its beginning to its end; all where EVERY_POINT is set."""
    if "EVERY_POINT" in os.environ or most >= len(values):
        return list(values)
    return [values[(number * (2 * len(values)) + len(values)) // (2 * most)] for number in range(most)]

"""What a check found, and counting it in a frame. What is right and wrong is decided where it is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame

EXAMPLES = 5


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: how many were looked at, how many are wrong, and a few of those."""

    check: str
    meaning: str
    looked_at: int
    wrong: int
    examples: Sequence[str] = ()


def where_wrong(check: str, meaning: str, frame: DataFrame, wrong: Column) -> Finding:
    """Rows of a frame that break a rule; engagement ids as examples."""
    return counted(check, meaning, frame, frame.where(wrong), "engagement_id")


def counted(check: str, meaning: str, frame: DataFrame, bad: DataFrame, show: str) -> Finding:
    """Rows of `frame`, of which those in `bad` break a rule; their column `show` as examples."""
    examples = [str(row[show]) for row in bad.limit(EXAMPLES).collect()]
    return Finding(check, meaning, frame.count(), bad.count() if examples else 0, examples)

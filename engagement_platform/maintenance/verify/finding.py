"""What a check found, and counting it in a frame. What is right and wrong is decided where it is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

EXAMPLES = 5


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: how many were looked at, how many are wrong, and a few of those."""

    check: str
    meaning: str
    looked_at: int
    wrong: int
    examples: Sequence[str] = ()


@dataclass(frozen=True)
class Rule:
    """What rows must not be."""

    check: str
    meaning: str
    broken: Column
    """Whether a row breaks it; null: it does not."""


def found(frame: DataFrame, show: str, *rules: Rule, weight: Column | None = None) -> list[Finding]:
    """Rows of a frame that break each of these rules, with a few of them by their column `show`.

    weight: what a row counts for in `looked_at` (default 1). Cost: one pass, and one more for each rule that is broken.
    """
    totals = [F.count_if(rule.broken).alias(f"wrong_{n}") for n, rule in enumerate(rules)]
    (row,) = frame.agg(F.sum(F.lit(1) if weight is None else weight).alias("looked_at"), *totals).collect()
    looked_at = row["looked_at"] or 0
    return [
        Finding(
            rule.check,
            rule.meaning,
            looked_at,
            row[f"wrong_{n}"],
            [str(bad[show]) for bad in frame.where(rule.broken).limit(EXAMPLES).collect()] if row[f"wrong_{n}"] else [],
        )
        for n, rule in enumerate(rules)
    ]

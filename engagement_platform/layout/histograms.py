"""Histograms of a table's files: names and counts of the buckets, for whoever draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from engagement_platform.layout.finding import readable
from engagement_platform.layout.statistics import BUCKETS


def sizes(histogram: Sequence[int]) -> tuple[list[str], list[int]]:
    """Files by size, from the smallest bucket that holds any to the largest; nothing for no files.

    In: files by BUCKETS (`Totals.histogram`).

    >>> sizes((0, 0, 3, 0, 1, *[0] * 19))
    (['< 4 KB', '< 8 KB', '< 16 KB'], [3, 0, 1])
    """
    used = [i for i, count in enumerate(histogram) if count]
    if not used:
        return [], []
    names = [f"< {readable(high)}" for high in BUCKETS[1:]] + [f"≥ {readable(BUCKETS[-1])}"]
    shown = slice(used[0], used[-1] + 1)
    return names[shown], list(histogram[shown])


def doubling(figures: pa.ChunkedArray | Any) -> tuple[list[str], list[int]]:
    """Counts of 1, 2, 3 to 4, 5 to 8, … up to the largest. In: at least one figure, none null."""
    values = np.asarray(figures.to_numpy(), np.int64)
    ends = [1]
    while ends[-1] < values.max():
        ends.append(ends[-1] * 2)
    where = np.searchsorted(np.asarray(ends), values, side="left")
    lows = [1, *(end + 1 for end in ends[:-1])]
    labels = [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in zip(lows, ends, strict=True)]
    return labels, [int(count) for count in np.bincount(where, minlength=len(ends))]

from __future__ import annotations

import math
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.maintenance.layout.remedies import opened_now, optimize, zorder
from engagement_platform.maintenance.layout.statistics import by_partition
from engagement_platform_tests.maintenance.layout import logs

TARGET = 100
QUICK = settings(deadline=None)
FILES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 250)), min_size=1, max_size=20)


def summed(files: list[tuple[str, int]], days: list[tuple[int, int] | None] | None = None) -> pa.Table:
    """The partition rows of files with these sizes, and ranges in days."""
    table = logs.live((*file, span) for file, span in zip(files, days or [(0, 70)] * len(files), strict=True))
    return by_partition(table, small_file_bytes=10, target_file_bytes=TARGET, clustered=True)


@QUICK
@given(FILES)
def test_z_order_makes_as_many_files_as_whole_targets_fit(files: list[tuple[str, int]]) -> None:
    sizes = {p: sum(s for q, s in files if q == p) for p in {p for p, _ in files}}
    gain = zorder(summed(files), TARGET)
    assert gain.files_after == sum(max(1, size // TARGET) for size in sizes.values())
    assert (gain.bytes_to_rewrite, gain.files_before) == (sum(sizes.values()), len(files))


@QUICK
@given(FILES)
def test_bin_packing_leaves_large_files_and_lone_small_ones(files: list[tuple[str, int]]) -> None:
    after = rewritten = 0
    for partition in {p for p, _ in files}:
        sizes = [size for p, size in files if p == partition]
        merged = [size for size in sizes if size < TARGET]
        if len(merged) < 2:
            after += len(sizes)
            continue
        after += len(sizes) - len(merged) + min(len(merged), math.ceil(sum(merged) / TARGET))
        rewritten += sum(merged)
    gain = optimize(summed(files), TARGET)
    assert (gain.files_after, gain.bytes_to_rewrite) == (after, rewritten)


def test_the_predicted_read_of_a_week_is_near_what_random_weeks_open() -> None:
    dice = random.Random(7)
    starts = [dice.randint(0, 300) for _ in range(60)]
    ranges: list[tuple[int, int] | None] = [(0, 5), (360, 365), *((s, s + dice.randint(1, 60)) for s in starts)]
    predicted = opened_now(summed([("a", 10)] * len(ranges), ranges))[0]
    days = [r for r in ranges if r]
    weeks = [dice.uniform(-7, 365) for _ in range(20_000)]
    opened = sum(sum(low <= w + 7 and high >= w for low, high in days) for w in weeks) / len(weeks)
    assert predicted == pytest.approx(opened, rel=0.05)


def test_files_without_bounds_are_always_opened() -> None:
    assert opened_now(summed([("a", 10)] * 3, [None] * 3)).tolist() == [3.0]


def test_z_order_narrows_reads_and_mutations() -> None:
    gain = zorder(summed([("a", 50)] * 20), TARGET)
    assert (gain.read_files_before, gain.files_before) == (20.0, 20)
    # 10 files of 7 of 70 days each: a week meets about (70 + 10 * 7) / (70 + 7) of them.
    assert (gain.read_files_after, gain.files_after) == (1.82, 10)
    assert gain.saved == pytest.approx(20 - 10 + 20 - 1.82)


def test_nothing_to_mend_predicts_nothing() -> None:
    gain = zorder(summed([("a", 1)]).slice(0, 0), TARGET)
    assert (gain.files_before, gain.files_after, gain.bytes_to_rewrite, gain.saved) == (0, 0, 0, 0.0)

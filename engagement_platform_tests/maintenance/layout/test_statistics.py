from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import date, timedelta
from typing import NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.maintenance.layout.statistics import BUCKETS, by_partition, histogram, overlap, totals_of
from engagement_platform_tests.maintenance.layout import logs

# The first call imports pandas behind pyarrow, which takes longer than any deadline.
QUICK = settings(deadline=None)


class File(NamedTuple):
    """A live file; bounds in days from logs.FIRST."""

    partition: str
    bytes: int
    rows: int | None
    low: int | None
    high: int | None

    @property
    def known(self) -> bool:
        return self.low is not None and self.high is not None


BOUND = st.none() | st.integers(0, 12)
FILES = st.lists(
    st.builds(
        File,
        st.sampled_from(["org=a", "org=b", ""]),
        st.integers(0, 40),
        st.none() | st.integers(0, 9),
        BOUND,
        BOUND,
    ),
    max_size=25,
)


def holding(value: int, ranges: Sequence[tuple[int, int]]) -> int:
    """Files that hold a value: from their lowest up to, not with, their highest; of a single value that one."""
    return sum(low <= value < high or low == value == high for low, high in ranges)


def depths(files: Sequence[File]) -> dict[str, int]:
    """Most files that hold one value; those without bounds, and with bounds the wrong way round, are left out."""
    known: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for file in files:
        if file.low is not None and file.high is not None and file.low <= file.high:
            known[file.partition].append((file.low, file.high))
    return {
        partition: max(holding(value, ranges) for low, high in ranges for value in (low, high))
        for partition, ranges in known.items()
    }


def day(number: int | None) -> date | None:
    return None if number is None else logs.FIRST + timedelta(days=number)


def as_table(files: Sequence[File]) -> pa.Table:
    rows = [
        {**file._asdict(), "codec": "zstd", "low": day(file.low), "high": day(file.high), "known": file.known}
        for file in files
    ]
    return pa.Table.from_pylist(rows, logs.LIVE)


@QUICK
@given(FILES)
def test_the_sweep_counts_what_looking_at_every_value_counts(files: list[File]) -> None:
    swept = {row["partition"]: row["depth"] for row in overlap(as_table(files)).to_pylist()}
    assert swept == depths(files)


@QUICK
@given(st.lists(st.integers(0, 10 * BUCKETS[-1])))
def test_every_size_is_in_the_bucket_that_holds_it(sizes: list[int]) -> None:
    ends = [*BUCKETS[1:], None]
    expected = [
        sum(low <= size and (high is None or size < high) for size in sizes)
        for low, high in zip(BUCKETS, ends, strict=True)
    ]
    assert list(histogram(pa.chunked_array([pa.array(sizes, pa.int64())]))) == expected


@QUICK
@given(FILES)
def test_sums_of_partitions_are_what_a_loop_adds_up(files: list[File]) -> None:
    table = as_table(files)
    rows = by_partition(table, small_file_bytes=10, target_file_bytes=30, clustered=True)
    assert {row["partition"]: row for row in rows.to_pylist()} == looped(files)
    totals = totals_of(table, rows, small_file_bytes=10)
    sizes = sorted(file.bytes for file in files)
    assert (totals.files, totals.partitions) == (len(files), len({file.partition for file in files}))
    assert totals.small_files == sum(size < 10 for size in sizes)
    assert totals.median_file_bytes == (sizes[(len(sizes) - 1) // 2] if sizes else 0)
    assert sum(totals.codecs.values()) == sum(totals.histogram) == len(files)


def looped(files: list[File]) -> dict[str, dict[str, object]]:
    """The same row by row."""
    summed: dict[str, dict[str, object]] = {}
    for partition in sorted({file.partition for file in files}):
        mine = [file for file in files if file.partition == partition]
        lows = [file.low for file in mine if file.low is not None]
        highs = [file.high for file in mine if file.high is not None]
        spans = [file.high - file.low for file in mine if file.low is not None and file.high is not None]
        summed[partition] = {
            "partition": partition,
            "files": len(mine),
            "bytes": sum(file.bytes for file in mine),
            "rows": sum(file.rows or 0 for file in mine),
            "small_files": sum(file.bytes < 10 for file in mine),
            "small_bytes": sum(file.bytes for file in mine if file.bytes < 10),
            "mergeable_files": sum(file.bytes < 30 for file in mine),
            "mergeable_bytes": sum(file.bytes for file in mine if file.bytes < 30),
            "unbounded_files": sum(not file.known for file in mine),
            "low": day(min(lows, default=None)),
            "high": day(max(highs, default=None)),
            "span_days": sum(spans) if spans else None,
            "range_days": max(highs) - min(lows) if lows and highs else None,
            "depth": depths(mine).get(partition),
            "single_value_bytes": max(
                (
                    sum(file.bytes for file in mine if file.low == file.high == value)
                    for value in {file.low for file in mine if file.low is not None and file.low == file.high}
                ),
                default=None,
            ),
        }
    return summed

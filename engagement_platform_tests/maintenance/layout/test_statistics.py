from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import date, timedelta

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.maintenance.layout.statistics import (
    BUCKETS,
    by_partition,
    histogram,
    lower_median,
    overlap,
    totals_of,
)

Range = tuple[str, int | None, int | None]

# The first call imports pandas behind pyarrow, which takes longer than any deadline.
QUICK = settings(deadline=None)

START = date(2024, 1, 1)
RANGES = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 12), st.none() | st.integers(0, 12)), max_size=25
)


def holding(value: int, ranges: Sequence[tuple[int, int]]) -> int:
    """Files that hold a value: from their lowest up to, not with, their highest; of a single value that one."""
    return sum(low <= value < high or low == value == high for low, high in ranges)


def depths(files: Sequence[Range]) -> dict[str, int]:
    """Most files that hold one value."""
    known: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for partition, low, high in files:
        if low is not None and high is not None and low <= high:
            known[partition].append((low, high))
    return {
        partition: max(holding(value, ranges) for low, high in ranges for value in (low, high))
        for partition, ranges in known.items()
    }


def day(number: int | None) -> date | None:
    return None if number is None else START + timedelta(days=number)


def as_table(files: Sequence[Range]) -> pa.Table:
    return pa.table(
        {
            "partition": pa.array([p for p, _, _ in files], pa.string()),
            "low": pa.array([day(low) for _, low, _ in files], pa.date32()),
            "high": pa.array([day(high) for _, _, high in files], pa.date32()),
        }
    )


@QUICK
@given(RANGES)
def test_the_sweep_counts_what_looking_at_every_value_counts(files: list[Range]) -> None:
    swept = {row["partition"]: row["depth"] for row in overlap(as_table(files)).to_pylist()}
    assert swept == depths(files)


def test_files_that_share_a_boundary_day_do_not_overlap() -> None:
    chain = [("a", 0, 3), ("a", 3, 5), ("a", 5, 9)]
    assert overlap(as_table(chain)).to_pylist() == [{"partition": "a", "depth": 1}]


def test_files_of_one_same_day_overlap() -> None:
    assert overlap(as_table([("a", 4, 4)] * 3)).column("depth").to_pylist() == [3]


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
@given(st.lists(st.integers(0, 1000)))
def test_the_lower_median_is_the_middle_of_what_is_sorted(figures: list[int]) -> None:
    expected = sorted(figures)[(len(figures) - 1) // 2] if figures else 0
    assert lower_median(pa.chunked_array([pa.array(figures, pa.int64())])) == expected


FILES = st.lists(
    st.fixed_dictionaries(
        {
            "partition": st.sampled_from(["org=a", "org=b", ""]),
            "bytes": st.integers(0, 40),
            "rows": st.none() | st.integers(0, 9),
            "codec": st.sampled_from(["snappy", "zstd"]),
            "days": st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda pair: tuple(sorted(pair))),
        }
    ),
    max_size=20,
)


@QUICK
@given(FILES)
def test_sums_of_partitions_are_what_a_loop_adds_up(files: list[dict[str, object]]) -> None:
    table = pa.table(
        {
            **{
                name: pa.array([f[name] for f in files], kind)
                for name, kind in (
                    *(("partition", pa.string()), ("bytes", pa.int64()), ("rows", pa.int64())),
                    ("codec", pa.string()),
                )
            },
            "low": pa.array([f["days"] and day(f["days"][0]) for f in files], pa.date32()),  # type: ignore[index]
            "high": pa.array([f["days"] and day(f["days"][1]) for f in files], pa.date32()),  # type: ignore[index]
            "known": pa.array([f["days"] is not None for f in files], pa.bool_()),
        }
    )
    rows = by_partition(table, small_file_bytes=10, target_file_bytes=30, clustered=True)
    assert {row["partition"]: row for row in rows.to_pylist()} == looped(files)
    totals = totals_of(table, rows, small_file_bytes=10)
    assert (totals.files, totals.partitions) == (len(files), len({f["partition"] for f in files}))
    assert totals.small_files == sum(f["bytes"] < 10 for f in files)  # type: ignore[operator]
    assert sum(totals.codecs.values()) == sum(totals.histogram) == len(files)


def looped(files: list[dict[str, object]]) -> dict[str, dict[str, object]]:
    """The same row by row."""
    told: dict[str, dict[str, object]] = {}
    for partition in sorted({str(f["partition"]) for f in files}):
        mine = [f for f in files if f["partition"] == partition]
        sizes = [int(str(f["bytes"])) for f in mine]
        spans = [tuple(map(int, f["days"])) for f in mine if f["days"]]  # type: ignore[call-overload]
        deep = depths([(partition, *span) for span in spans]).get(partition)
        told[partition] = {
            "partition": partition,
            "files": len(mine),
            "bytes": sum(sizes),
            "rows": sum(int(str(f["rows"])) for f in mine if f["rows"] is not None),
            "small_files": sum(size < 10 for size in sizes),
            "small_bytes": sum(size for size in sizes if size < 10),
            "mergeable_files": sum(size < 30 for size in sizes),
            "mergeable_bytes": sum(size for size in sizes if size < 30),
            "unbounded_files": sum(f["days"] is None for f in mine),
            "low": day(min((low for low, _ in spans), default=None)),
            "high": day(max((high for _, high in spans), default=None)),
            "span_days": sum(high - low for low, high in spans) if spans else None,
            "range_days": max(high for _, high in spans) - min(low for low, _ in spans) if spans else None,
            "depth": deep,
        }
    return told

"""Sums up the live files of a table: totals, one row for each partition, a size histogram, overlap of ranges.

Pure, and vectorised in Arrow; where the files come from is `files`, whether they are healthy is `findings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.maintenance.layout.remedies import readable

BUCKETS = (0, *(1 << power for power in range(10, 33)))
"""Lower ends, in bytes, of the buckets of a size histogram: below 1 KiB, then doubling up to 4 GiB and more."""

_DAY_US = 86_400_000_000
_END, _START, _POINT_END = 0, 1, 2


@dataclass(frozen=True)
class Totals:
    """A table as a whole. rows: of the files that say."""

    files: int
    bytes: int
    rows: int
    partitions: int
    small_files: int
    small_bytes: int
    files_without_bounds: int
    """Files without bounds of the clustering column; 0 when there is none."""
    median_file_bytes: int
    median_partition_bytes: int
    codecs: Mapping[str, int]
    """Files by codec."""
    histogram: tuple[int, ...]
    """Files by BUCKETS."""


def totals_of(files: pa.Table, partitions: pa.Table, small_file_bytes: int) -> Totals:
    """Totals of a table from its files (`files.live_files`) and its partitions (`by_partition`)."""
    sizes = files.column("bytes")
    small = sizes.filter(pc.less(sizes, small_file_bytes))
    codecs = pc.value_counts(files.column("codec")).to_pylist()
    return Totals(
        files=files.num_rows,
        bytes=total(sizes),
        rows=total(files.column("rows")),
        partitions=partitions.num_rows,
        small_files=len(small),
        small_bytes=total(small),
        files_without_bounds=total(partitions.column("unbounded_files")),
        median_file_bytes=lower_median(sizes),
        median_partition_bytes=lower_median(partitions.column("bytes")),
        codecs={row["values"]: row["counts"] for row in sorted(codecs, key=lambda row: str(row["values"]))},
        histogram=histogram(sizes),
    )


def total(column: Any) -> int:
    """The sum of a column; 0 for none."""
    return int(pc.sum(column).as_py() or 0)


def lower_median(figures: Any) -> int:
    """The middle figure, the lower of two; 0 for none."""
    ordered = np.sort(figures.to_numpy())
    return int(ordered[(len(ordered) - 1) // 2]) if len(ordered) else 0


def histogram(sizes: Any) -> tuple[int, ...]:
    """Files by BUCKETS; a size at a lower end is in the bucket that begins there."""
    where = np.searchsorted(np.asarray(BUCKETS), sizes.to_numpy(), side="right") - 1
    return tuple(int(count) for count in np.bincount(where, minlength=len(BUCKETS)))


def named_buckets(histogram: Sequence[int]) -> tuple[list[str], list[int]]:
    """Names and counts of BUCKETS, from the smallest that holds any file to the largest; nothing for no files.

    >>> named_buckets((0, 0, 3, 0, 1, *[0] * 19))
    (['< 4 KB', '< 8 KB', '< 16 KB'], [3, 0, 1])
    """
    used = [i for i, count in enumerate(histogram) if count]
    if not used:
        return [], []
    names = [f"< {readable(high)}" for high in BUCKETS[1:]] + [f"≥ {readable(BUCKETS[-1])}"]
    shown = slice(used[0], used[-1] + 1)
    return names[shown], list(histogram[shown])


def by_partition(files: pa.Table, *, small_file_bytes: int, target_file_bytes: int, clustered: bool) -> pa.Table:
    """One row for each partition, ordered by it.

    In:  files as `files.live_files` gives them. clustered: whether bounds are expected at all.
    Out: partition, files, bytes, rows, small_files, small_bytes, mergeable_files, mergeable_bytes (below the target),
         unbounded_files, span_days (days that the files cover, added up), low, high (of the clustering column),
         range_days (from low to high; both null when the column counts none), depth (see `overlap`; null without
         bounds), single_value_bytes (see `_single_value_bytes`; null where no file holds a single value).
    """
    sizes = files.column("bytes")
    small, mergeable = pc.less(sizes, small_file_bytes), pc.less(sizes, target_file_bytes)
    unbounded = pc.invert(files.column("known")) if clustered else pa.repeat(False, files.num_rows)
    summed = {
        "files": pa.repeat(pa.scalar(1, pa.int64()), files.num_rows),
        "bytes": sizes,
        "rows": pc.fill_null(files.column("rows"), 0),
        "small_files": small.cast(pa.int64()),
        "small_bytes": pc.if_else(small, sizes, 0),
        "mergeable_files": mergeable.cast(pa.int64()),
        "mergeable_bytes": pc.if_else(mergeable, sizes, 0),
        "unbounded_files": unbounded.cast(pa.int64()),
        "span_days": _days(files.column("low"), files.column("high")),
    }
    named = {name: files.column(name) for name in ("partition", "low", "high")}
    found = pa.table({**named, **summed}).group_by("partition")
    found = found.aggregate([*((name, "sum") for name in summed), ("low", "min"), ("high", "max")])
    found = found.rename_columns(["partition", *summed, "low", "high"]).sort_by("partition")
    depths = overlap(files.select(["partition", "low", "high"]))
    found = found.append_column("range_days", _days(found.column("low"), found.column("high")))
    for more in (depths, _single_value_bytes(files)):
        name = more.column_names[1]
        where = pc.index_in(found.column("partition"), more.column("partition").combine_chunks())
        found = found.append_column(name, more.column(name).combine_chunks().take(where))
    return found


_AFTER_ALL = "\x7f\ufffd\U0010ffff"
"""What Delta puts after the first 32 characters of a text, so that it is a bound of longer ones."""


def _single_value_bytes(files: pa.Table) -> pa.Table:
    """Bytes of the files that hold nothing but one same value, of the value that has most: no order sets them apart.

    Out: partition, single_value_bytes. Partitions without such a file are left out.
    """
    low, high = files.column("low"), files.column("high")
    end = pc.utf8_rtrim(high, characters=_AFTER_ALL) if pa.types.is_string(high.type) else high
    single = files.filter(pc.fill_null(pc.equal(low, end), False)).select(["partition", "low", "bytes"])
    values = single.group_by(["partition", "low"]).aggregate([("bytes", "sum")])
    most = values.group_by("partition").aggregate([("bytes_sum", "max")])
    return most.rename_columns(["partition", "single_value_bytes"])


def _days(low: Any, high: Any) -> Any:
    """Days from low to high, as a fraction for times; null for what counts no days."""
    kind = low.type
    if pa.types.is_date32(kind):
        return pc.subtract(high.cast(pa.int32()), low.cast(pa.int32())).cast(pa.float64())
    if pa.types.is_timestamp(kind):
        ends = (column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64()) for column in (high, low))
        return pc.divide(pc.subtract(*ends).cast(pa.float64()), float(_DAY_US))
    return pa.nulls(len(low), pa.float64())


def overlap(ranges: pa.Table) -> pa.Table:
    """How deep the ranges of each partition's files lie on top of each other.

    In:  partition, low, high; rows with a null bound, or bounds the wrong way round, are left out.
    Out: partition, depth (most files that hold one same value). Partitions without ranges are left out.
    A file that ends where another begins does not overlap with it, since Z-order leaves one boundary value in both;
    files of a single value hold that value. A sweep over sorted ends: starts count one up, ends one down, in the
    order end, start, end of a single value. Cost: one sort of two rows per file.
    """
    ranges = ranges.filter(pc.fill_null(pc.less_equal(ranges.column("low"), ranges.column("high")), False))
    point = pc.equal(ranges.column("low"), ranges.column("high"))
    ends = pc.if_else(point, pa.scalar(_POINT_END, pa.int8()), pa.scalar(_END, pa.int8()))
    starts = pa.repeat(pa.scalar(_START, pa.int8()), ranges.num_rows)
    order = [("partition", "ascending"), ("value", "ascending"), ("kind", "ascending")]
    events = pa.concat_tables([_events(ranges, "low", starts, 1), _events(ranges, "high", ends, -1)]).sort_by(order)
    # Each partition's steps add up to 0, so one running sum over all of them starts anew with each.
    events = events.append_column("open", pc.cumulative_sum(events.column("step")))
    return events.group_by("partition").aggregate([("open", "max")]).rename_columns(["partition", "depth"])


def _events(ranges: pa.Table, end: str, kinds: Any, step: int) -> pa.Table:
    steps = pa.repeat(pa.scalar(step, pa.int64()), ranges.num_rows)
    named = {"partition": ranges.column("partition"), "value": ranges.column(end), "kind": kinds, "step": steps}
    return pa.table(named)

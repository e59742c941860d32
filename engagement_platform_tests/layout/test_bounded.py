"""Slices of a mutable table that hold more than its writers may wait for: done piece by piece, or left and told of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.layout.optimize import Asked, Done, planned
from engagement_platform.layout.plan import Left
from engagement_platform_tests.layout import logs
from engagement_platform_tests.layout.seeded import SeededLake


def sizes(lake: SeededLake) -> list[int]:
    return sorted(DeltaTable(lake.uri()).get_add_actions(flatten=True)["size_bytes"].to_pylist())


def under(lake: SeededLake, **more: object) -> SeededLake:
    """The same lake with other settings of maintenance; whatever saves a file is worth its bytes."""
    return replace(lake, maintenance=lake.maintenance.model_copy(update={"max_rewrite_share": 1e9, **more}))


@pytest.mark.slow
def test_what_is_too_much_for_one_slice_is_merged_piece_by_piece_the_smallest_files_first(
    tmp_path: Path, spark: SparkSession
) -> None:
    lake = SeededLake(tmp_path, spark=spark)
    for n in range(9):
        lake.engagements("org-1", 1, rows=4 + 300 * n)
    rows, before = lake.rows(), sizes(lake)
    assert len(set(before)) == 9, "files of one size come together"
    most = before[-1] + before[-2] - 1  # the two largest never fit
    many = max(n for n in range(len(before)) if sum(before[:n]) <= most)
    left = len(before) - many + 1
    pieces = under(lake, max_slice_bytes=most)

    [first] = pieces.optimize()
    assert isinstance(first, Done)
    assert sorted(first.rewritten.removed.values()) == before[:many]
    assert (len(first.rewritten.added), lake.files(), first.files_after) == (1, left, left)
    assert first.slice.gain.files_after == left
    assert first.slice.gain.bytes_to_rewrite == sum(before[:many])

    while following := pieces.optimize():
        [next_one] = following
        assert isinstance(next_one, Done), "the next run goes on with what waits"
        assert 0 < sum(next_one.rewritten.removed.values()) <= most
    assert sum(sizes(lake)[:2]) > most, "no two files are left that fit into a slice"

    [whole] = lake.optimize()
    assert isinstance(whole, Done)
    assert (lake.files(), lake.rows()) == (1, rows)


@pytest.mark.slow
def test_a_partition_that_takes_too_long_to_be_ordered_is_left_and_told_of_and_fails_nothing(
    tmp_path: Path, spark: SparkSession
) -> None:
    lake = SeededLake(tmp_path, spark=spark)
    lake.engagements("org-1", 12)
    rows, before = lake.rows(), sizes(lake)
    # None of them is small, and days lie deeper on each other than they should.
    large = {"target_file_bytes": before[0]}

    careful = under(lake, max_slice_bytes=sum(before) - 1, **large)
    [left] = careful.optimize()
    assert isinstance(left, Left)
    assert (left.failed, left.slice.action, sizes(lake)) == (False, "zorder", before)
    assert "maintenance.max_slice_bytes" in left.why
    assert not planned(careful.settings, Asked()).chosen

    [done] = under(lake, max_slice_bytes=sum(before), **large).optimize()
    assert isinstance(done, Done), "exactly the limit is done"
    assert lake.rows() == rows


def test_where_not_even_the_smallest_files_fit_they_are_left_and_told_of(tmp_path: Path) -> None:
    lake = SeededLake(tmp_path)
    lake.engagements("org-1", 3)
    before = sizes(lake)
    [left] = planned(under(lake, max_slice_bytes=before[0] - 1).settings, Asked()).left
    assert "maintenance.max_slice_bytes" in left.why


def test_writers_of_tables_elsewhere_do_not_wait_so_that_nothing_bounds_a_slice(tmp_path: Path) -> None:
    lake = SeededLake(tmp_path / "lake")
    path = logs.table(tmp_path / "t", logs.files(3, 1000))
    [whole] = planned(under(lake, max_slice_bytes=1500).settings, Asked(str(path))).chosen
    assert (whole.gain.files_before, whole.only_below_bytes) == (3, None)

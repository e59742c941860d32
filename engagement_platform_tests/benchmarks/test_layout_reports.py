"""What the benchmarks of file layout conclude follows from their rounds, and from nothing else."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import file_size_report, partitioning_report, simulate_report
from benchmarks.cells import open_run
from benchmarks.file_size import SETTINGS, split
from benchmarks.file_size_report import bucket_table, expected_files, optimum, words
from benchmarks.lakes import Laid
from benchmarks.partitioning_report import BOTH, FILE_BUCKETS, OPERATIONS, Comparison, compare
from benchmarks.simulate_report import by_day, ends

KB, MB = 2**10, 2**20


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ([4, 4.2, 4.4], [1, 2.1, 3], Comparison(2, "less")),
        ([1, 2, 3], [4, 4, 5], Comparison(0.5, "more")),
        ([1, 2, 3], [3, 1, 0.5], Comparison(2, "not told apart")),
        ([4], [1], Comparison(4, "not told apart")),
    ],
)
def test_a_layout_takes_less_or_more_where_all_rounds_say_so(
    first: list[float], other: list[float], expected: Comparison
) -> None:
    assert compare(first, other) == expected


def test_the_settings_are_those_of_the_source_divided_by_64() -> None:
    assert tuple(64 * KB * 2**n for n in range(9)) == SETTINGS
    assert SETTINGS[-1] == 16 * MB


def test_organizations_that_z_order_leaves_in_one_file_are_not_optimized() -> None:
    sizes = (129 * KB, 64 * KB, 64 * KB, 127 * KB)
    partitions = tuple(f"organization_id=org-{n}" for n in (1, 2, 2, 3))
    assert split(Laid("", sizes, partitions, 0), 64 * KB) == ["'org-1'", "'org-2'"]


def test_z_order_makes_the_floor_of_bytes_by_size_and_at_least_one_file() -> None:
    assert expected_files({"a": 10, "b": 64, "c": 191}, 64) == 1 + 1 + 2


def test_a_size_at_an_edge_is_in_the_bucket_that_begins_there() -> None:
    found = bucket_table([64, 128], {64: [1, 63, 64, 127, 128], 128: []})
    assert found == [(0, [2, 0]), (64, [2, 0]), (128, [1, 0])]


@given(st.lists(st.lists(st.integers(0, 2**30), max_size=20), min_size=1, max_size=4))
def test_every_file_is_in_one_bucket(sizes: list[list[int]]) -> None:
    table = bucket_table(SETTINGS, dict(enumerate(sizes)))
    assert [sum(counts[n] for _, counts in table) for n in range(len(sizes))] == [len(of) for of in sizes]


def test_a_setting_that_is_always_fastest_wins_every_draw() -> None:
    found = optimum({1: [5.0, 5.1, 5.2], 2: [1.0, 1.1, 1.2], 4: [3.0, 3.1, 3.2]})
    assert found is not None
    assert (found.best, found.median, found.runner_up, found.as_good) == (2, 1.1, 4, ())
    assert found.wins == {1: 0, 2: 1, 4: 0}
    low, high = found.slower[4]
    assert 1.8 <= low <= 2 <= high <= 2.2
    assert "All others take longer" in words(found)


def test_settings_with_the_same_rounds_are_not_told_apart() -> None:
    rounds = [1.0, 1.3, 1.1, 1.2, 1.4]
    found = optimum({64 * KB: rounds, 128 * KB: list(rounds), MB: [9.0, 9.0, 9.0]})
    assert found is not None
    assert found.as_good == (128 * KB,)
    assert found.wins[64 * KB] == pytest.approx(0.5, abs=0.05)
    assert "Not told apart from it: 128 KB" in words(found)


def test_the_same_rounds_give_the_same_confidence() -> None:
    rounds = {1: [1.0, 1.5, 2.0], 2: [1.2, 1.4, 1.9]}
    assert optimum(rounds) == optimum(rounds)


def test_too_few_rounds_name_no_best_setting() -> None:
    assert optimum({1: [1.0, 1.0], 2: [2.0, 2.0, 2.0]}) is None
    assert words(None).startswith("No best setting")


@given(
    st.dictionaries(st.integers(1, 9), st.lists(st.floats(0.01, 100), min_size=3, max_size=6), min_size=2, max_size=4)
)
def test_wins_are_shares_and_the_best_has_the_lowest_median(rounds: dict[int, list[float]]) -> None:
    found = optimum(rounds, draws=200)
    assert found is not None
    assert sum(found.wins.values()) == pytest.approx(1)
    assert all(low <= high for low, high in found.slower.values())
    assert set(found.slower) == set(rounds) - {found.best}


def test_first_and_last_days_are_a_week_or_a_third() -> None:
    assert ends({day: float(day) for day in range(1, 31)}) == (4, 27)
    assert ends({day: float(day) for day in range(1, 7)}) == (1.5, 5.5)
    assert ends({3: 2.0}) == (2, 2)
    assert ends({}) is None


def test_a_day_is_told_by_its_last_step_and_lost_seconds_are_left_out(tmp_path: Path) -> None:
    run = open_run("b", argparse.Namespace(out=tmp_path))
    cells = run.cells("simulate_days", ("course", "day", "step"), simulate_report.FIGURES)
    rest = {"bytes": 9, "median_bytes": 3, "small_percent": 50}
    for day, seconds in ((1, 0.5), (2, None)):
        cells.add(("x", day, "ingest"), seconds=0.1, files=40, **rest)
        cells.add(("x", day, "mutate"), seconds=seconds, files=30, **rest)
        cells.add(("x", day, "maintain"), seconds=0.2, files=10 * day, **rest)
    assert by_day(cells, "x", "files") == {1: 10, 2: 20}
    assert by_day(cells, "x", "mutation_s") == {1: 0.5}
    simulate_report.save(run, ["x"], cells)
    assert (tmp_path / "simulate_days.png").read_bytes().startswith(b"\x89PNG")
    assert "<script src=" not in (tmp_path / "simulate_days.html").read_text()


def test_the_matrix_has_a_row_for_each_round_and_a_column_for_each_setting(tmp_path: Path) -> None:
    run = open_run("b", argparse.Namespace(out=tmp_path))
    cells = run.cells("file_size", ("setting", "round"), ("moved_s", "files_replaced"))
    files = run.cells("file_size_files", ("setting", "partition", "file"), ("bytes",))
    for n in (1, 2, 3):
        for setting in (64 * KB, MB):
            cells.add((setting, n), moved_s=n * setting / MB, files_replaced=3)
            files.add((setting, "organization_id=a", n), bytes=setting)
    file_size_report.save(run, [64 * KB, MB], cells, files)
    assert (tmp_path / file_size_report.MATRIX).read_text().splitlines() == [
        "round,64 KB,1 MB",
        "1,0.0625,1",
        "2,0.125,2",
        "3,0.1875,3",
    ]
    assert (tmp_path / "file_size.png").read_bytes().startswith(b"\x89PNG")
    assert "Lowest median: 64 KB" in (tmp_path / "file_size.html").read_text()


def test_an_insert_is_also_told_together_with_the_optimize_after_it(tmp_path: Path) -> None:
    run = open_run("b", argparse.Namespace(out=tmp_path))
    cells = run.cells("partitioning", ("layout", "round", "operation"), ("seconds", "files"))
    sizes = run.cells("partitioning_files", ("layout", "file_size"), ("files", "bytes"))
    for layout in ("a", "b"):
        for n in (1, 2):
            for operation in OPERATIONS:
                cells.add((layout, n, operation), seconds=n, files=1)
        for bucket in FILE_BUCKETS:
            sizes.add((layout, bucket), files=1, bytes=bucket)
    assert partitioning_report.seconds(cells, "a", BOTH) == [2, 4]
    partitioning_report.save(run, ["a", "b"], cells, sizes)
    assert (tmp_path / "partitioning.png").read_bytes().startswith(b"\x89PNG")
    assert BOTH in (tmp_path / "partitioning.html").read_text()

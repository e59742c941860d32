"""The benchmark of merge on read measures what it says and goes on where it ended; its report says what is so."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from benchmarks.budget import Budget
from benchmarks.cells import Cells, Progress, Run
from benchmarks.merge_on_read import Bench, cells, parsed
from benchmarks.merge_on_read_reads import AGAIN, BASE, LATE
from benchmarks.merge_on_read_report import (
    MOVE,
    Asked,
    costs,
    crossing_words,
    crossings,
    figures,
    save,
    show,
    tables,
    targets,
)
from benchmarks.merge_on_read_ways import (
    COPY_ON_WRITE,
    MERGE_ON_READ,
    VECTORS,
    WAYS,
    build,
    make_staged,
    seen,
    stage,
    table_of,
)
from benchmarks.mutation_ways import rewritten
from benchmarks.perftest.data import Generated, Records
from benchmarks.perftest.one import summed_up
from engagement_platform.pipelines.profiles.rematerialize import METHODS
from engagement_platform.pipelines.profiles.view import STRATEGIES

SMALL = Asked(
    rows=400, changes=60, dates=50, rounds=1, batches=1, every=10, pending=(60,), sizes=(300, 400), moved=10, seed=3
)


def kept(folder: Path) -> tuple[Cells, Cells, Cells]:
    return cells(Run(folder, {}))


def made_up(folder: Path, asked: Asked = SMALL) -> tuple[Cells, Cells, Cells]:
    """Figures of a machine on which merge on read costs a tenth to write and a quarter more to read."""
    writes, reads, moves = kept(folder)
    for way, batch in asked.writes:
        seconds = {MERGE_ON_READ: 1.0}.get(way, 12.0)
        seconds = 20.0 if batch == MOVE else seconds
        writes.add((way, batch), seconds=seconds, bytes=500e6 if batch == MOVE else 1e6, files_replaced=2)
    for key in asked.reads:
        reads.add(key, seconds={BASE: 2.0, LATE: 3.2, AGAIN: 3.5}.get(key[0], 2.5))
    for method, spread, rows, round_ in asked.moves:
        slope = {"merge": 0.02, "overwrite": 0.03, "replace_where": 0.03}[method]
        fixed = {"merge": 5.0, "overwrite": 2.0, "replace_where": 1.0}[method]
        seconds = fixed + slope * int(rows)
        moves.add((method, spread, rows, round_), seconds=seconds, bytes=1e6, files_replaced=1, base_bytes=9e6)
    return writes, reads, moves


def test_a_share_of_the_move_belongs_to_each_batch(tmp_path: Path) -> None:
    found = costs(SMALL, made_up(tmp_path)[0])
    assert found[MERGE_ON_READ].sustained_s == 1.0 + 20.0 / 10
    assert found[COPY_ON_WRITE].sustained_s == 12.0
    first, second, anyhow, late, again, third = targets(SMALL, *made_up(tmp_path)[:2])
    assert "costs 4.0 times less than copy-on-write MERGE, moves included (12.0 without); target 5: missed." in first
    assert second.startswith("With 60 changes waiting the view is made and read (")
    assert second.endswith("in 1.25 times the base's time; target at most 1.5: met.")
    assert "(left_join_anti_join, by which profiles are read unless" in anyhow
    assert "made and read where some are late in 1.60 times the base's time; target at most 1.5: missed." in late
    assert "the view is read again in 1.75 times the base's time; target at most 1.5: missed." in again
    # 500 MB in 20 s.
    rate = 25 / (os.cpu_count() or 1)
    began = (
        f"overwrite moves {rate:.1f} MB a second and core (500 MB in 20.0 s), 200 MB on two cores in {100 / rate:.0f} s"
    )
    assert third == f"{began} (24 in the source); target 4.2: {'met' if rate >= 4.2 else 'missed'}."


def test_crossings_are_where_the_curves_meet(tmp_path: Path) -> None:
    said = crossing_words(SMALL, made_up(tmp_path)[2])
    # 5 + 0.02 n = 2 + 0.03 n at 300 rows, where they only touch; 5 + 0.02 n = 1 + 0.03 n at 400.
    assert "Changes everywhere: overwrite and replace_where cost the same" not in " ".join(said)
    assert "Changes everywhere: replace_where costs less than overwrite at every size." in said


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 100), st.integers(-9, 9), st.integers(-9, 9)),
        min_size=1,
        max_size=8,
        unique_by=lambda p: p[0],
    )
)
def test_curves_cross_as_often_as_the_cheaper_one_changes(points: list[tuple[int, int, int]]) -> None:
    xs, first, other = zip(*sorted(points), strict=True)
    signs = [(a > b) - (a < b) for a, b in zip(first, other, strict=True) if a != b]
    found = crossings(xs, first, other)
    assert len(found) == sum(a != b for a, b in pairwise(signs))
    assert found == sorted(found)
    assert all(min(xs) <= x <= max(xs) for x in found)


def test_everything_is_shown_and_drawn_also_what_is_not_measured_yet(tmp_path: Path) -> None:
    from rich.console import Console

    for folder, found in (
        (tmp_path / "empty", kept(tmp_path / "empty")),
        (tmp_path / "full", made_up(tmp_path / "full")),
    ):
        run = Run(folder, {"machine": {"cores": "2"}, "scale": {}})
        save(run, SMALL, *found)
        lines = figures(run, SMALL, *found).splitlines()
        assert len({line.count("|") for line in lines if line.startswith(("| way |", "| merge on read |"))}) == 1
        assert (folder / "merge_on_read.png").read_bytes().startswith(b"\x89PNG")
        assert "<h1>Merge on read</h1>" in (folder / "merge_on_read.html").read_text()
        console = Console(width=150, record=True, file=(tmp_path / "screen").open("w"))
        show(console, SMALL, *found)
        assert len(tables(SMALL, *found)) == 4
    shown = console.export_text()
    for name in (*WAYS, *STRATEGIES, *METHODS, "2.500 (1.25)"):
        assert name in shown


def test_nothing_begins_once_the_time_is_over(spark: SparkSession, tmp_path: Path) -> None:
    found = kept(tmp_path)
    Bench(spark, tmp_path / "tables", SMALL, found, Progress(SMALL.total), Budget(1e-9)).everything()
    assert [len(one) for one in found] == [0, 0, 0]


def test_options_of_a_quick_run_are_whole_batches() -> None:
    asked = Asked.of(parsed(["--quick"]))
    assert (asked.rows, asked.changes, asked.rounds) == (20_000, 500, 2)
    assert all(one % asked.changes == 0 for one in asked.pending)
    assert asked.pending == (0, 2_000, 8_000)
    assert asked.sizes == (5_000, 20_000)
    with pytest.raises(SystemExit):
        parsed(["--pending", "70000"])
    with pytest.raises(SystemExit):
        parsed(["--batches", "1"])


@pytest.mark.slow
def test_every_way_of_writing_leaves_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Two batches, of which the second meets some that the first deleted. One way is left to the long test."""
    records = Records(Generated(base_rows=200, changes=60, batches=0, dates=20, delete_percent=20))
    found = {}
    for way, write in WAYS.items():
        if way == VECTORS:
            continue
        home = tmp_path / way.replace(" ", "-")
        build(home, records, flat=True)
        at = stage(spark, home)
        uri = table_of(at, way)
        for batch in range(2):
            rows = records.changes(batch)
            make_staged(at, rows, batch)
            before = DeltaTable(uri)
            write(at, rows, batch)
            if way == COPY_ON_WRITE and batch == 0:
                # Changes of all days leave no file as it is.
                assert rewritten(uri, before.version())[0] == len(before.file_uris())
        found[way] = summed_up(seen(at, way))
    assert len(set(found.values())) == 1, found
    assert found[MERGE_ON_READ][0] > 150


@pytest.mark.slow
def test_a_whole_small_run_fills_every_cell_once(spark: SparkSession, tmp_path: Path) -> None:
    found = kept(tmp_path)
    for _ in range(2):
        (tmp_path / "tables").mkdir(exist_ok=True)
        progress = Progress(SMALL.total, sum(map(len, found)))
        Bench(spark, tmp_path / "tables", SMALL, found, progress, Budget(0)).everything()
        assert [len(one) for one in found] == [len(SMALL.writes), len(SMALL.reads), len(SMALL.moves)]
    assert found[0].figures("files_replaced", way=MERGE_ON_READ, batch=0) == [0.0]
    assert found[0].figures("files_replaced", way=COPY_ON_WRITE)[0] >= 1

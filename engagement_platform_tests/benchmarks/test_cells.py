"""What a benchmark has measured is kept: through interruptions, and apart for other options."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cells import Cells, Progress, charts, open_run, page, right_aligned


def opened(path: Path) -> Cells:
    """Cells as a benchmark has them."""
    return Cells(path / "b.csv", ("layout", "round"), ("seconds", "files"))


def test_finished_cells_are_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.add(("organization, Z-order", 1), seconds=0.25, files=3)
    first.add(("liquid", 1), seconds=None, files=1)
    again = opened(tmp_path)
    assert ("organization, Z-order", 1) in again
    assert ("liquid", 2) not in again
    assert list(again) == list(first)
    assert again.figures("seconds", round=1) == [0.25]
    assert again.figures("files", layout="liquid") == [1]


def test_a_cell_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    cells = opened(tmp_path)
    cells.add(("liquid", 1), seconds=1, files=1)
    cells.add(("liquid", 1), seconds=9, files=9)
    assert cells.figures("seconds") == opened(tmp_path).figures("seconds") == [1]


@given(cut=st.integers(min_value=0, max_value=60))
def test_a_file_that_ends_anywhere_keeps_its_whole_lines(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("cells")
    cells = opened(folder)
    for n in range(3):
        cells.add(("liquid", n), seconds=n + 0.5, files=n)
    whole = cells.path.read_bytes()
    cells.path.write_bytes(whole[: len(whole) - cut])
    left = max(0, whole[: len(whole) - cut].count(b"\n") - 1)
    resumed = opened(folder)
    assert resumed.figures("seconds") == [n + 0.5 for n in range(left)]
    for n in range(3):
        resumed.add(("liquid", n), seconds=n + 0.5, files=n)
    assert cells.path.read_bytes() == whole


def test_a_file_with_other_columns_is_left_alone(tmp_path: Path) -> None:
    opened(tmp_path).add(("liquid", 1), seconds=1, files=1)
    before = (tmp_path / "b.csv").read_bytes()
    with pytest.raises(SystemExit, match="another --out"):
        Cells(tmp_path / "b.csv", ("layout",), ("seconds",))
    assert (tmp_path / "b.csv").read_bytes() == before


def test_a_changed_option_is_another_folder_and_the_same_ones_are_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few, many = (argparse.Namespace(rows=rows, out=None) for rows in (1, 2))
    assert open_run("b", few).folder == open_run("b", few).folder
    assert open_run("b", few).folder != open_run("b", many).folder


def test_a_folder_that_was_asked_for_takes_no_other_options(tmp_path: Path) -> None:
    open_run("b", argparse.Namespace(rows=1, out=tmp_path / "here"))
    open_run("b", argparse.Namespace(rows=1, out=tmp_path / "here"))
    with pytest.raises(SystemExit, match="another rows"):
        open_run("b", argparse.Namespace(rows=2, out=tmp_path / "here"))


def test_tables_go_when_everything_is_measured_and_figures_stay(tmp_path: Path) -> None:
    run = open_run("b", argparse.Namespace(out=tmp_path))
    run.cells("b", ("layout",), ("seconds",)).add(("liquid",), seconds=1)
    (run.tables / "before").mkdir(parents=True)
    run.close()
    assert not run.tables.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"about.json", "b.csv"}


def test_progress_counts_on_from_what_was_there(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(total=4, done=2)
    progress.step("third")
    assert progress.done == 3
    assert "[   3/4] third" in capsys.readouterr().out


def test_a_page_has_machine_figures_and_charts_and_loads_nothing(tmp_path: Path) -> None:
    import plotly.graph_objects as go

    run = open_run("b", argparse.Namespace(rows=7, out=tmp_path))
    table = right_aligned("Seconds", "layout", "s")
    table.add_row("<liquid>", "0.25")
    text = page("Layouts", run, [table], charts(go.Figure(go.Bar(x=["a"], y=[1])), go.Figure()))
    assert "rows 7" in text
    assert "<td>&lt;liquid&gt;</td><td>0.25</td>" in text
    assert text.count('id="chart-') == 2
    assert "<script src=" not in text
    assert "<link" not in text

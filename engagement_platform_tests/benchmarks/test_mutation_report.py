"""What the mutation benchmark says of its rounds follows from them."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks.mutation_reads import Profile
from benchmarks.mutation_report import Figures, Measured, Read, Target, save
from benchmarks.mutation_ways import DELTA_RS, NAIVE, Outcome, rewritten


def measured(way: str, visible_s: float, announced_s: float, rows: int = 100, round_: int = 1) -> Measured:
    """A round of a way with these times; the Data Table has the changes a second after the notifications."""
    outcome = Outcome(visible_s, announced_s, announced_s + 1, {"merge": visible_s})
    return Measured(way, rows, round_, 1, 80, outcome, files=2, bytes=160, bytes_changed=80, jobs=0)


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target("faster", 5, at_least=5), True),
        (Target("faster", 4.99, at_least=5), False),
        (Target("slower", 1.3, at_most=1.3), True),
        (Target("slower", 1.31, at_most=1.3), False),
        (Target("slower", None, at_most=1.3), None),
    ],
)
def test_a_target_is_met_up_to_and_with_its_bound_and_open_without_a_figure(target: Target, met: bool | None) -> None:
    assert target.met is met


def test_targets_compare_medians_of_one_run() -> None:
    rounds = [measured("auto", seconds, 2.0, round_=n) for n, seconds in enumerate((0.5, 9.0, 0.1))]
    rounds += [measured(NAIVE, 50.0, 60.0), measured("auto", 0.6, 3.0, rows=1_000)]
    rounds += [measured(DELTA_RS, 3.0, 4.0, rows=1_000)]
    found = [one.found for one in Figures(rounds, [Read("all columns", 100, 2.0, 1.0)]).targets()]
    visible, moved, announced = [100, 5, 1.2], [61 / 3, None, 4 / 5], [30]
    assert found == pytest.approx([*visible, *moved, *announced, 2.0, None, None, None])


def test_bytes_written_and_files_replaced_are_those_since_a_version(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"o": ["a", "b", "c"], "p": ["x", "y", "z"]}), partition_by=["o"])
    table = DeltaTable(uri)
    assert rewritten(uri, table.version()) == (0, 0)
    table.update({"p": "'new'"}, predicate="o IN ('a', 'b')")
    files = pa.table(DeltaTable(uri).get_add_actions(flatten=True)).to_pylist()
    assert rewritten(uri, 0) == (2, sum(one["size_bytes"] for one in files if one["partition.o"] != "c"))


def test_every_round_profile_and_a_plot_are_saved(tmp_path: Path) -> None:
    profile = Profile("the view", "all columns", 100, 0.5, 0.1, 1.4, jobs=2, tasks=4, files=1)
    rounds = [measured("auto", 0.5, 2.0), measured(NAIVE, 50.0, 60.0)]
    save(tmp_path, Figures(rounds, [Read("all columns", 100, 2.0, 1.0)], [profile]), [])
    with (tmp_path / "mutation_profiles.csv").open(newline="") as file:
        [line] = csv.DictReader(file)
    assert {name: line[name] for name in ("which", "opened_s", "jobs", "tasks", "files")} == {
        "which": "the view", "opened_s": "0.5", "jobs": "2", "tasks": "4", "files": "1",
    }  # fmt: skip
    with (tmp_path / "mutation.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(one["way"], one["moved_s"], one["write_amplification"]) for one in lines] == [
        ("auto", "3.0", "2.0"),
        (NAIVE, "61.0", "2.0"),
    ]
    assert (tmp_path / "mutation.png").read_bytes().startswith(b"\x89PNG")

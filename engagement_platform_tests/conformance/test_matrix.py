"""What runs are compared by tells one that did its work from one that did nothing; the runs are `make conformance`."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess
from typing import cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from engagement_platform_tests.conformance import matrix
from engagement_platform_tests.conformance.__main__ import main
from engagement_platform_tests.conformance.matrix import contents, differences, traces
from engagement_platform_tests.conformance.programs import Program
from engagement_platform_tests.conformance.races import pairs
from engagement_platform_tests.conformance.scenarios import SCENARIOS
from engagement_platform_tests.ingestion.test_whole_path import Machine


@pytest.fixture
def own(tmp_path: Path) -> Machine:
    """A home with one table of two files."""
    machine = Machine(tmp_path, {"ENGAGEMENT_PLATFORM_LAKE_URI": str(tmp_path / "home" / "lake")})
    for number in range(2):
        write_deltalake(uri(machine), pa.table({"number": [number]}), mode="append")
    return machine


def uri(own: Machine) -> str:
    return f"{own.lake}/some/table"


def table(own: Machine) -> DeltaTable:
    return DeltaTable(uri(own))


def test_a_table_that_was_optimized_or_vacuumed_differs_from_one_that_was_not(own: Machine) -> None:
    before = contents(own)
    seen = [traces(own)["files of some/table"]]
    table(own).optimize.compact()
    seen.append(traces(own)["files of some/table"])
    table(own).vacuum(0, dry_run=False, enforce_retention_duration=False)
    seen.append(traces(own)["files of some/table"])
    assert seen == [["2 live, 0 former"], ["1 live, 2 former"], ["1 live, 0 former"]]
    assert differences(before, contents(own)) == ""


def test_a_file_that_no_log_names_makes_no_difference(own: Machine) -> None:
    before = traces(own)
    (Path(uri(own)) / "part-of-one-that-was-killed.parquet").touch()
    assert differences(before, traces(own)) == ""


def test_a_table_that_is_left_open_or_lacks_a_file_differs(own: Machine) -> None:
    before = contents(own)
    table(own).alter.set_table_properties({"delta.appendOnly": "false"})
    assert "properties of some/table" in differences(before, contents(own))
    before, (lost, _) = contents(own), table(own).file_uris()
    Path(lost).rename(Path(lost).with_suffix(".gone"))
    assert f"{Path(lost).name} is gone" in differences(before, contents(own))


class Sleeper:
    """A program that was stopped and, once it is woken up, ends like this."""

    def __init__(self, status: int, errors: str) -> None:
        self.does = CompletedProcess("", status, "", errors)
        self.awake = False

    def stopped(self) -> bool:
        return True

    def wake(self) -> None:
        self.awake = True

    def ended(self) -> CompletedProcess[str]:
        assert self.awake
        return self.does


@pytest.mark.parametrize(
    ("status", "errors", "rescued", "differs"),
    [
        (0, "", "", ""),
        (1, "LeaseLost: lost the lease\n", "", ""),
        (0, "", "did not work", "rescued by did not work"),
        (1, "BatchFailed: a conflict\n", "", "woken up, status 1: BatchFailed: a conflict\n"),
        (1, "Traceback\nKeyError: 1\n", "", "woken up, status 1: Traceback\nKeyError: 1\n"),
    ],
)
def test_a_run_differs_where_who_takes_over_fails_or_who_wakes_up_ends_otherwise_than_by_a_refusal(
    monkeypatch: pytest.MonkeyPatch, own: Machine, status: int, errors: str, rescued: str, differs: str
) -> None:
    monkeypatch.setattr(matrix, "LEASE_S", 0)
    monkeypatch.setattr(matrix, "_finish", lambda *_: iter([rescued]))
    sleeper = cast("Program", Sleeper(status, errors))
    assert matrix._fault(own, SCENARIOS[0], sleeper, "stop") == differs


def test_a_section_that_has_nothing_to_do_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for section in ("runs", "bugs", "races"):
        monkeypatch.setattr("sys.argv", ["conformance", section, "--only", "what there is not"])
        assert main() == 1
        assert capsys.readouterr().err == f"{section}: there was nothing to do\n"


def test_every_operation_races_every_other_and_itself_once() -> None:
    every = pairs(())
    assert len(every) == len({frozenset((one.name, other.name)) for one, other in every}) == 45
    assert [(one.name, other.name) for one, other in pairs(("vacuum",))] == [("vacuum", "vacuum")]

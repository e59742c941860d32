"""What runs are compared by tells one that did its work from one that did nothing; the runs are `make conformance`."""

from __future__ import annotations

import fnmatch
import json
import os
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from engagement_platform.engine import schema
from engagement_platform.engine.database import open_engine, writing
from engagement_platform.engine.model import Manifest
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.lake import shared_session
from engagement_platform.lake.erased import ERASE_SUBJECTS
from engagement_platform.pii import schema as pii_schema
from engagement_platform.pii.erasure import Erased
from engagement_platform.pii.keys import open_pii
from engagement_platform.pii.schema import PII_ERASED
from engagement_platform.pipelines.games import live_ops_store
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS
from engagement_platform.sources import s3_sqs_state
from engagement_platform_tests.conformance import matrix, programs
from engagement_platform_tests.conformance.__main__ import main
from engagement_platform_tests.conformance.fuzz_personal import _a_receipt
from engagement_platform_tests.conformance.matrix import (
    LEFT_OUT,
    Contents,
    Run,
    _until_done,
    contents,
    differences,
    one_of_each,
    traces,
)
from engagement_platform_tests.conformance.programs import Program
from engagement_platform_tests.conformance.races import pairs
from engagement_platform_tests.conformance.refusals import Ended
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


WORKS, REFUSES, BREAKS = Ended(0, ""), Ended(1, "TableBusy: another process writes\n"), Ended(1, "KeyError: 1\n")


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
        (0, "", WORKS, ""),
        (1, "LeaseLost: lost the lease\n", WORKS, ""),
        (0, "", BREAKS, f"rescued by {BREAKS.wrong}"),
        (0, "", REFUSES, f"rescued by {REFUSES.refused}"),
        (1, "BatchFailed: a conflict\n", WORKS, "woken up, status 1: BatchFailed: a conflict\n"),
        (1, "Traceback\nKeyError: 1\n", WORKS, "woken up, status 1: Traceback\nKeyError: 1\n"),
    ],
)
def test_a_run_differs_where_who_takes_over_fails_or_who_wakes_up_ends_otherwise_than_by_a_refusal(
    monkeypatch: pytest.MonkeyPatch, own: Machine, status: int, errors: str, rescued: Ended, differs: str
) -> None:
    monkeypatch.setattr(matrix, "LEASE_S", 0)
    monkeypatch.setattr(matrix, "_finish", lambda *_: iter([rescued]))
    sleeper = cast("Program", Sleeper(status, errors))
    assert matrix._fault(own, SCENARIOS[0], sleeper, "stop") == differs


def test_nobody_does_the_work_of_one_that_keeps_others_out(monkeypatch: pytest.MonkeyPatch, own: Machine) -> None:
    monkeypatch.setattr(matrix, "LEASE_S", 0)
    monkeypatch.setattr(matrix, "_finish", lambda *_: iter([BREAKS]))
    assert [scenario.name for scenario in SCENARIOS if scenario.alone] == ["consumer"]
    assert matrix._fault(own, replace(SCENARIOS[0], alone=True), cast("Program", Sleeper(0, "")), "stop") == ""


@pytest.mark.parametrize(
    ("ends", "lacks", "says"),
    [
        ([WORKS], [""], ""),
        ([REFUSES, WORKS], [""], ""),
        ([WORKS, WORKS, BREAKS], ["a row", ""], ""),
        ([WORKS, WORKS], ["a row", "a row"], "a row"),
        ([REFUSES], [], REFUSES.refused),
        ([BREAKS, WORKS], [""], BREAKS.wrong),
        ([BREAKS, WORKS], ["a row"], f"{BREAKS.wrong}; a row"),
    ],
)
def test_each_program_that_finishes_works_or_refuses_and_in_the_end_one_has_worked_and_nothing_lacks(
    ends: list[Ended], lacks: list[str], says: str
) -> None:
    left = iter(lacks)
    assert _until_done(iter(ends), lambda: next(left)) == says


@pytest.mark.parametrize(("status", "differs"), [(1, ""), (0, "never reached: Crash")])
def test_a_run_in_which_an_exception_was_raised_and_that_ends_as_if_nothing_was_had_no_fault(
    own: Machine, status: int, differs: str
) -> None:
    sleeper = Sleeper(status, "Crash")
    sleeper.awake = True
    assert matrix._fault(own, SCENARIOS[0], cast("Program", sleeper), "raise") == differs


def test_a_program_that_neither_ends_nor_stops_is_a_run_that_differs(
    monkeypatch: pytest.MonkeyPatch, own: Machine
) -> None:
    class Hangs(Sleeper):
        def stopped(self) -> bool:
            raise AssertionError("it hangs")

        def kill(self) -> None:
            self.awake = True

    hangs = Hangs(0, "")
    monkeypatch.setattr(matrix, "_own", lambda *_: own)
    monkeypatch.setattr(matrix, "_begin", lambda *_: hangs)
    run = matrix._disturbed(own, SCENARIOS[0], {}, 0, "a:before", "stop")
    assert (run.differs, hangs.awake) == ("it hangs", True)


def test_a_program_that_neither_ends_nor_stops_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[str]()
    process = SimpleNamespace(is_alive=lambda: True, pid=os.getpid())
    process.kill, process.join = lambda: ended.append("killed"), lambda: ended.append("joined")
    program: Any = Program.__new__(Program)
    program._process, program.words = process, ["a", "program"]
    monkeypatch.setattr(programs, "WITHIN_S", 0)
    with pytest.raises(AssertionError, match="neither ended nor came to its point"):
        program.stopped()
    assert ended == ["killed", "joined"]


def test_every_row_of_the_stores_is_compared_without_what_an_attempt_draws(own: Machine) -> None:
    def erased(ref: str, sequence: int) -> dict[str, object]:
        return {"kind": "person", "within": "", "ref": ref, "sequence": sequence}

    def tombstones(*rows: dict[str, object]) -> Contents:
        engine = open_pii(f"sqlite:///{own.folder / 'home' / 'stores.db'}")
        with writing(engine, "test") as connection:
            connection.execute(PII_ERASED.delete())
            for row in rows:
                connection.execute(PII_ERASED.insert().values(**row))
        engine.dispose()
        return traces(own)

    before = tombstones(erased("a", 1))
    assert differences(before, tombstones(erased("a", 2))) == ""
    store = CheckpointStore(open_engine(f"sqlite:///{own.folder / 'home' / 'stores.db'}"))
    for job in (ERASE_SUBJECTS, INGEST_ENGAGEMENTS):
        store.begin(Manifest(job, store.app_id(job), 0, {}, {}, datetime(2026, 11, 1, tzinfo=UTC)))
    before = tombstones(erased("a", 1))
    assert differences(before, tombstones(erased("a", 2))) == "", "how many calls an erasure took does not count"
    assert "'batches_before': 1" in differences(before, tombstones(erased("a", 3)))
    assert "pii_erased of the stores" in differences(before, tombstones())
    assert "pii_erased of the stores" in differences(before, tombstones(erased("b", 1)))


def test_a_receipt_that_is_not_there_or_says_something_else_differs(own: Machine) -> None:
    def receipt(left: int, **more: object) -> Contents:
        place = {"name": "engagement/data", "rows": 3, "left": left}
        (own.folder / "receipt.json").write_text(json.dumps({"format": "1", "places": [place], **more}))
        return traces(own)

    without, before = traces(own), receipt(0, erased_ts="2026-11-26", signature="a")
    assert differences(before, receipt(0, erased_ts="2026-11-27", signature="b")) == ""
    assert "receipt" in differences(before, receipt(1))
    assert "receipt" in differences(before, without)


def test_what_is_left_out_is_there_and_has_a_reason() -> None:
    metadata = (schema.METADATA, pii_schema.METADATA, live_ops_store.METADATA, s3_sqs_state.METADATA)
    tables = [table for one in (*metadata, shared_session.METADATA) for table in one.tables.values()]
    names = {f"{table.name}.{column.name}" for table in tables for column in table.columns}
    names |= {f"receipt.{name}" for name in _a_receipt()} | {f"place.{each.name}" for each in fields(Erased)}
    assert [out for out in LEFT_OUT if not fnmatch.filter(names, out)] == []
    assert all(LEFT_OUT.values())


def test_a_section_that_has_nothing_to_do_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("disturb", "plant", "race"):
        monkeypatch.setattr(f"engagement_platform_tests.conformance.__main__.{name}", lambda *_, **__: iter(()))
    for section, one in (("runs", "ingest"), ("bugs", "no_transaction_id"), ("races", "vacuum")):
        monkeypatch.setattr("sys.argv", ["conformance", section, "--minutes", "1", "--only", one])
        assert main() == 1
        assert capsys.readouterr().err == f"{section}: there was nothing to do\n"


@pytest.mark.parametrize("section", ["runs", "bugs", "fuzz", "faults", "races"])
def test_a_name_that_nothing_has_is_refused_also_beside_one_that_something_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], section: str
) -> None:
    monkeypatch.setattr("sys.argv", ["conformance", section, "runs", "--only", "ingest", "injest"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.endswith("nothing is called injest\n")


def test_how_many_points_of_a_job_were_disturbed_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        Run("ingest", 0, point, fault, "", 1.0, 17) for point in ("a:before", "b:after") for fault in ("kill", "stop")
    ]
    monkeypatch.setattr("engagement_platform_tests.conformance.__main__.disturb", lambda *_, **__: iter(runs))
    monkeypatch.setattr("sys.argv", ["conformance", "runs", "--only", "ingest"])
    assert main() == 0
    assert capsys.readouterr().out.endswith(f"\n\n2 of 17 points, of 1 of {len(SCENARIOS)} jobs.\n")


def test_every_operation_races_every_other_and_itself_once() -> None:
    every = pairs(())
    assert len(every) == len({frozenset((one.name, other.name)) for one, other in every}) == 45
    assert [(one.name, other.name) for one, other in pairs(("vacuum",))] == [("vacuum", "vacuum")]
    asked = {frozenset((one.name, other.name)) for one, other in pairs(("vacuum", "restore+erase", "erase+ingest"))}
    assert asked == {frozenset({"vacuum"}), frozenset({"restore", "erase"}), frozenset({"erase", "ingest"})}


def test_with_as_many_seeds_as_a_commit_has_points_each_is_taken_once_and_each_table_of_a_function_every_time() -> None:
    commits = {"a.B.append a/b": 4, "a.B.append a/c": 2, "a.record": 6}
    passed = [
        f"{name}{f' #{number // 2 + 1}' * (number > 1)}:{('before', 'after')[number % 2]}"
        for name, of in commits.items()
        for number in range(of)
    ]
    taken = [one_of_each(passed, seed) for seed in range(6)]
    assert all([point.partition(":")[0].partition(" #")[0] for point in each] == list(commits) for each in taken)
    assert {point for each in taken for point in each} == set(passed)

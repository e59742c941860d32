"""One process for each permutation, figures kept as they come, and secrets nowhere. Spark is stood in for by a script.

What the process really does is tried in `test_one`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.perftest.run import MethodsDiffer, NothingToMeasure, PerfTest, PermutationFailed, prepare, run
from benchmarks.perftest.spec import parse
from benchmarks.perftest.timer import TIMER, rows_of
from engagement_platform.settings import Settings
from engagement_platform_tests.benchmarks.perftest.test_spec import PASSWORD, REMOTE, TOKEN

SMALL = {"base_rows": 60, "changes": 10, "batches": 1, "dates": 10}

STAND_IN = """
import json, sys
heard = sys.stdin.read()
work = json.loads(heard)
asked = work["permutation"]
with open(sys.argv[1], "a") as calls:
    calls.write(f"{asked['run']} {asked['operation']} {asked['method']}\\n")
print("Spark says something first")
if asked["method"] in sys.argv[2].split(","):
    # Whatever it knows, in every form: as a careless library would.
    print(heard, work["spec_text"], json.loads(work["spec_text"]).get("cluster"), file=sys.stderr)
    print(heard)
    sys.exit(7)
if sys.argv[3] == asked["method"]:
    import time; time.sleep(30)
rows = 3 if asked["method"] == sys.argv[4] else 2
print("measured: " + json.dumps({"seconds": 0.5, "start_s": 1.0, "rows": rows, "checksum": "9", "pending_rows": 10,
                                 "broadcast": True}))
print("and last")
"""


def stand_in(tmp_path: Path, failing: str = "-", hanging: str = "-", differing: str = "-") -> list[str]:
    """A process that answers at once, and notes that it was asked."""
    return [sys.executable, "-c", STAND_IN, str(tmp_path / "calls"), failing, hanging, differing]


def prepared(tmp_path: Path, **said: object) -> PerfTest:
    text = json.dumps({"generate": SMALL, **said})
    return prepare(parse(text), text, Settings(home=tmp_path / "home"))


def calls(tmp_path: Path) -> list[str]:
    file = tmp_path / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_every_permutation_is_one_process_and_one_row_and_is_not_run_again(tmp_path: Path) -> None:
    said: list[str] = []
    test = prepared(tmp_path)
    run(test, tmp_path / "out", said.append, stand_in(tmp_path))
    assert len(test.rows) == len(set(calls(tmp_path))) == len(calls(tmp_path)) == 24
    assert test.missing == []
    assert said[-1].startswith("[ 24/24] run 3  write left_join_union_inserts  0.50 s")
    again = prepared(tmp_path)
    run(again, tmp_path / "out", said.append, stand_in(tmp_path))
    assert len(calls(tmp_path)) == 24
    assert said[-1] == "24 of 24 permutations are measured already"
    # One more run of the same is eight more.
    more = prepared(tmp_path, runs=4)
    assert more.perftest_id == test.perftest_id
    assert len(more.missing) == 8


def test_a_failure_keeps_what_was_measured_and_the_same_command_goes_on(tmp_path: Path) -> None:
    test = prepared(tmp_path, runs=1, operations=["read"])
    with pytest.raises(PermutationFailed, match=r"left_join_anti_join .* failed: exit status 7"):
        run(test, tmp_path / "out", lambda _: None, stand_in(tmp_path, failing="left_join_anti_join"))
    assert [row["method"] for row in test.rows] == ["double_rank_over", "full_outer_join"]
    run(test, tmp_path / "out", lambda _: None, stand_in(tmp_path))
    assert [call.split()[-1] for call in calls(tmp_path)][3:] == ["left_join_anti_join", "left_join_union_inserts"]
    [parameters] = {row["parameters"] for row in test.rows}
    assert json.loads(parameters)["data"]["base_rows"] == 60


def test_a_process_that_hangs_is_ended(tmp_path: Path) -> None:
    test = prepared(tmp_path, runs=1, operations=["read"], timeout=1)
    with pytest.raises(PermutationFailed, match="not ready after 1 s"):
        run(test, tmp_path / "out", lambda _: None, stand_in(tmp_path, hanging="double_rank_over"))


def test_methods_that_find_other_rows_are_not_compared(tmp_path: Path) -> None:
    test = prepared(tmp_path, runs=1, operations=["write"])
    with pytest.raises(MethodsDiffer, match="2 and 3 of them"):
        run(test, tmp_path / "out", lambda _: None, stand_in(tmp_path, differing="full_outer_join"))
    assert len(test.rows) == 1


def test_no_byte_that_is_written_or_said_has_a_secret(tmp_path: Path) -> None:
    """Neither when all goes well nor when a process tells everything that it knows and dies."""
    said: list[str] = []
    for failing in ("left_join_union_inserts", "-"):
        test = prepared(tmp_path, runs=1, cluster=REMOTE)
        try:
            run(test, tmp_path / "out", said.append, stand_in(tmp_path, failing=failing))
        except PermutationFailed as error:
            said.append(str(error))
    assert len(test.rows) == 8
    assert any("failed: exit status 7" in line for line in said)
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert (tmp_path / "out" / "failed.log") in written
    rows = rows_of(test.settings.lake, test.perftest_id)
    everything = [*written.values(), *(line.encode() for line in said), repr(rows).encode(), repr(test.spec).encode()]
    for secret in (TOKEN, PASSWORD, json.dumps(TOKEN)[1:-1], "dapi-0123", "hunter2"):
        assert [part[:80] for part in everything if secret.encode() in part] == []


def test_a_lake_without_profiles_is_told_before_anything_starts(tmp_path: Path) -> None:
    text = json.dumps({"lake": str(tmp_path / "lake"), "methods": ["full_outer_join"]})
    with pytest.raises(NothingToMeasure, match="profile/changeset"):
        prepare(parse(text), text, Settings(home=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_timer_table_is_one_of_the_lake(tmp_path: Path) -> None:
    test = prepared(tmp_path, runs=1, operations=["read"])
    run(test, tmp_path / "out", lambda _: None, stand_in(tmp_path))
    assert (tmp_path / "home" / "lake" / TIMER.name / "_delta_log").is_dir()
    assert rows_of(str(tmp_path / "home" / "lake"), "another") == []

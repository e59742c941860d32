"""What the figures of a soak say, in milliseconds."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.footprint import MEGABYTE, descendants
from engagement_platform.local.process import Child, Supervisor
from engagement_platform_tests.conformance.soak import (
    Quarter,
    collecting,
    kept,
    names,
    of_nights,
    over,
    processes_of,
    quarters,
    restarts,
    verdict,
)


@pytest.mark.parametrize(
    ("name", "found", "says"),
    [
        ("PSS, GB", [2.0, 3.1, 3.0, 3.15], "level"),
        ("PSS, GB", [2.0, 3.0, 4.0, 5.0], ""),
        ("PSS, GB", [3.0, 3.3, 3.63, 3.99], ""),
        ("PSS, GB", [3.0, 3.2, 3.43, 3.67], ""),
        ("PSS, GB", [4.4, 4.75, 5.1, 5.45], ""),
        ("PSS, GB", [4.4, 4.9, 5.3, 5.4], "level"),
        ("open files", [1000.0, 1120.0, 1250.0, 1400.0], ""),
        ("data files", [10.0, 400.0, 500.0, 450.0], "level"),
        ("data files", [10.0, 400.0, 570.0, 580.0], "level"),
        ("data files", [10.0, 400.0, 500.0, 600.0], ""),
        ("backlog", [10.0, 400.0, 570.0, 580.0], ""),
        ("backlog", [100.0, 300.0, 900.0, 1100.0], ""),
        ("lake, MB", [10.0, 20.0, 30.0, 40.0], "as what arrives"),
        ("lake, MB", [10.0, 20.0, 40.0, 80.0], ""),
        ("lake, MB", [5.0, 10.0, 20.0, 35.0], ""),
        ("lake, MB", [84.4, 183.5, 285.6, 388.0], "as what arrives"),
        ("rows of batches", [600.0, 1200.0, 1500.0, 1600.0], "level"),
        ("rows of batches", [600.0, 1200.0, 1800.0, 2400.0], ""),
        ("other rows of the stores", [600.0, 1200.0, 1800.0, 2400.0], "as what arrives"),
        ("broker, MB", [386.1, 395.1, 404.3, 430.5], ""),
    ],
)
def test_only_what_follows_arrivals_may_grow_and_no_faster_than_they(name: str, found: list[float], says: str) -> None:
    assert verdict(name, [Quarter(value, value) for value in found]) == says


def test_a_leak_shows_in_the_middle_of_quarters_however_high_single_minutes_are() -> None:
    leak = [Quarter(3.0, 5.0), Quarter(3.2, 5.0), Quarter(3.4, 5.0), Quarter(3.6, 5.0)]
    assert verdict("PSS, GB", leak) == ""
    assert verdict("PSS, GB", [replace(quarter, middle=3.0) for quarter in leak]) == "level"
    assert verdict("PSS, GB", [*[replace(quarter, middle=3.0) for quarter in leak[:3]], Quarter(3.0, 6.0)]) == ""


def test_the_share_of_collecting_is_that_of_the_pauses_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "gc.log"
    assert collecting(log) == 0
    log.write_text(
        "[0.010s] Using Serial\n"
        "[10.000s] GC(0) Pause Young (Allocation Failure) 45M->12M(120M) 500.000ms\n"
        "[20.500s] GC(1) Pause Full (Metadata GC Threshold) 600M->580M(1014M) 1500.000ms\n"
    )
    (tmp_path / "gc.log.0").write_text("[0.500s] GC(0) Pause Young (Allocation Failure) 45M->12M(120M) 0.000ms\n")
    assert collecting(log) == pytest.approx(10)
    with log.open("a") as more:
        more.write("[2020.500s] GC(2) Pause Full (Ergonomics) 600M->580M(1014M) 100.000ms\n")
        more.write("[2030.500s] GC(3) Pause Full (Ergonomics) 600M->580M(1014M) 400.000ms\n")
    assert collecting(log, 100.0) == pytest.approx(5)


def test_a_quarter_is_as_high_as_its_highest_sample() -> None:
    samples = [{"backlog": float(n)} for n in (1, 9, 2, 3, 8, 4, 5)]
    assert quarters([*samples, {"lake, MB": 1.0}], "backlog") == [
        Quarter(5.0, 9.0), Quarter(2.5, 3.0), Quarter(6.0, 8.0), Quarter(2.5, 5.0),
    ]  # fmt: skip
    assert names([{"a": 1.0, "b": 1.0}, {"b": 1.0, "c": 1.0}]) == ["a", "b", "c"]


def test_a_process_of_the_home_counts_also_when_nobody_is_left_who_started_it(tmp_path: Path) -> None:
    starts = (
        "import subprocess as s; "
        f"print(s.Popen(['sleep', '60'], env={{'OF': {str(tmp_path)!r}}}, stdout=s.DEVNULL).pid)"
    )
    orphan = int(subprocess.run([sys.executable, "-c", starts], stdout=subprocess.PIPE, check=True).stdout)
    try:
        assert orphan not in descendants(os.getpid())
        assert processes_of(os.getpid(), tmp_path) >= {orphan, os.getpid()}
        assert orphan not in processes_of(os.getpid(), tmp_path / "other")
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_run_of_a_night_that_did_not_succeed_or_never_ended_fails_the_soak() -> None:
    under_way = {"1": ("optimize_tables", 1), "2": ("vacuum_tables", 1), "3": ("remove_old_runs", 1)}
    says = {"1": "SUCCESS", "2": "FAILURE", "3": "STARTED"}
    ended = over(under_way, says.__getitem__)
    assert ended == [(("optimize_tables", 1), "SUCCESS"), (("vacuum_tables", 1), "FAILURE")]
    assert over(under_way, says.__getitem__) == []
    assert of_nights(ended, under_way.values(), 1) == "vacuum_tables of night 1: FAILURE"
    assert of_nights(ended[:1], under_way.values(), 1) == "", "the last night may be under way"
    assert of_nights(ended[:1], under_way.values(), 2) == "remove_old_runs of night 1: has not ended"
    assert of_nights([], under_way.values(), 1) == "no run of a night has ended"


def test_a_process_that_had_to_be_started_again_fails_the_soak(tmp_path: Path) -> None:
    events = list[str]()
    supervisor = Supervisor(tmp_path, events.append)
    try:
        supervisor._died(Child("broker", ["true"], lambda: True), 9, 4.0)
    finally:
        supervisor.stop()
    assert restarts("\n".join(events)) == "processes of `up` were restarted: 1"
    assert restarts("produced 10  landed 10\n") == ""


def test_what_goes_while_a_home_is_measured_is_left_out(tmp_path: Path) -> None:
    for name, size in {
        "lake/a/_delta_log/0.json": 1, "lake/a/_delta_log/1.checkpoint.parquet": 2, "lake/a/day=1/part.parquet": 4,
        "dagster/schedules/schedules.db": 1024,
        "dagster/history/runs.db": 8, "dagster/history/runs.db-wal": 16, "dagster/storage/x/compute": 32,
        "stores.db": 64, "stores.db-shm": 128, "logs/up.log": 256, "kafka/0.log": 512,
        "ingest/spool/1": 3, "ingest/keys": 5, "pii/vault": 7,
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"." * size)
    (tmp_path / "dagster/history/gone.db-wal").symlink_to(tmp_path / "nothing")
    (tmp_path / "stores.db").unlink()
    with closing(sqlite3.connect(tmp_path / "stores.db")) as stores, stores:
        stores.executescript("CREATE TABLE batch (n); CREATE TABLE lease (n); CREATE TABLE pii_key (n);")
        stores.executescript(
            "INSERT INTO batch VALUES (1), (2); INSERT INTO lease VALUES (1); INSERT INTO pii_key SELECT 1"
        )
    size = (tmp_path / "stores.db").stat().st_size
    found = {name: figure * MEGABYTE if name.endswith("MB") else figure for name, figure in kept(tmp_path).items()}
    assert found == {
        "data files": 1, "files of table logs": 2, "lake, MB": 7, "stores, MB": 128 + size,
        "Dagster's databases, MB": 8, "Dagster's ticks, MB": 1024,
        "rows of batches": 2, "other rows of the stores": 2,
        "logs, MB": 256, "broker, MB": 512, "logs of runs, files": 1, "ingest server, files": 2,
        "scratch of Spark, files": 0, "all else in the home, files": 1, "all else in the home, MB": 32 + 3 + 5 + 7,
    }  # fmt: skip


def test_of_a_database_the_pages_count_and_not_a_log_that_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "dagster").mkdir()
    with closing(sqlite3.connect(tmp_path / "dagster" / "runs.db", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE runs (body BLOB)")
        empty = kept(tmp_path)["Dagster's databases, MB"]
        for _ in range(200):
            database.execute("INSERT INTO runs VALUES (zeroblob(10000))")
        # All of it is in the log only, and then both in the log and in its file.
        for _ in range(2):
            assert 2.0 < kept(tmp_path)["Dagster's databases, MB"] - empty < 2.6
            database.execute("PRAGMA wal_checkpoint(PASSIVE)")
        database.execute("DELETE FROM runs")
        database.execute("VACUUM")
        assert kept(tmp_path)["Dagster's databases, MB"] == pytest.approx(empty, abs=0.02)

"""Nothing of an erased person is in the replica's file: rows, freed blocks and what a crash left beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engagement_platform.erasing.found import Whom
from engagement_platform.pii.erasure import Subject
from engagement_platform.pii.scan import places_with
from engagement_platform.replica.erasing import ReplicaFile
from engagement_platform.replica.file import beside, opened
from engagement_platform.replica.refresh import place_of, refresh
from engagement_platform.settings import Settings
from engagement_platform_tests.erasing.planted import AMY, ANN, BOB, SECRET, Planted

REF, WHOM = Subject(BOB, "ref", None), Whom.of(BOB)


@pytest.fixture
def planted(spark: SparkSession, tmp_path: Path) -> Planted:
    """A lake and its replica, in which the person's rows stand."""
    planted = Planted(tmp_path, spark)
    refresh(planted.settings, place_of(planted.settings))
    assert traces(planted.settings), "nothing was planted"
    return planted


def traces(settings: Settings) -> list[str]:
    """Files of the replica with a byte of the person."""
    path = settings.replica_path
    found = places_with([path.parent], [BOB.encode(), SECRET.encode()])
    return [file.name for file in found if file.name.startswith(path.name)]


def persons(settings: Settings) -> list[tuple[str, str]]:
    with opened(settings.replica_path, read_only=True, wait_s=1) as connection:
        return sorted(connection.execute("SELECT engagement_id, person_id FROM engagement").fetchall())


OTHERS = [("amy's", AMY), ("ann's", ANN), ("corrected", ANN), ("passed", AMY), ("through", AMY)]


def test_the_file_has_no_byte_of_an_erased_person_and_all_rows_of_others(planted: Planted) -> None:
    planted.eraser().run("ref", WHOM)
    assert ReplicaFile(planted.settings, WHOM).erase(REF) == 6
    assert traces(planted.settings) == []
    assert persons(planted.settings) == OTHERS
    assert ReplicaFile(planted.settings, WHOM).left(REF) == 0


def test_rows_that_a_refresh_has_dropped_are_gone_from_the_bytes_too(planted: Planted) -> None:
    """A refresh between the tables' erasure and the replica's finds the DELETEs first; so does one after a deletion."""
    planted.eraser().run("ref", WHOM)
    assert refresh(planted.settings, place_of(planted.settings)).deleted == 6
    assert persons(planted.settings) == OTHERS
    assert traces(planted.settings), "DuckDB keeps what removed rows said: without that this test shows nothing"
    assert ReplicaFile(planted.settings, WHOM).erase(REF) == 0
    assert traces(planted.settings) == []
    assert persons(planted.settings) == OTHERS


def test_the_log_that_a_killed_process_left_beside_the_file_goes_with_it(planted: Planted) -> None:
    path = planted.settings.replica_path
    code = (
        "import duckdb, os, sys\n"
        "c = duckdb.connect(sys.argv[1])\n"
        "c.execute('SET wal_autocheckpoint = \\'1GB\\'')\n"
        "c.execute('UPDATE engagement SET engagement_id = engagement_id || ? WHERE person_id = ?', sys.argv[2:])\n"
        "os._exit(9)\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(path), SECRET, ANN], check=False, timeout=60, env=os.environ)
    assert died.returncode == 9
    wal, spilled = beside(path)
    assert wal.name in traces(planted.settings), "the log has what was committed and is not in the file yet"
    spilled.mkdir()
    (spilled / "duckdb_temp_block-1.block").write_bytes(SECRET.encode())
    planted.eraser().run("ref", WHOM)
    ReplicaFile(planted.settings, WHOM).erase(REF)
    assert traces(planted.settings) == []
    assert not spilled.exists()
    assert persons(planted.settings) == OTHERS


def test_where_there_is_no_replica_none_is_made(tmp_path: Path) -> None:
    planted = Planted(tmp_path)
    assert ReplicaFile(planted.settings, WHOM).erase(REF) == 0
    assert not planted.settings.replica_path.exists()

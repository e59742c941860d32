"""A write that goes on after its job was abandoned or taken over does not land, whatever part of it was done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engagement_platform.engine.fencing import TableTransaction
from engagement_platform.engine.model import Transaction
from engagement_platform.lake import log
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.fencing import LakeFencing
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.overwrite import delete_through
from engagement_platform.settings import Settings
from engagement_platform_tests.lake.one_run import TRANSACTION, append_slowly

TABLE = Table(("slow", "rows"), "Rows.", (Column("id", "long", "Number."),), Mode.APPEND_ONLY, liquid_by=("id",))
CHANGING = Table(("slow", "changing"), "Rows.", (Column("id", "long", "Number."),), Mode.MUTABLE)
WAIT_S = 120


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    lake = Lake(spark.newSession(), Settings(home=tmp_path))
    lake.ensure(TABLE, CHANGING)
    return lake


def rows(lake: Lake, table: Table = TABLE) -> list[int]:
    return sorted(row["id"] for row in lake.read(table).collect())


def close(lake: Lake, transaction: Transaction, table: Table = TABLE) -> None:
    LakeFencing(lake).close([TableTransaction(table.name, transaction)])


def test_a_closed_transaction_is_in_the_table_without_a_row_and_a_write_under_it_is_skipped(lake: Lake) -> None:
    close(lake, TRANSACTION)
    found = log.open_log(lake.uri(TABLE))
    assert found is not None
    assert found.transaction_version(TRANSACTION.app_id) == TRANSACTION.version
    assert rows(lake) == []
    lake.append(lake.spark.range(5).toDF("id"), TABLE, TRANSACTION, rows=5)
    later = Transaction(TRANSACTION.app_id, TRANSACTION.version + 1)
    lake.append(lake.spark.range(7, 8).toDF("id"), TABLE, later, rows=1)
    assert rows(lake) == [7]


def test_a_transaction_that_the_table_has_is_left_alone_and_a_table_that_is_not_there_is_not_made(lake: Lake) -> None:
    lake.append(lake.spark.range(2).toDF("id"), TABLE, TRANSACTION, rows=2)
    before = lake.version(TABLE)
    close(lake, TRANSACTION)
    close(lake, Transaction(TRANSACTION.app_id, TRANSACTION.version - 1))
    assert (lake.version(TABLE), rows(lake)) == (before, [0, 1])
    LakeFencing(lake).close([TableTransaction("slow/nothing", TRANSACTION)])
    assert log.version(f"{lake.root}/slow/nothing") is None


def late(write: Callable[[], None], begun: Path, meanwhile: Callable[[], None], go: Path) -> BaseException | None:
    """Run a write in a thread and something else once its first task has begun; how the write ended."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            write()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        waited = threading.Event()
        for _ in range(WAIT_S * 20):
            if begun.exists() or waited.wait(0.05) or not thread.is_alive():
                break
        assert begun.exists(), f"the write did not begin: {ended}"
        meanwhile()
    finally:
        go.touch()
        thread.join(WAIT_S)
    assert not thread.is_alive(), "the write never ended"
    return ended[0]


def test_an_append_that_was_under_way_when_its_transaction_was_closed_fails(lake: Lake, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"

    def write() -> None:
        append_slowly(lake.spark, lake.uri(TABLE), str(begun), str(go))

    ended = late(write, begun, lambda: close(lake, TRANSACTION), go)
    assert "DELTA_CONCURRENT_TRANSACTION" in str(ended)
    assert rows(lake) == []


def test_an_append_that_nobody_closed_lands(lake: Lake, tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    other = Transaction("another@1.0/data/append", TRANSACTION.version)

    def write() -> None:
        append_slowly(lake.spark, lake.uri(TABLE), str(begun), str(go))

    assert late(write, begun, lambda: close(lake, other), go) is None
    assert rows(lake) == [0]


def test_who_closes_beside_a_write_that_lands_finds_it_done(lake: Lake) -> None:
    """The late write came first: its rows are there, and there is nothing left to close."""
    written = threading.Event()

    class Beside(LakeFencing):
        def check(self) -> None:
            if not written.is_set():
                written.set()
                lake.append(lake.spark.range(1).toDF("id"), TABLE, TRANSACTION, rows=1)

    Beside(lake).close([TableTransaction(TABLE.name, TRANSACTION)])
    found = log.open_log(lake.uri(TABLE))
    assert found is not None
    assert found.transaction_version(TRANSACTION.app_id) == TRANSACTION.version
    assert rows(lake) == [0]


def test_a_deletion_under_a_closed_transaction_is_skipped(lake: Lake) -> None:
    lake.append(lake.spark.range(2).toDF("id"), CHANGING, Transaction("first", 0), rows=2)
    close(lake, TRANSACTION, CHANGING)
    delete_through(lake, CHANGING, "id", 0, TRANSACTION)
    assert rows(lake, CHANGING) == [0, 1]


@pytest.mark.parametrize("write", ["append", "delete"])
def test_nothing_is_written_once_the_guard_refuses(lake: Lake, write: str) -> None:
    def refuse() -> None:
        raise PermissionError("the lease is lost")

    lake.append(lake.spark.range(2).toDF("id"), CHANGING, Transaction("first", 0), rows=2)
    guarded = Transaction("late", 1, guard=refuse)
    writes = {
        "append": lambda: lake.append(lake.spark.range(3).toDF("id"), CHANGING, guarded, rows=3),
        "delete": lambda: delete_through(lake, CHANGING, "id", 0, guarded),
    }
    with pytest.raises(PermissionError):
        writes[write]()
    assert rows(lake, CHANGING) == [0, 1]
    lake.append(lake.spark.range(9, 10).toDF("id"), CHANGING, Transaction("next", 0), rows=1)
    assert rows(lake, CHANGING) == [0, 1, 9]

"""Foreign commits are found whenever one looks, reported long enough, and no entry of a log is read twice for it."""

from __future__ import annotations

import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from engagement_platform.engine.database import reading
from engagement_platform.lake import log
from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.maintenance.guards.foreign_commits import (
    FOREIGN_COMMITS,
    REPORTED_FOR,
    Foreign,
    foreign_commits,
)
from engagement_platform_tests import plant
from engagement_platform_tests.consumers.lakes import PlainLake
from engagement_platform_tests.consumers.test_changes import land

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
NEWEST = 2
"""`health.history_commits` here."""


@pytest.fixture
def lake(tmp_path: Path) -> PlainLake:
    made = PlainLake(tmp_path)
    land(made, "first")
    return made


def write(lake: PlainLake) -> int:
    """A commit of somebody else; its version."""
    uri = lake.uri(lake.data)
    row = lake.rows(lake.data).slice(0, 1).to_pylist()[0]
    row["engagement_id"] = f"theirs-{DeltaTable(uri).version()}"
    write_deltalake(uri, pa.Table.from_pylist([row], schema_of(lake.data)), mode="append")
    return DeltaTable(uri).version()


def look(lake: PlainLake, now: datetime = NOW) -> list[Foreign]:
    health = lake.settings.health.model_copy(update={"history_commits": NEWEST})
    settings = lake.settings.model_copy(update={"health": health})
    return foreign_commits(settings, lake.stores, [lake.data, NOTIFICATION], now=now)


def versions(found: list[Foreign]) -> list[int]:
    return [one.version for one in found]


@pytest.mark.parametrize("seed", range(2))
def test_each_foreign_commit_is_reported_however_many_come_before_the_next_look(lake: PlainLake, seed: int) -> None:
    dice, expected = random.Random(seed), list[int]()
    assert look(lake) == []
    for number in range(30):
        what = dice.choices(("ours", "theirs", "look"), (6, 2, 1))[0]
        if what == "ours":
            land(lake, f"e{number}")
        elif what == "theirs":
            expected.append(write(lake))
        else:
            assert versions(look(lake)) == expected[::-1]
    found = look(lake)
    assert versions(found) == expected[::-1]
    assert expected
    assert {(one.table, one.operation, one.engine.split(":")[0]) for one in found} == {
        (lake.data.name, "WRITE", "delta-rs")
    }


def test_a_foreign_commit_is_reported_for_a_time_and_as_long_as_it_is_among_the_newest(lake: PlainLake) -> None:
    theirs = write(lake)
    assert versions(look(lake)) == [theirs]
    long_after = NOW + 10 * REPORTED_FOR
    assert versions(look(lake, long_after)) == [theirs], "it is the newest still"
    for number in range(NEWEST):
        land(lake, f"e{number}")
    assert versions(look(lake, NOW + REPORTED_FOR - timedelta(seconds=1))) == [theirs]
    assert look(lake, NOW + REPORTED_FOR) == []
    with reading(lake.stores.leases.engine) as connection:
        kept = [row.found for row in connection.execute(FOREIGN_COMMITS.select())]
    assert kept == [{}, {}], "it will not be reported again"


def test_a_look_reads_only_entries_that_came_since_the_last_one(
    lake: PlainLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, int]] = []
    entry = log.entry

    def noted(uri: str, version: int) -> list[dict[str, Any]] | None:
        read.append((uri, version))
        return entry(uri, version)

    monkeypatch.setattr(log, "entry", noted)
    theirs = write(lake)
    assert versions(look(lake)) == [theirs]
    assert len(read) == 2 * NEWEST, "the first look takes the newest of each table"
    read.clear()
    assert versions(look(lake)) == [theirs]
    assert read == []
    land(lake, "e1", "e2")
    assert versions(look(lake)) == [theirs]
    assert sorted(read) == sorted(
        (uri, DeltaTable(uri).version()) for uri in (lake.uri(lake.data), lake.uri(NOTIFICATION))
    )


def test_a_table_that_takes_the_place_of_another_is_looked_at_anew(lake: PlainLake) -> None:
    land(lake, "e1")
    gone = write(lake)
    assert versions(look(lake)) == [gone]
    uri, rows = lake.uri(lake.data), lake.rows(lake.data)
    shutil.rmtree(uri)
    plant.create(uri, lake.data)
    assert look(lake) == []
    shutil.rmtree(uri)
    plant.create(uri, lake.data)
    write_deltalake(uri, rows, mode="append")
    assert versions(look(lake)) == [1]

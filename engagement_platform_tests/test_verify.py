"""Verify finds nothing after a normal history, and finds each fault that is planted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from engagement_platform.engine.model import BatchRecord, JobState, Manifest
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import CHANGESET, NOTIFICATION, QUARANTINE
from engagement_platform.settings import Settings
from engagement_platform.verify import Finding, ledger, verify
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.oracle import engagement
from engagement_platform_tests.ingestion.world import World

IDS = ("fine", "lost", "stale", "twice", "not announced", "announced twice", "hid")


@pytest.fixture(scope="module")
def world(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """One world: first sound, then with every fault planted, each on an engagement of its own."""
    world = World(spark, broker, tmp_path_factory.mktemp("verify"))
    world.produce([*(engagement("org", name) for name in IDS), None, engagement("org", "fine", subject="other")])
    world.run()
    world.produce([engagement("org", "stale", version=2), engagement("org", "fine"), None])
    world.run()
    return world


@pytest.fixture(scope="module")
def sound(world: World) -> dict[str, Finding]:
    """Findings before anything is spoiled. More was produced meanwhile, which is no fault."""
    world.produce([engagement("org", "not read yet")])
    return found(world)


@pytest.fixture(scope="module")
def faulty(world: World, sound: dict[str, Finding]) -> dict[str, Finding]:
    """Findings after every fault was planted."""
    spoil(world, world.data, "DELETE FROM {} WHERE engagement_id = 'lost'")
    spoil(world, CHANGESET, "DELETE FROM {} WHERE engagement_id = 'stale'")
    spoil(world, world.data, "INSERT INTO {0} SELECT * FROM {0} WHERE engagement_id = 'twice'")
    spoil(world, world.data, "UPDATE {} SET person_id = NULL WHERE engagement_id = 'hid'")
    spoil(world, NOTIFICATION, "ALTER TABLE {} SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
    spoil(world, NOTIFICATION, "DELETE FROM {} WHERE engagement_id = 'not announced'")
    spoil(world, NOTIFICATION, "INSERT INTO {0} SELECT * FROM {0} WHERE engagement_id = 'announced twice'")
    spoil(world, QUARANTINE, "INSERT INTO {0} SELECT * FROM {0} WHERE offset = 7")
    spoil(world, QUARANTINE, "ALTER TABLE {} SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
    spoil(world, QUARANTINE, "DELETE FROM {} WHERE offset = 11")
    return found(world)


def spoil(world: World, table: Table, statement: str) -> None:
    world.spark.sql(statement.format(f"delta.`{world.lake.uri(table)}`")).collect()


def found(world: World) -> dict[str, Finding]:
    return {finding.check: finding for finding in verify(world.settings, world.spark)}


@pytest.mark.broker
def test_nothing_is_wrong_after_a_normal_history(sound: dict[str, Finding]) -> None:
    checks = ["ledger", "lost", "vanished", "doubled", "announced", "notified_twice", "quarantined_twice"]
    assert list(sound) == checks
    assert {check: finding.wrong for check, finding in sound.items()} == dict.fromkeys(checks, 0)
    looked_at = {check: finding.looked_at for check, finding in sound.items()}
    assert looked_at["ledger"] == 2
    assert looked_at["lost"] == looked_at["doubled"] == looked_at["announced"] == len(IDS)
    assert (looked_at["notified_twice"], looked_at["quarantined_twice"]) == (len(IDS) + 1, 3)
    assert all(finding.meaning and not finding.examples for finding in sound.values())


@pytest.mark.broker
@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        ("ledger", ()),
        ("lost", ("lost", "stale")),
        ("doubled", ("twice",)),
        ("announced", ("announced twice", "hid", "lost", "not announced")),
        ("notified_twice", None),
        ("quarantined_twice", ("7",)),
        ("vanished", ("11",)),
    ],
)
def test_every_planted_fault_is_found_and_nothing_else(
    world: World, faulty: dict[str, Finding], check: str, wrong: tuple[str, ...] | None
) -> None:
    examples = tuple(sorted(faulty[check].examples))
    if wrong is None:
        app_id = world.stores.checkpoints.app_id("ingest-engagements")
        wrong = (f"{app_id}/{world.topics[0]}/0/{IDS.index('announced twice')}",)
    assert examples == wrong
    assert faulty[check].wrong == len(wrong)


def test_before_the_first_batch_there_is_nothing_to_compare_and_no_spark_is_opened(tmp_path: Path) -> None:
    (finding,) = verify(Settings(home=tmp_path))
    assert (finding.check, finding.looked_at, finding.wrong) == ("ledger", 0, 0)


def record(
    batch_id: int, start: Mapping[str, int], end: Mapping[str, int], counts: Mapping[str, int] | None = None
) -> BatchRecord:
    now = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
    size = sum(end[partition] - start.get(partition, 0) for partition in end)
    manifest = Manifest("ingest-engagements", "ingest-engagements@1", batch_id, start, end, now)
    return BatchRecord(
        manifest,
        JobState.SUCCEEDED,
        now,
        now,
        attempts=1,
        counts=counts if counts is not None else {"rows_in": size, "landed": size},
    )


FIRST = record(0, {"0": 0}, {"0": 4})
SECOND = record(1, {"0": 4, "1": 0}, {"0": 4, "1": 3})
THIRD = record(2, {"0": 4, "1": 3}, {"0": 5, "1": 9}, {"rows_in": 7, "landed": 3, "duplicates": 2, "quarantined": 2})


def test_a_ledger_without_gaps_is_fine_also_when_a_partition_appears() -> None:
    assert ledger([]).wrong == 0
    finding = ledger([FIRST, SECOND, THIRD])
    assert (finding.looked_at, finding.wrong, finding.examples) == (3, 0, [])


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([FIRST, record(1, {"0": 5}, {"0": 6})], "batch 1 does not begin where batch 0 ended"),
        ([FIRST, record(1, {"0": 3}, {"0": 6})], "batch 1 does not begin where batch 0 ended"),
        ([FIRST, THIRD], "batch 2 does not begin where batch 0 ended"),
        ([SECOND, record(2, {"0": 4}, {"0": 5})], "batch 2 does not begin where batch 1 ended"),
        ([record(0, {"0": 0}, {"0": 4}, {"rows_in": 4, "landed": 3})], "received 4 and accounts for 3"),
        ([record(0, {"0": 0}, {"0": 4}, {"rows_in": 4, "landed": 4, "duplicates": 1})], "accounts for 5"),
    ],
    ids=["a gap", "an overlap", "a batch left out", "a partition forgotten", "a record lost", "a record invented"],
)
def test_a_fault_in_the_ledger_is_found(records: list[BatchRecord], says: str) -> None:
    finding = ledger(records)
    assert finding.wrong == 1
    assert says in finding.examples[0]


def test_the_books_of_a_batch_that_is_not_finished_are_not_looked_at() -> None:
    running: Any = replace(record(1, {"0": 4}, {"0": 9}, {}), state=JobState.RUNNING)
    assert ledger([FIRST, running]).wrong == 0

"""Records of a declared stream land exactly once, whatever ends in between; the others stand whole in quarantine."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.drain import drain
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.kafka_tables.tables import Field
from engagement_platform.settings import LayoutSettings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.pipelines.kafka_tables.clicks import AT_ONCE, CLICK, World, click, encoded, landed


@pytest.mark.slow
@pytest.mark.broker
def test_a_batch_that_ends_anywhere_lands_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    sent = []
    for number, point in enumerate(world.job().crash_points):
        messages = [click(f"c{number}", price=number), click(f"c{number}", price=number), click("c0", price=9.5)]
        sent += messages
        world.send(*messages, b"{")
        with pytest.raises(Crash):
            world.ingest(crash_at(point))
        world.ingest()
        new, known, conflicts = landed(sent)
        assert [name for (name,) in world.rows(world.stream.table, "click_id")] == new, f"ended at {point}"
        refused = world.rows(world.stream.quarantine, "reason_code", "value")
        assert [code for code, _ in refused].count("unique_conflict") == len(conflicts), f"ended at {point}"
        assert [code for code, _ in refused].count("not_json") == number + 1
        assert all(value for _, value in refused)
    history = world.stores.checkpoints.history(world.stream.job)
    assert sum(record.counts["duplicates"] for record in history) == len(known)
    assert json.loads(str(refused[0][1], "utf-8") if isinstance(refused[0][1], bytes) else "")["price"] == 9.5


@pytest.mark.broker
@pytest.mark.parametrize("unique", [("click_id",), ()], ids=["unique", "all land"])
def test_reading_the_topic_again_adds_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path, unique: tuple[str, ...]
) -> None:
    stream = replace(CLICK, unique=unique, partitioned_by=("shop_id", "event_date"))
    world = World(spark, broker, tmp_path, stream)
    strange = "ü/=%" + "x" * 150
    world.send(*(click(f"c{n}", shop="a" if n % 2 else strange, day=19 + n % 2, price=n) for n in range(6)), b"x")
    first = world.ingest()
    assert [report.counts["rows_in"] for report in first] == [5, 2]
    before = world.rows(world.stream.table, "click_id", "shop_id", "event_date", "price", "batch_id")
    assert before[0] == ("c0", strange, date(2026, 11, 19), 0.0, 0)
    job = world.job()
    with world.stores.leases.acquire(f"job/{job.name}", purpose="reset") as lease:
        world.stores.checkpoints.reset(job.name, fences=[lease.fence])
    again = world.ingest()
    assert sum(report.counts["duplicates"] for report in again) == 6
    assert sum(report.counts["landed"] for report in again) == 0
    assert world.rows(world.stream.table, "click_id", "shop_id", "event_date", "price", "batch_id") == before
    assert len(world.rows(world.stream.quarantine)) == 1
    for table in (world.stream.table, world.stream.quarantine):
        assert {commit["engineInfo"].split("/")[0] for commit in DeltaTable(world.lake.uri(table)).history()} == {
            "Apache-Spark"
        }


def declare_size(world: World) -> None:
    """One more column for the same lake and topic."""
    world.stream = replace(world.stream, fields=(*world.stream.fields, Field("size", "long", "How large.")))
    world.settings = world.settings.model_copy(update={"layout": LayoutSettings(evolve=True)})
    world.lake = Lake(world.lake.spark, world.settings)


@pytest.mark.broker
@pytest.mark.crash
@pytest.mark.parametrize("unique", [("click_id",), ()], ids=["unique", "all land"])
def test_a_batch_is_finished_as_it_was_begun_where_a_column_was_declared_meanwhile(
    spark: SparkSession, broker: Broker, tmp_path: Path, unique: tuple[str, ...]
) -> None:
    """Its refused records are in quarantine already; under the new declaration one more would be refused."""
    world = World(spark, broker, tmp_path, replace(CLICK, unique=unique))
    world.send(click("c0"))
    world.ingest()
    world.send(click("c1", size=3), click("c2", size="large"), b"{")
    with pytest.raises(Crash):
        world.ingest(crash_at("tables.table:before"))
    declare_size(world)
    (resumed,) = world.ingest()
    assert (resumed.replayed, resumed.counts["landed"], resumed.counts["quarantined"]) == (True, 2, 1)
    world.send(click("c3", size=4), click("c4", size="large"))
    world.ingest()
    assert world.rows(world.stream.table, "click_id", "size") == [("c0", None), ("c1", None), ("c2", None), ("c3", 4)]
    assert world.rows(world.stream.quarantine, "reason_code") == [("not_json",), ("wrong_type",)]


@pytest.mark.broker
def test_a_copy_of_a_record_is_known_also_where_a_column_of_it_was_declared_after_it_had_landed(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    world = World(spark, broker, tmp_path)

    def ingest() -> None:
        # By its own clock, since the table has the time at which a column was added.
        list(drain(replace(world.job(), clock=utc_now), AT_ONCE))

    old, new, less = click("c0", size=3), click("c1", size=4), click("c2")
    world.send(old)
    ingest()
    declare_size(world)
    world.send(new, less)
    ingest()
    world.send(old, {**old, "price": 1}, new, {**less, "size": 5})
    ingest()
    assert world.rows(world.stream.table, "click_id", "size") == [("c0", None), ("c1", 4), ("c2", None)]
    refused = [value for (value,) in world.rows(world.stream.quarantine, "value")]
    assert refused == encoded({**old, "price": 1}, {**less, "size": 5})

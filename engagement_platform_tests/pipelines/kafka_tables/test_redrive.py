"""Refused records of a declared stream land once after their rule was changed, and are marked where they stood."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engagement_platform.engine.drain import drain
from engagement_platform.engine.job import BatchReport, Callbacks, Observer
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.jobs import parts_of, redrive_declared
from engagement_platform.pipelines.redrive import REDRIVEN
from engagement_platform.settings import DecodingSettings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.pipelines.kafka_tables.clicks import AT_ONCE, NOW, World, click, landed

pytestmark = [pytest.mark.broker, pytest.mark.crash]

UNDECLARED = "unknown_fields"


def under(world: World, decoding: DecodingSettings) -> None:
    """The same lake and topic, under another rule."""
    world.settings = world.settings.model_copy(update={"decoding": decoding})
    world.lake = Lake(world.lake.spark, world.settings)


def redrive(world: World, observe: Observer = lambda _point: None) -> list[BatchReport]:
    parts = parts_of(world.lake.spark, world.settings, world.stores, Callbacks(observe=observe))
    job = redrive_declared(world.stream, UNDECLARED, parts)
    assert job is not None
    return list(drain(replace(job, clock=lambda: NOW), AT_ONCE))


def test_a_record_that_is_right_now_lands_once_wherever_its_redrive_ends(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Among those refused are one that is known and one that contradicts."""
    world = World(spark, broker, tmp_path)
    known, contradicts = click("c0", price=1), click("c0", price=2)
    new = [click(f"n{number}", price=number) for number in range(3)]
    under(world, DecodingSettings(unknown_fields="quarantine"))
    world.send(known)
    world.send(*({**each, "more": 1} for each in (known, contradicts, *new)))
    world.ingest()
    assert Counter(code for (code,) in world.rows(world.stream.quarantine, "reason_code"))[UNDECLARED] == 5
    under(world, DecodingSettings())
    with pytest.raises(Crash):
        redrive(world, crash_at("tables.table:after"))
    with pytest.raises(Crash):
        redrive(world, crash_at("redriven.append:after"))
    redrive(world)
    names, _, conflicts = landed([known, known, contradicts, *new])
    assert world.rows(world.stream.table, "click_id", "price") == list(zip(names, (1, 0, 1, 2), strict=True))
    assert len(conflicts) == 1
    found = Counter(code for (code,) in world.rows(world.stream.quarantine, "reason_code"))
    assert found == {UNDECLARED: 5, REDRIVEN: 4}, "the contradicting one is not done with"
    before = world.lake.version(world.stream.table)
    assert sum(report.counts["quarantined"] for report in redrive(world)) == 1
    assert world.lake.version(world.stream.table) == before

"""A job that optimizes its table between its own batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import MicroBatchJob
from engagement_platform.engine.model import Counts, Limits, Manifest
from engagement_platform.lake import light
from engagement_platform.layout.inline import inline
from engagement_platform_tests.engine.test_turns import Tape
from engagement_platform_tests.layout.seeded import DATA, SeededLake, engagement_rows


@dataclass
class Append:
    """One small file a batch."""

    lake: SeededLake
    name: str = "data"
    commits: tuple[str, ...] = ("append",)

    def run(self, work: Manifest, commit: Committer) -> Counts:
        with commit("append") as txn:
            light.append(DeltaTable(self.lake.uri()), engagement_rows("org-1", work.batch_id, 2), txn)
        return {"rows_in": 1, "landed": 1}


def job(lake: SeededLake, batches: int, observe: Callable[[str], None]) -> MicroBatchJob[Manifest]:
    return MicroBatchJob(
        name="ingest",
        source=Tape(batches),
        prepare=lambda manifest: manifest,
        processes=(Append(lake),),
        stores=lake.stores,
        limits=Limits(1, 1),
        leased=(DATA.name,),
        observe=observe,
    )


@pytest.fixture
def lake(tmp_path: Path) -> SeededLake:
    made = SeededLake(tmp_path)
    made.maintenance = made.maintenance.model_copy(update={"inline_every": 3})
    light.create(made.uri(), DATA)
    return made


def run(
    spark: SparkSession, lake: SeededLake, batches: int, observe: Callable[[str], None] = lambda _point: None
) -> None:
    hear = inline(lake.settings, lake.stores, "ingest", DATA, observe, spark)
    once = DrainPolicy(idle_timeout=timedelta(0), poll=timedelta(0), max_duration=timedelta(minutes=5))
    assert len(list(drain(job(lake, batches, hear), once))) == batches


def operations(lake: SeededLake) -> list[str]:
    entries = reversed(DeltaTable(lake.uri()).history())
    return [entry["operation"] for entry in entries if entry["operation"] != "CREATE TABLE"]


def test_every_few_batches_the_job_optimizes_its_table_also_over_several_runs(
    spark: SparkSession, lake: SeededLake
) -> None:
    held: list[list[str]] = []

    def look(point: str) -> None:
        if point == "finalized":
            held.append([holder.name for holder in lake.stores.leases.holders()])

    run(spark, lake, 2, look)
    run(spark, lake, 5, look)
    write = "WRITE"
    assert operations(lake) == [write, write, write, "OPTIMIZE", write, write, write, "OPTIMIZE", write]
    assert all("table/engagement/data" in names for names in held), "the job holds the lease meanwhile"
    rows = DeltaTable(lake.uri()).to_pyarrow_table()
    assert (rows.num_rows, lake.files()) == (14, 2)


def test_an_optimize_that_fails_fails_no_batch(
    spark: SparkSession, lake: SeededLake, caplog: pytest.LogCaptureFixture
) -> None:
    Path(lake.settings.lake, "layout").write_text("in the way of the history")
    with caplog.at_level(logging.WARNING):
        run(spark, lake, 3)
    assert "engagement/data could not be optimized between two batches" in caplog.text
    assert DeltaTable(lake.uri()).to_pyarrow_table().num_rows == 6


def test_without_the_setting_nothing_is_heard(spark: SparkSession, tmp_path: Path) -> None:
    lake = SeededLake(tmp_path)

    def observe(_point: str) -> None:
        """Nothing."""

    assert inline(lake.settings, lake.stores, "ingest", DATA, observe, spark) is observe

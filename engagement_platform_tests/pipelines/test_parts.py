"""What the pipelines of engagements and requests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.parts import FEW_ROWS, INTERPRETED_ROWS, compiled, tune_for, unweighed
from engagement_platform.settings import Settings, SparkSettings

ADAPTIVE, COMPILED, PARTITIONS = (
    "spark.sql.adaptive.enabled",
    "spark.sql.codegen.wholeStage",
    "spark.sql.shuffle.partitions",
)
WEIGHED = "spark.sql.execution.arrow.maxBytesPerBatch"


@pytest.mark.parametrize(
    ("rows", "configured", "adapted", "is_compiled", "partitions"),
    [
        pytest.param(0, 400, "false", "false", "1", id="no rows, many cores"),
        pytest.param(INTERPRETED_ROWS, 400, "false", "false", "2", id="very few rows, many cores"),
        pytest.param(INTERPRETED_ROWS + 1, 400, "false", "true", "2", id="few rows, many cores"),
        pytest.param(FEW_ROWS, 2, "false", "true", "2", id="few rows, two cores"),
        pytest.param(FEW_ROWS + 1, 400, "true", "true", "400", id="many rows"),
        pytest.param(None, 400, "true", "true", "400", id="who knows how many"),
    ],
)
def test_few_rows_are_planned_once_on_few_partitions_and_more_are_compiled_and_adapted(
    rows: int | None,
    configured: int,
    adapted: str,
    is_compiled: str,
    partitions: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    session = spark.newSession()
    settings = Settings(home=tmp_path, spark=SparkSettings(shuffle_partitions=configured))
    tune_for(Lake(session, settings), rows)
    found = [session.conf.get(key) for key in (ADAPTIVE, COMPILED, PARTITIONS)]
    assert found == [adapted, is_compiled, partitions]


def test_a_session_that_was_set_up_for_few_rows_serves_many_again(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark.newSession(), Settings(home=tmp_path, spark=SparkSettings(shuffle_partitions=16)))
    for rows in (1, FEW_ROWS * 2):
        tune_for(lake, rows)
    assert lake.spark.conf.get(PARTITIONS) == "16"


@pytest.mark.parametrize("rows", [1, FEW_ROWS * 2])
def test_a_scan_is_compiled_and_leaves_the_session_as_it_was(rows: int, spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark.newSession(), Settings(home=tmp_path))
    tune_for(lake, rows)
    before = lake.spark.conf.get(COMPILED)
    with compiled(lake.spark):
        assert lake.spark.conf.get(COMPILED) == "true"
    assert lake.spark.conf.get(COMPILED) == before


def test_only_groups_of_rules_go_to_python_without_being_weighed(spark: SparkSession, tmp_path: Path) -> None:
    """Messages, which may be large, are weighed again by the next batch of the same session."""
    lake = Lake(spark.newSession(), Settings(home=tmp_path))
    seen = []
    for weighed in (True, False, True):
        tune_for(lake, 1, weighed=weighed)
        seen.append(lake.spark.conf.get(WEIGHED))
    with unweighed(lake.spark):
        seen.append(lake.spark.conf.get(WEIGHED))
    assert [*seen, lake.spark.conf.get(WEIGHED)] == ["64m", str(2**31 - 1), "64m", str(2**31 - 1), "64m"]

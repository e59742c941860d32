"""Tables that plain Spark writes, in the ways that make logs differ; summed up here and by Spark alike."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from engagement_platform.layout.doctor import Examination, Target, examine
from engagement_platform.settings import HealthSettings, Settings

ROWS = 80


def made(spark: SparkSession, path: Path, layout: str, *properties: str) -> str:
    """80 rows of 20 days in two organizations whose names folders cannot have, in 4 commits."""
    place = f"delta.`{path}`"
    said = ", ".join(["'delta.autoOptimize.autoCompact' = 'false'", *properties])
    spark.sql(
        f"CREATE TABLE {place} (organization_id string, day date, n struct<at: timestamp, id: long>) USING delta "
        f"{layout} TBLPROPERTIES ({said})"
    )
    for part in range(4):
        spark.sql(
            f"INSERT INTO {place} SELECT concat('a b/ü%', id % 2), date_add(DATE'2024-01-01', cast(id / 4 AS int)), "
            f"named_struct('at', TIMESTAMP'2024-01-01 10:00:00.123456', 'id', id) FROM range(0, {ROWS}) "
            f"WHERE id % 4 = {part}"
        )
    return place


def both(spark: SparkSession, path: Path, column: str | None, **limits: Any) -> tuple[Examination, Examination]:
    """Examined in this process, and by Spark."""
    table = Target("made", str(path))
    here = examine(Settings(), table, clustering=column)
    by_spark = Settings(health=HealthSettings(files_in_process=0, **limits))
    return here, examine(by_spark, table, clustering=column, open_spark=lambda: nullcontext(spark))


LAYOUTS = {
    "partitioned": ("PARTITIONED BY (organization_id)", ()),
    "by two": ("PARTITIONED BY (organization_id, day)", ()),
    "liquid": ("CLUSTER BY (day)", ()),
    "nothing": ("", ()),
    "structs in checkpoints": (
        "PARTITIONED BY (organization_id)",
        (
            "'delta.checkpoint.writeStatsAsStruct' = 'true'",
            "'delta.checkpoint.writeStatsAsJson' = 'false'",
            "'delta.checkpointInterval' = '2'",
        ),
    ),
    "version 2 checkpoints": (
        "PARTITIONED BY (organization_id)",
        ("'delta.checkpointPolicy' = 'v2'", "'delta.checkpointInterval' = '2'"),
    ),
    "mapped columns": ("PARTITIONED BY (organization_id)", ("'delta.columnMapping.mode' = 'name'",)),
}


QUICK = ("partitioned", "liquid")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in LAYOUTS])
def test_a_table_of_plain_spark_is_summed_up_alike_here_and_by_spark(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    layout, properties = LAYOUTS[name]
    path = tmp_path / "t"
    place = made(spark, path, layout, "'delta.enableDeletionVectors' = 'true'", *properties)
    for ids in ("3, 5", "9"):
        spark.sql(f"DELETE FROM {place} WHERE n.id IN ({ids})")
    column = None if "two" in name else "day"
    here, there = both(spark, path, None if name == "liquid" else column)
    assert there.statistics.partitions.to_pylist() == here.statistics.partitions.to_pylist()
    assert there.statistics.as_json() == here.statistics.as_json()
    totals = here.statistics.totals
    # Files whose only row was deleted are gone; the others keep their rows and mark them.
    assert (totals.rows, totals.deleted_rows) == ((ROWS - 3, 0) if "two" in name else (ROWS, 3))
    assert here.statistics.clustering == (() if "two" in name else ("day",))
    assert here.leftovers.listed
    # Spark leaves the vector of a file behind when that marks its last row, and no commit names it.
    assert here.leftovers.young_orphans.files == (2 if "two" in name else 0)
    assert here.leftovers.orphans.files == 0
    assert totals.files_without_bounds == 0


def test_what_spark_z_ordered_does_not_overlap_and_a_day_of_one_organization_is_one_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    place = made(spark, path, "PARTITIONED BY (organization_id)")
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", "1200")
    try:
        spark.sql(f"OPTIMIZE {place} ZORDER BY (day)")
    finally:
        spark.conf.unset("spark.databricks.delta.optimize.maxFileSize")
    here, there = both(spark, path, None)
    assert here.statistics.clustering == ("day",)
    assert here.recent.versions_since_optimize == 0
    assert here.statistics.partitions.column("depth").to_pylist() == [1, 1]
    assert there.statistics.partitions.to_pylist() == here.statistics.partitions.to_pylist()
    assert here.leftovers.waiting.files == 4
    everything = spark.read.format("delta").load(str(path))
    of_one = everything.where("organization_id = 'a b/ü%0'")
    a_day = of_one.where("day = DATE'2024-01-03'")
    assert sorted(row.n.id for row in a_day.collect()) == [8, 10]
    assert 1 == len(a_day.inputFiles()) < len(of_one.inputFiles()) < len(everything.inputFiles())


def test_of_many_partitions_spark_hands_out_the_worst(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(spark, path, "PARTITIONED BY (organization_id, day)")
    here, there = both(spark, path, None, worst_partitions=4)
    assert there.statistics.totals == here.statistics.totals
    assert 1 <= there.statistics.partitions.num_rows <= 4
    assert not there.statistics.complete
    most = max(here.statistics.partitions.column("bytes").to_pylist())
    assert most in there.statistics.partitions.column("bytes").to_pylist()

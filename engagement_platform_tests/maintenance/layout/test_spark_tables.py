"""Tables that plain Spark writes, in the ways that make logs differ; their figures against their rows."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from engagement_platform.lake import log
from engagement_platform.maintenance.layout.delta_log import recent
from engagement_platform.maintenance.layout.doctor import Examination, examine
from engagement_platform.maintenance.layout.survey import Target
from engagement_platform.settings import Settings

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


def examined(path: Path, column: str | None) -> Examination:
    return examine(Settings(), Target("made", str(path)), clustering=column)


def counted(spark: SparkSession, path: Path, partition: str) -> dict[str, tuple[int, int, date, date]]:
    """Files, rows, first and last day of each partition, by reading the rows. partition: its name as SQL."""
    rows = spark.read.format("delta").load(str(path))
    summed = rows.groupBy(F.expr(partition).alias("name")).agg(
        F.count_distinct("_metadata.file_path"), F.count("*"), F.min("day"), F.max("day")
    )
    return {name: figures for name, *figures in map(tuple, summed.collect())}  # type: ignore[misc]


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
BY_ORGANIZATION = "concat('organization_id=', organization_id)"
PARTITIONS = {"liquid": "''", "nothing": "''", "by two": f"concat({BY_ORGANIZATION}, '/day=', day)"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in LAYOUTS])
def test_a_table_of_plain_spark_has_the_figures_that_reading_its_rows_gives(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    layout, properties = LAYOUTS[name]
    path = tmp_path / "t"
    place = made(spark, path, layout, "'delta.enableDeletionVectors' = 'true'", *properties)
    for ids in ("3, 5", "9"):
        spark.sql(f"DELETE FROM {place} WHERE n.id IN ({ids})")
    clustered = "two" not in name
    found = examined(path, "day" if clustered and name != "liquid" else None)
    rows = counted(spark, path, PARTITIONS.get(name, BY_ORGANIZATION))
    for one in found.facts.seen.partitions.to_pylist():
        files, count, first, last = rows.pop(one["partition"])
        # Files whose only row was deleted are gone; the others keep their rows and mark them.
        assert (one["files"], one["rows"] >= count) == (files, True)
        # Bounds stay those of the files: deleted rows count.
        assert not clustered or (one["low"] <= first and last <= one["high"])
    assert rows == {}
    totals = found.facts.totals
    assert totals.rows == (ROWS if clustered else ROWS - 3)
    assert found.facts.seen.clustering == ("day" if clustered else None)
    assert totals.files_without_bounds == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_checkpoint_of_version_2_by_spark_says_what_was_removed(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    path, form = tmp_path / "t", "spark.databricks.delta.checkpointV2.topLevelFileFormat"
    spark.conf.set(form, kind)
    try:
        place = made(spark, path, "", "'delta.checkpointPolicy' = 'v2'", "'delta.checkpointInterval' = '6'")
        spark.sql(f"DELETE FROM {place} WHERE n.id < 4")
        spark.sql(f"DELETE FROM {place} WHERE n.id < 8")
    finally:
        spark.conf.unset(form)
    [checkpoint] = (path / "_delta_log").glob(f"{6:020}.checkpoint.*")
    assert checkpoint.suffix == f".{kind}"
    found = recent(str(path), most=1, small_file_bytes=1)
    gone = [{a["remove"]["path"] for a in log.entry(str(path), n) or [] if "remove" in a} for n in (5, 6)]
    assert found.checkpoint == found.version == 6
    assert all(gone)
    assert found.removed.keys() == gone[0] | gone[1]


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
    here = examined(path, None)
    assert here.facts.seen.clustering == "day"
    assert here.facts.seen.recent.versions_since_optimize == 0
    assert here.facts.seen.partitions.column("depth").to_pylist() == [1, 1]
    everything = spark.read.format("delta").load(str(path))
    of_one = everything.where("organization_id = 'a b/ü%0'")
    a_day = of_one.where("day = DATE'2024-01-03'")
    assert sorted(row.n.id for row in a_day.collect()) == [8, 10]
    assert 1 == len(a_day.inputFiles()) < len(of_one.inputFiles()) < len(everything.inputFiles())

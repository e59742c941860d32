"""What the peers that are read by Spark have in common: the session, reading, handing out rows.

Runs in their environments, with the pyspark that each wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers.protocol import DELETE, KEY, OP, Opened


def session(opened: Opened, conf: Mapping[str, str]) -> SparkSession:
    """A session of its own on this machine that listens on 127.0.0.1 only; set up as the product sets up its own."""
    every = {
        "spark.driver.memory": opened.memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.jars": ",".join(opened.jars),
        "spark.default.parallelism": str(opened.parallelism),
        "spark.sql.shuffle.partitions": str(opened.parallelism),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(opened.folder / "warehouse"),
        **conf,
    }
    builder = SparkSession.builder.master("local[*]").appName("peer")
    for name, value in every.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read_all(rows: DataFrame) -> int:
    """Every column of every row, thrown away; how many, by an observation of the same pass."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    rows.observe(seen, F.count(F.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def merge_sql(target: str, source: str, columns: list[str]) -> str:
    """One MERGE of a batch: deletions, words where there are any, new rows."""
    said = [name for name in columns if name != KEY]
    taken = ", ".join(f"t.{name} = coalesce(s.{name}, t.{name})" for name in said)
    return (
        f"MERGE INTO {target} t USING {source} s ON t.{KEY} = s.{KEY} "
        f"WHEN MATCHED AND s.{OP} = '{DELETE}' THEN DELETE WHEN MATCHED THEN UPDATE SET {taken} "
        f"WHEN NOT MATCHED AND s.{OP} <> '{DELETE}' THEN INSERT ({', '.join(columns)}) "
        f"VALUES ({', '.join(f's.{name}' for name in columns)})"
    )


def dumped(rows: DataFrame, out: Path) -> None:
    """All rows as Parquet."""
    rows.write.parquet(str(out))

"""Drains a queue with `s3-sqs` in a Spark of its own: python -m … WHERE FOLDER OPTIONS. For tests of where it runs.

WHERE is a master, or the address of a Connect server; OPTIONS the source's, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from engagement_platform.sources.s3_sqs import S3SqsDataSource


def worker(_number: int) -> int:
    """The process whose children are the Python workers of one executor."""
    import os

    return os.getppid()


def main(where: str, folder: Path, options: dict[str, str]) -> None:
    """Prints the rows, each with its object, and how many executors' processes made some."""
    builder = SparkSession.Builder()
    if where.startswith("sc:"):
        spark = builder.remote(where).create()
    else:
        conf = {"spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1", "spark.cores.max": "2",
                "spark.sql.warehouse.dir": str(folder / "warehouse")}  # fmt: skip
        for name, value in conf.items():
            builder = builder.config(name, value)
        spark = builder.master(where).getOrCreate()
    spark.dataSource.register(S3SqsDataSource)
    stream = spark.readStream.format("s3-sqs").options(**options).schema("a int, _file string").load()
    made_by = udf(worker, "int").asNondeterministic()
    query = (
        stream.withColumn("worker", made_by("a"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(folder / "rows")).collect()
    print(json.dumps({"rows": [[row.a, row._file] for row in rows], "workers": len({row.worker for row in rows})}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))

"""The source as users have it: a stream of Spark's, with its checkpoint, killed and started again."""

from __future__ import annotations

import csv
import gzip
import io
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from engagement_platform.sources.s3_sqs import S3SqsDataSource
from engagement_platform_tests.matrix import quick
from engagement_platform_tests.sources.pipe import MakePipe, Pipe

STREAM_S = 180
OPTIONS = ("endpoint", "region", "stateLocation", "visibilityTimeout", "maxFilesPerTrigger")


@pytest.fixture
def pipe(make: MakePipe) -> Pipe:
    return make(maxFilesPerTrigger="2")


def start(
    spark: SparkSession, pipe: Pipe, folder: Path, file_format: str = "json", schema: str = "a int, _file string"
) -> StreamingQuery:
    """A run over what is there, with an idempotent sink: files of a batch are written once, under its id."""
    spark.dataSource.register(S3SqsDataSource)
    reader = spark.readStream.format("s3-sqs").option("fileFormat", file_format).option("queueUrl", pipe.url)
    for name in OPTIONS:
        reader = reader.option(name, pipe.options[name])
    return (
        reader.schema(schema)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )


def finish(query: StreamingQuery) -> int:
    """Batches that the run had."""
    assert query.awaitTermination(STREAM_S), f"the stream did not end within {STREAM_S} s"
    return len({progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]})


def rows(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.a for row in spark.read.parquet(str(folder / "rows")).collect())


@pytest.mark.slow
def test_three_lines_read_what_s3_announces(spark: SparkSession, pipe: Pipe, tmp_path: Path) -> None:
    for n in range(5):
        pipe.put(f"{n}.json", n, n + 100)
    assert finish(start(spark, pipe, tmp_path)) == 3
    assert rows(spark, tmp_path) == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
    # Spark asks once more after the last batch, which proves that it was committed.
    assert pipe.left() == 0
    pipe.put("later.json", 5)
    assert finish(start(spark, pipe, tmp_path)) == 1
    assert rows(spark, tmp_path) == [0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104]
    assert pipe.left() == 0


ROWS = [(1, "one"), (2, "a, b"), (3, "Grün"), (4, None)]


def as_csv() -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(("" if name is None else name, number) for number, name in ROWS)
    return text.getvalue().encode()


def as_parquet() -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.table({"name": [name for _, name in ROWS], "a": [number for number, _ in ROWS]}), made)
    return made.getvalue()


@pytest.mark.parametrize(
    ("file_format", "key", "content"),
    quick(
        [
            ("csv", "a.csv.gz", lambda: gzip.compress(as_csv())),
            ("parquet", "a.parquet", as_parquet),
        ],
        unpack=True,
    ),
)
def test_rows_of_csv_and_parquet_arrive_in_spark_as_they_were_written(
    spark: SparkSession, pipe: Pipe, tmp_path: Path, file_format: str, key: str, content: Callable[[], bytes]
) -> None:
    pipe.s3.put_object(Bucket=pipe.bucket, Key=key, Body=content())
    assert finish(start(spark, pipe, tmp_path, file_format, "name string, a bigint, _file string")) == 1
    read = [(row.a, row.name) for row in spark.read.parquet(str(tmp_path / "rows")).orderBy("a").collect()]
    # An empty field of CSV is null.
    assert read == ROWS
    assert pipe.left() == 0


def test_without_a_schema_nothing_is_loaded(spark: SparkSession) -> None:
    spark.dataSource.register(S3SqsDataSource)
    without = spark.readStream.format("s3-sqs").option("queueUrl", "http://127.0.0.1:1/q")
    with pytest.raises(AnalysisException, match="there is no schema"):
        _ = without.load().columns


# A batch that says that it is under way and then waits to be killed.
KILLED = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from engagement_platform.sources.s3_sqs import S3SqsDataSource

folder, wait, options = Path(sys.argv[1]), sys.argv[2] == "wait", dict(zip(sys.argv[3::2], sys.argv[4::2]))
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2").config("spark.driver.memory", "512m").getOrCreate()
)
spark.dataSource.register(S3SqsDataSource)

def put(batch, number):
    keys = sorted(f"{row.a} {row._file}" for row in batch.collect())
    (folder / f"batch-{number}").write_text("\\n".join(keys))
    if wait and number == 1:
        (folder / "under way").touch()
        time.sleep(600)

stream = spark.readStream.format("s3-sqs").options(**options).schema("a int, _file string").load()
query = stream.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(put)
query.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.crash
@pytest.mark.slow
def test_a_stream_that_is_killed_goes_on_from_its_checkpoint_without_loss_or_repetition(
    pipe: Pipe, tmp_path: Path
) -> None:
    for n in range(6):
        pipe.put(f"{n}.json", n)
    script = tmp_path / "stream.py"
    script.write_text(textwrap.dedent(KILLED))
    options = [word for name in ("queueUrl", *OPTIONS) for word in (name, pipe.options[name])]

    def command(mode: str) -> list[str]:
        return [sys.executable, str(script), str(tmp_path), mode, *options]

    process = subprocess.Popen(command("wait"), start_new_session=True)
    try:
        deadline = time.monotonic() + STREAM_S
        while not (tmp_path / "under way").exists():
            assert process.poll() is None, "the stream ended before it could be killed"
            assert time.monotonic() < deadline, f"the second batch did not begin within {STREAM_S} s"
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    before = (tmp_path / "batch-1").read_text()
    subprocess.run(command("go"), check=True, timeout=STREAM_S)
    assert (tmp_path / "batch-1").read_text() == before
    read = [line for path in sorted(tmp_path.glob("batch-*")) for line in path.read_text().splitlines()]
    assert sorted(read) == [f"{n} s3://{pipe.bucket}/{n}.json" for n in range(6)]

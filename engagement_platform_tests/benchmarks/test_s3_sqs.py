"""The benchmark of announced objects counts every line, and a wait from the PUT to the commit of the last row."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from benchmarks import s3_sqs
from benchmarks.cells import Run
from benchmarks.s3_sqs import Bench, Bucket, cells, keep, moto, parsed, tables, targets
from engagement_platform.local.aws import EmbeddedAws
from engagement_platform.sources.s3_sqs import S3SqsDataSource


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedAws]:
    with moto(tmp_path_factory.mktemp("moto")) as running:
        yield running


def test_each_object_is_announced_once_and_has_the_moment_of_its_creation(aws: EmbeddedAws) -> None:
    bucket = Bucket(aws, "told", lines=3)
    bucket.fill(25)
    found: list[str] = []
    while messages := bucket.sqs.receive_message(QueueUrl=bucket.queue, MaxNumberOfMessages=10).get("Messages"):
        found += [key for message in messages for key in s3_sqs._keys(message["Body"])]
        for message in messages:
            bucket.sqs.delete_message(QueueUrl=bucket.queue, ReceiptHandle=message["ReceiptHandle"])
    assert sorted(found) == sorted(bucket.created)
    assert bucket.written == 75


def test_a_message_without_records_names_no_key() -> None:
    assert s3_sqs._keys(json.dumps({"Event": "s3:TestEvent"})) == []


def test_an_object_is_readable_with_the_last_of_its_rows(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    write_deltalake(first, pa.table({"source_object": ["s3://b/events/1", "s3://b/events/2"]}))
    write_deltalake(second, pa.table({"source_object": ["s3://b/events/1"]}))
    moments = [Path(uri, "_delta_log", f"{0:020}.json").stat().st_mtime for uri in (first, second)]
    seen = s3_sqs._readable([first, second], "source_object")
    assert seen == {"events/1": max(moments), "events/2": moments[0]}


def test_a_figure_is_the_median_round_and_says_whether_the_target_is_met(tmp_path: Path) -> None:
    drained, fresh = cells(Run(tmp_path, {}))
    for way, seconds in (("client", 1.0), ("source", 4.0), ("files", 8.0), ("tables", 40.0)):
        drained.add((way, 100, 1, 1), objects_a_second=1.0, seconds=100.0)
        for n, factor in enumerate((1, 2, 1), 1):
            took = seconds * factor
            drained.add((way, 1_000, 10, n), objects_a_second=1_000 / took, seconds=took)
    keep("source", 20.0, [1.0, 2.0, 3.0], fresh)
    keep("tables", 20.0, [100.0], fresh)
    shown, waited = tables(drained, fresh)
    assert list(shown.columns[6].cells) == ["100%", "100%", "100%", "100%", "100%", "25%", "12%", "2%"]
    assert list(waited.columns[2].cells) == ["2.00", "100.00"]
    assert [line.rpartition(" ")[2] for line in targets(drained, fresh)] == ["met.", "met.", "missed.", "missed."]


@pytest.mark.slow
@pytest.mark.parametrize("way", s3_sqs.AIMED)
def test_every_object_of_a_short_run_is_drained_and_becomes_readable(
    spark: SparkSession, aws: EmbeddedAws, tmp_path: Path, way: str
) -> None:
    spark.dataSource.register(S3SqsDataSource)
    bench = Bench(spark, aws, tmp_path, parsed(["--lines", "5", "--patience", "600"]))
    assert bench.drained(way, 12, records=5) > 0
    waits = bench.fresh(way, rate=10.0, seconds=2.0)
    assert len(waits) == 20
    assert min(waits) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("spark_jars")
def test_a_run_sets_sparks_own_source_of_files_beside_the_others(tmp_path: Path) -> None:
    """In a process of its own, whose Spark has the jars of S3A."""
    few = ["--single", "4", "--objects", "10", "--records", "5", "--lines", "3", "--rounds", "1", "--rates", "5"]
    command = [sys.executable, "-m", "benchmarks.s3_sqs", *few, "--seconds", "2", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    with (tmp_path / "out" / "s3_sqs_drained.csv").open() as lines:
        assert {row["way"] for row in csv.DictReader(lines)} == {*s3_sqs.WAYS}
    with (tmp_path / "out" / "s3_sqs_fresh.csv").open() as lines:
        assert {(row["way"], row["objects"]) for row in csv.DictReader(lines)} == {(w, "10") for w in s3_sqs.STREAMS}


@pytest.mark.parametrize("records", [1, 7])
def test_the_client_alone_takes_every_line(aws: EmbeddedAws, tmp_path: Path, records: int) -> None:
    nobody: SparkSession = None  # type: ignore[assignment]
    assert Bench(nobody, aws, tmp_path, parsed(["--lines", "5"])).drained("client", 30, records) > 0

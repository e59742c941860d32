"""Delta lists logs by LocalLogStore and S3LogStore, which give what Delta's own log stores give."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Transaction
from engagement_platform.lake.jars import LOG_STORES
from engagement_platform.lake.lake import Lake
from engagement_platform.settings import Settings
from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.lake.test_lake import THINGS

VERSIONS = st.integers(0, 40)
NAMES = st.one_of(
    VERSIONS.map("{:020}.json".format),
    VERSIONS.map("{:020}.crc".format),
    VERSIONS.map(".{:020}.json.crc".format),
    VERSIONS.map("{:020}.checkpoint.parquet".format),
    VERSIONS.map(".{:020}.json.0b1c.tmp".format),
    st.sampled_from(("_last_checkpoint", "._last_checkpoint.crc", "_staged_commits", "a name:with a colon", "ä b%20c")),
)

Entry = tuple[str, int, int, bool]


def stores(spark: SparkSession) -> tuple[Any, Any]:
    """(ours, Delta's own), in Spark's JVM."""
    jvm: Any = spark._jvm
    conf = spark._jsc.hadoopConfiguration()
    return jvm.engagement_platform.LocalLogStore(conf), jvm.io.delta.storage.HDFSLogStore(conf)


def listed(spark: SparkSession, store: Any, folder: Path, first: str) -> list[Entry]:
    """(place, bytes, time, is a folder) of each entry of a folder from this name on, in the order of the store."""
    jvm: Any = spark._jvm
    found = store.listFrom(jvm.org.apache.hadoop.fs.Path(f"file://{folder}/{first}"), spark._jsc.hadoopConfiguration())
    entries = list[Entry]()
    while found.hasNext():
        one = found.next()
        entries.append((one.getPath().toString(), one.getLen(), one.getModificationTime(), one.isDirectory()))
    return entries


def filled(folder: Path, names: Sequence[str]) -> None:
    """Make files with these names, each as long as it is late in the list, and folders of those without a dot."""
    for number, name in enumerate(names):
        if name.startswith("_staged"):
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(b"x" * number)


@settings(max_examples=60)
@given(names=st.lists(NAMES, unique=True, max_size=30), first=st.one_of(VERSIONS.map("{:020}.".format), NAMES))
def test_a_log_is_listed_as_by_deltas_own_class(spark: SparkSession, names: list[str], first: str) -> None:
    with TemporaryDirectory() as place:
        folder = Path(place)
        filled(folder, names)
        ours, deltas = (listed(spark, store, folder, first.replace(":", "")) for store in stores(spark))
        assert ours == deltas


def test_where_there_is_no_log_the_error_is_that_of_deltas_own_class(spark: SparkSession, tmp_path: Path) -> None:
    said = set[str]()
    for store in stores(spark):
        with pytest.raises(Py4JJavaError) as refused:
            listed(spark, store, tmp_path / "nowhere", f"{0:020}.json")
        said.add(refused.value.java_exception.getClass().getName())
    assert said == {"java.io.FileNotFoundException"}


def test_an_entry_that_is_removed_while_a_log_is_listed_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path, [f"{version:020}.json" for version in range(3)])
    jvm: Any = spark._jvm
    first = jvm.org.apache.hadoop.fs.Path(f"file://{tmp_path}/{0:020}.json")
    found = stores(spark)[0].listFrom(first, spark._jsc.hadoopConfiguration())
    seen = [found.next().getPath().getName()]
    (tmp_path / f"{1:020}.json").unlink()
    while found.hasNext():
        seen.append(found.next().getPath().getName())
    # The stream behind the iterator may be one entry ahead.
    assert seen[0] == f"{0:020}.json"
    assert seen[-1] == f"{2:020}.json"


def test_spark_uses_it_and_leaves_one_file_for_each_of_its_own_in_a_log(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.conf.get("spark.delta.logStore.file.impl") == LOG_STORES["file"]
    lake = Lake(spark, Settings(home=tmp_path))
    lake.ensure(THINGS)
    rows = spark.createDataFrame([("o", "1", 1, "a")], THINGS.ddl)
    lake.append(rows, THINGS, Transaction("test/things", 0), rows=1)
    names = {path.name for path in Path(lake.uri(THINGS), "_delta_log").iterdir() if path.is_file()}
    assert names == {f"{version:020}.{kind}" for version in (0, 1) for kind in ("json", "crc")}


_ON_S3 = """
import random, sys
import boto3
from engagement_platform.lake.jars import spark_jars
from engagement_platform.lake.session import build_classic, classic_conf
from engagement_platform.settings import Settings

bucket = sys.argv[1]
settings = Settings(lake_uri=f"s3a://{bucket}/lake")
conf = classic_conf(settings, spark_jars(settings))
spark = build_classic(conf | {"spark.master": "local[1]"}, "test")
assert spark.conf.get("spark.delta.logStore.s3a.impl") == "engagement_platform.S3LogStore"
jvm, hadoop = spark._jvm, spark._jsc.hadoopConfiguration()
ours, deltas = jvm.engagement_platform.S3LogStore(hadoop), jvm.io.delta.storage.S3SingleDriverLogStore(hadoop)

def listed(store, uri):
    found = store.listFrom(jvm.org.apache.hadoop.fs.Path(uri), hadoop)
    while found.hasNext():
        one = found.next()
        # A folder is an object's name only, and has the time at which one looks.
        time = None if one.isDirectory() else one.getModificationTime()
        yield one.getPath().toString(), one.getLen(), time, one.isDirectory()

client, draw = boto3.client("s3"), random.Random(7)
for number in range(12):
    versions = draw.sample(range(40), draw.randrange(1, 20))
    names = [f"{v:020}.{draw.choice(('json', 'crc', 'checkpoint.parquet'))}" for v in versions]
    for name in [*names, "_last_checkpoint", "_staged_commits/one.json", "ä b%20c"][draw.randrange(2):]:
        client.put_object(Bucket=bucket, Key=f"logs/{number}/_delta_log/{name}", Body=b"x" * draw.randrange(9))
    # A folder whose name begins alike is another one.
    client.put_object(Bucket=bucket, Key=f"logs/{number}/_delta_log2/{99:020}.json", Body=b"x")
    for first in (f"{draw.randrange(45):020}.", *draw.sample(names, 1), f"{0:020}.json", "_"):
        uri = f"s3a://{bucket}/logs/{number}/_delta_log/{first}"
        found, expected = list(listed(ours, uri)), list(listed(deltas, uri))
        assert found == expected, (uri, found, expected)
for store in (ours, deltas):
    try:
        list(listed(store, f"s3a://{bucket}/nowhere/_delta_log/{0:020}.json"))
    except Exception as error:
        assert error.java_exception.getClass().getName() == "java.io.FileNotFoundException", error
    else:
        raise AssertionError("a log that is not there was listed")
for _ in range(3):
    spark.range(3).write.format("delta").mode("append").save(f"s3a://{bucket}/lake/t")
assert spark.read.format("delta").load(f"s3a://{bucket}/lake/t").count() == 9
print("equal")
"""


@pytest.mark.slow
def test_a_log_on_s3_is_listed_as_by_deltas_own_class_by_requests_that_begin_where_it_is_wanted(moto: Moto) -> None:
    bucket = f"logs-{uuid4().hex[:12]}"
    moto.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    env = {**os.environ, "AWS_ENDPOINT_URL": moto.endpoint, "AWS_REGION": "eu-central-1"}
    command = [sys.executable, "-c", _ON_S3, bucket]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.splitlines()[-1] == "equal"
    assert "start-after=" in moto.log.read_text("utf-8")

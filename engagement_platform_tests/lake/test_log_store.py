"""Delta lists logs on a local disk by LocalLogStore, which gives what Delta's own log store gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Transaction
from engagement_platform.lake.jars import LOG_STORE
from engagement_platform.lake.lake import Lake
from engagement_platform.settings import Settings
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
    assert spark.conf.get("spark.delta.logStore.file.impl") == LOG_STORE
    lake = Lake(spark, Settings(home=tmp_path))
    lake.ensure(THINGS)
    rows = spark.createDataFrame([("o", "1", 1, "a")], THINGS.ddl)
    lake.append(rows, THINGS, Transaction("test/things", 0), rows=1)
    names = {path.name for path in Path(lake.uri(THINGS), "_delta_log").iterdir() if path.is_file()}
    assert names == {f"{version:020}.{kind}" for version in (0, 1) for kind in ("json", "crc")}

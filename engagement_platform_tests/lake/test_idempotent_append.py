"""An append under a transaction leaves what Delta's own leaves, and starts no Spark job to find the transaction."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.jars import APPEND_CONF, APPEND_SOURCE
from engagement_platform.lake.lake import Lake, save_under
from engagement_platform.settings import Settings
from engagement_platform_tests.ingestion.test_layouts import started_jobs
from engagement_platform_tests.lake.test_lake import THINGS, rows_of

APPLICATIONS = ("ingest@1", "ingest@2", "apply@1")
OF_EACH_COMMIT = {"timestamp", "txnId"}
"""What `commitInfo` has that no two commits have in common."""


def committed(uri: str) -> list[Any]:
    """All that the log says, but for times, names of files and the id of the table."""
    found = list[tuple[Any, ...]]()
    for version in range((log.newest_entry(uri) or 0) + 1):
        for action in log.entry(uri, version) or []:
            [(kind, said)] = action.items()
            if kind == "commitInfo":
                metrics = {
                    key: value for key, value in said.get("operationMetrics", {}).items() if "time" not in key.lower()
                }
                stays = {key: value for key, value in said.items() if key not in OF_EACH_COMMIT}
                # A predicate has numbers that Spark gives to columns.
                stays["operationParameters"] = re.sub(
                    r"#\d+", "", json.dumps(said["operationParameters"], sort_keys=True)
                )
                found.append((version, stays | {"operationMetrics": metrics}))
            elif kind == "add":
                stays = {key: said.get(key) for key in ("partitionValues", "size", "dataChange")}
                found.append((version, stays, json.loads(said["stats"])))
            elif kind == "txn":
                found.append((version, (said["appId"], said["version"])))
    return found


PLAIN = replace(THINGS, partitioned_by=())


@pytest.mark.parametrize("like", [PLAIN, THINGS, replace(PLAIN, liquid_by=("organization_id",))])
def test_whatever_was_committed_before_an_append_leaves_what_deltas_own_leaves(
    spark: SparkSession, tmp_path: Path, like: Table
) -> None:
    lake, drawn = Lake(spark, Settings(home=tmp_path)), random.Random(5)
    ours, deltas = (replace(like, key=("test", name)) for name in ("ours", "deltas"))
    lake.ensure(ours, deltas)
    uris = [lake.uri(table) for table in (ours, deltas)]
    for step in range(20):
        rows = [(f"org-{drawn.randrange(3)}", str(step), n, "a") for n in range(drawn.randrange(3))]
        what = drawn.choice(("append", "append", "append", "append", "update", "without checksum", "checksum lost"))
        txn = Transaction(drawn.choice(APPLICATIONS), drawn.randrange(6))
        if what == "append":
            frame = spark.createDataFrame(rows, THINGS.ddl).coalesce(1)
            for source, uri in zip((APPEND_SOURCE, "delta"), uris, strict=True):
                save_under(frame.write.format(source).mode("append"), uri, txn)
        for uri in uris:
            if what == "update":
                spark.sql(f"UPDATE delta.`{uri}` SET word = 'b' WHERE version = 1").collect()
            elif what == "without checksum" and not like.liquid_by:
                rest: Any = {"organization_id": ["org"], "id": ["x"], "version": [9], "word": ["c"]}
                write_deltalake(uri, pa.table(rest), mode="append")
            elif what == "checksum lost":
                Path(uri, "_delta_log", f"{DeltaTable(uri).version():020}.crc").unlink(missing_ok=True)
        assert committed(uris[0]) == committed(uris[1]), f"step {step}, {what}"
        held = [[DeltaTable(uri).transaction_version(name) for name in APPLICATIONS] for uri in uris]
        assert held[0] == held[1]
    assert max(one for one in held[0] if one is not None) == 5


def test_the_transaction_is_found_without_a_job_and_by_one_where_a_checksum_does_not_name_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.setTransactionsInCrc.writeOnCommit", "true")
    lake = Lake(session, Settings(home=tmp_path))
    lake.ensure(PLAIN)
    rows = session.createDataFrame([("org", "a", 1, "one")], THINGS.ddl)

    def jobs(number: int) -> int:
        before = started_jobs(spark)
        lake.append(rows, PLAIN, Transaction("job@1/data/insert", number), rows=1)
        return started_jobs(spark) - before

    jobs(0)
    assert (jobs(1), jobs(2), jobs(2)) == (1, 1, 0)
    Path(lake.uri(PLAIN), "_delta_log", f"{lake.version(PLAIN):020}.crc").unlink()
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert jobs(3) > 1
    assert jobs(4) == 1, "the next checksum names them again"
    assert len(rows_of(lake, PLAIN)) == 5


def test_a_spark_without_the_class_appends_by_deltas_own(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    assert session.conf.get(APPEND_CONF) == APPEND_SOURCE
    session.conf.set(APPEND_CONF, "delta")
    lake = Lake(session, Settings(home=tmp_path))
    lake.ensure(THINGS)
    rows = session.createDataFrame([("org", "a", 1, "one")], THINGS.ddl)
    before = started_jobs(spark)
    for _ in range(2):
        lake.append(rows, THINGS, Transaction("job@1/data/insert", 4), rows=1)
    assert lake.version(THINGS) == 1
    assert started_jobs(spark) - before > 2, "Delta's own has a job for each look"


def test_it_does_nothing_but_append(spark: SparkSession, tmp_path: Path) -> None:
    writer = spark.range(1).write.format(APPEND_SOURCE)
    with pytest.raises(PySparkException, match="only appends, and was asked to Overwrite"):
        writer.mode("overwrite").save(str(tmp_path / "table"))
    assert not (tmp_path / "table").exists()

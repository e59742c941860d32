"""A run of a job as a process of its own, on a Spark Connect server, that does what it is asked.

Prints the ids of its sessions, one a line. `python -m engagement_platform_tests.lake.one_run JOB WHAT [ARGUMENT …]`
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Transaction
from engagement_platform.lake.jars import APPEND_SOURCE
from engagement_platform.lake.lake import TRANSACTION_CONF, save_under
from engagement_platform.lake.session import build_remote, driver_id, session_conf, spark_session
from engagement_platform.settings import Settings

TRANSACTION = Transaction("job@1.zombie/data/append", 3)


def runs(job: str, times: str) -> None:
    """So many runs, one after the other, each with a little Python on the server and nothing left of another."""
    for _ in range(int(times)):
        with spark_session(Settings(), job) as spark:
            _tell(spark)
            doubled = spark.range(3).mapInArrow(_doubled, "id long")
            assert sorted(row["id"] for row in doubled.collect()) == [0, 2, 4]
            left = [key for key in TRANSACTION_CONF if spark.conf.get(key, None) is not None]
            assert left == [], f"a former run left {left}"
            assert spark.sql("SHOW VIEWS").collect() == [], "a former run left a view"


def killed(job: str) -> None:
    """A run that is killed between naming its transaction and writing under it."""
    with spark_session(Settings(), job) as spark:
        _tell(spark)
        for key in TRANSACTION_CONF:
            spark.conf.set(key, "7")
        spark.range(1).createOrReplaceTempView("left_behind")
        os.kill(os.getpid(), signal.SIGKILL)


def stopped(job: str) -> None:
    """A run that stops itself and has another statement afterwards."""
    with spark_session(Settings(), job) as spark:
        _tell(spark)
        os.kill(os.getpid(), signal.SIGSTOP)
        print(spark.range(5).count(), flush=True)


def driver(job: str) -> None:
    """A run that says which driver it has."""
    with spark_session(Settings(), job) as spark:
        print(driver_id(spark), flush=True)


def appending(_job: str, uri: str, begun: str, go: str, app_id: str) -> None:
    """An append of one row in a session that nobody else knows, so that no other run can end it."""
    settings = Settings()
    append_slowly(build_remote(settings.spark, session_conf(settings)), uri, begun, go, Transaction(app_id, 0))


def append_slowly(spark: SparkSession, uri: str, begun: str, go: str, txn: Transaction = TRANSACTION) -> None:
    """Append one row under a transaction; its task makes the file `begun` and waits for the file `go`."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        Path(begun).touch()
        while not Path(go).exists():
            time.sleep(0.05)
        yield from batches

    rows: Any = spark.range(1).coalesce(1).mapInArrow(wait, "id long")
    save_under(rows.write.format(APPEND_SOURCE).mode("append"), uri, txn)


def _doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), 2)], ["id"])


def _tell(spark: SparkSession) -> None:
    session: Any = spark
    print(session.session_id, flush=True)


WHAT: dict[str, Callable[..., None]] = {each.__name__: each for each in (runs, killed, stopped, driver, appending)}

if __name__ == "__main__":
    WHAT[sys.argv[2]](sys.argv[1], *sys.argv[3:])

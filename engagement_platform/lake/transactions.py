"""How a Spark write names its transaction, so that Delta writes it once, and asks for leave immediately before it.

What is written is `lake` and the modules beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrameWriter, SparkSession

from engagement_platform.engine.model import Transaction

_APP_ID = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_MARKER = "spark.databricks.delta.commitInfo.userMetadata"
TRANSACTION_CONF = (_APP_ID, _VERSION, _MARKER)
"""Configuration of a session that names the transaction of its next MERGE, UPDATE or DELETE."""


@contextmanager
def statement_under(spark: SparkSession, txn: Transaction) -> Iterator[None]:
    """MERGE, UPDATE and DELETE of this session commit under a transaction meanwhile. Raises what its guard raises."""
    try:
        for key, value in zip(TRANSACTION_CONF, (txn.app_id, str(txn.version), txn.metadata), strict=True):
            spark.conf.set(key, value)
        txn.guard()
        yield
    finally:
        # Left behind, they would name every later write of this session, and Delta would skip those.
        for key in TRANSACTION_CONF:
            spark.conf.unset(key)


def save_under(writer: DataFrameWriter, uri: str, txn: Transaction) -> None:
    """Write rows under a transaction; skipped when the table has it. Raises what its guard raises."""
    named = writer.option("txnAppId", txn.app_id).option("txnVersion", txn.version)
    named = named.option("userMetadata", txn.metadata)
    txn.guard()
    named.save(uri)

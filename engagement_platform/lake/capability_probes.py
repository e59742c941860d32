"""Small tables on which it is tried what an engine can do. Which of it matters is `guards.capabilities`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyspark
from pyspark.sql import SparkSession

from engagement_platform.lake import log

Probe = Callable[[SparkSession, str], str]
"""Given a session and the place of a table that is not there yet: what was seen. Raises whatever the engine raises."""


def _table(spark: SparkSession, uri: str, more: str = "", columns: str = "id bigint, day date") -> str:
    name = f"delta.`{uri}`"
    spark.sql(f"CREATE TABLE {name} ({columns}) USING delta {more}").collect()
    return name


def _insert(spark: SparkSession, name: str) -> None:
    spark.sql(f"INSERT INTO {name} VALUES (1, DATE'2026-01-01'), (2, DATE'2026-01-02')").collect()


def _versions(spark: SparkSession, _uri: str) -> str:
    return f"Spark {spark.version}, pyspark {pyspark.__version__}"


def _merge(spark: SparkSession, uri: str) -> str:
    name = _table(spark, uri)
    _insert(spark, name)
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT 2 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET day = NULL"
    ).collect()
    return f"version {log.version(uri)}"


def _z_order(spark: SparkSession, uri: str) -> str:
    name = _table(spark, uri)
    _insert(spark, name)
    spark.sql(f"OPTIMIZE {name} ZORDER BY (day)").collect()
    return "OPTIMIZE ZORDER BY"


def _liquid(spark: SparkSession, uri: str) -> str:
    _insert(spark, _table(spark, uri, "CLUSTER BY (day)"))
    return "CLUSTER BY"


def _vectors(spark: SparkSession, uri: str) -> str:
    name = _table(spark, uri, "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    _insert(spark, name)
    spark.sql(f"DELETE FROM {name} WHERE id = 1").collect()
    return "a DELETE that rewrites no file"


def _restore(spark: SparkSession, uri: str) -> str:
    name = _table(spark, uri)
    _insert(spark, name)
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 0").collect()
    return "RESTORE TO VERSION AS OF"


def _not_null(spark: SparkSession, uri: str) -> str:
    _insert(spark, _table(spark, uri, columns="id bigint NOT NULL, day date"))
    return "NOT NULL"


def _check(spark: SparkSession, uri: str) -> str:
    name = _table(spark, uri)
    spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT positive CHECK (id > 0)").collect()
    _insert(spark, name)
    return "CHECK (…)"


def _primary_key(spark: SparkSession, uri: str) -> str:
    name = _table(spark, uri)
    spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT one PRIMARY KEY (id)").collect()
    return "PRIMARY KEY"


def _change_feed(spark: SparkSession, uri: str) -> str:
    name = _table(spark, uri, "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    _insert(spark, name)
    rows = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(uri).count()
    return f"{rows} rows of change feed"


def _stream(spark: SparkSession, uri: str) -> str:
    _table(spark, uri)
    assert spark.readStream.format("delta").load(uri).isStreaming
    return "readStream"


def _s3a(spark: SparkSession, _uri: str) -> str:
    try:
        # Without a bucket: refused at once, and by the file system itself where there is one.
        assert spark.read.format("text").load("s3a:///").columns
    except Exception as error:
        if "ClassNotFound" in str(error) or "No FileSystem" in str(error):
            raise
    return "the file system is there; whether a bucket answers was not asked"


def _connect(spark: SparkSession, _uri: str) -> str:
    kind = type(spark).__module__
    if ".connect." not in kind:
        raise RuntimeError("this session is classic, in one process with its driver; spark.remote is not set")
    return "Spark Connect"


PROBES: Mapping[str, Probe] = {
    "versions": _versions,
    "MERGE": _merge,
    "Z-order": _z_order,
    "liquid clustering": _liquid,
    "deletion vectors": _vectors,
    "RESTORE": _restore,
    "constraint NOT NULL": _not_null,
    "constraint CHECK": _check,
    "constraint PRIMARY KEY": _primary_key,
    "change feed": _change_feed,
    "streaming source": _stream,
    "s3a": _s3a,
    "Spark Connect": _connect,
}
"""What is tried, by name."""

"""Finds out what the running Spark and Delta can do by doing it on small tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyspark
from pyspark.sql import SparkSession

Probe = Callable[[SparkSession, str], str]
"""Given a session and the place of a table that is not there yet: what was seen. Raises whatever the engine raises."""

_CREATE = "CREATE TABLE {} (id bigint, day date) USING delta"
_INSERT = "INSERT INTO {} VALUES (1, DATE'2026-01-01'), (2, DATE'2026-01-02')"


def _runs(*statements: str, spark: SparkSession, uri: str) -> str:
    """Run all of them; `{}` stands for the table."""
    for statement in statements:
        spark.sql(statement.format(f"delta.`{uri}`")).collect()
    return "works"


def _statements(*statements: str) -> Probe:
    return lambda spark, uri: _runs(*statements, spark=spark, uri=uri)


def _change_feed(spark: SparkSession, uri: str) -> str:
    _runs(f"{_CREATE} TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')", _INSERT, spark=spark, uri=uri)
    rows = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(uri).count()
    return f"{rows} rows of change feed"


def _stream(spark: SparkSession, uri: str) -> str:
    _runs(_CREATE, spark=spark, uri=uri)
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
    if ".connect." not in type(spark).__module__:
        raise RuntimeError("this session is classic, in one process with its driver; spark.remote is not set")
    return "Spark Connect"


PROBES: Mapping[str, Probe] = {
    "versions": lambda spark, _uri: f"Spark {spark.version}, pyspark {pyspark.__version__}",
    "MERGE": _statements(
        _CREATE,
        _INSERT,
        "MERGE INTO {} t USING (SELECT 2 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET day = NULL",
    ),
    "Z-order": _statements(_CREATE, _INSERT, "OPTIMIZE {} ZORDER BY (day)"),
    "liquid clustering": _statements(f"{_CREATE} CLUSTER BY (day)", _INSERT),
    "deletion vectors": _statements(
        f"{_CREATE} TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')", _INSERT, "DELETE FROM {} WHERE id = 1"
    ),
    "RESTORE": _statements(_CREATE, _INSERT, "RESTORE TABLE {} TO VERSION AS OF 0"),
    "constraint NOT NULL": _statements(_CREATE.replace("id bigint", "id bigint NOT NULL"), _INSERT),
    "constraint CHECK": _statements(_CREATE, "ALTER TABLE {} ADD CONSTRAINT positive CHECK (id > 0)", _INSERT),
    "constraint PRIMARY KEY": _statements(_CREATE, "ALTER TABLE {} ADD CONSTRAINT one PRIMARY KEY (id)"),
    "change feed": _change_feed,
    "streaming source": _stream,
    "s3a": _s3a,
    "Spark Connect": _connect,
}
"""What is tried, by name."""


class Capability(NamedTuple):
    """One thing that was tried."""

    name: str
    works: bool
    seen: str
    """What came of it: a figure, or the first line of the error."""


def capabilities(spark: SparkSession) -> Iterator[Capability]:
    """Try each capability, on tables in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="engagement-platform-probe-") as folder:
        for number, (name, probe) in enumerate(PROBES.items()):
            try:
                yield Capability(name, True, probe(spark, f"{folder}/{number}"))
            # Any error of an engine that cannot: that is what is asked.
            except Exception as error:
                lines = (line.strip(": ") for line in str(error).splitlines())
                # py4j begins with what it called.
                found = (line for line in lines if line and not line.startswith("An error occurred while calling"))
                yield Capability(name, False, next(found, type(error).__name__)[:200])

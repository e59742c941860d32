"""The probe says of the Spark that runs here what is known of it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from engagement_platform.lake.capability_probes import PROBES, capabilities


def test_the_probe_tells_what_this_spark_and_delta_can_do(spark: SparkSession) -> None:
    found = {one.name: one for one in capabilities(spark)}
    assert set(found) == set(PROBES)
    cannot = {name: one.seen for name, one in found.items() if not one.works}
    # Open-source Delta has no keys, this session has no S3 jars and is in this process.
    assert set(cannot) == {"constraint PRIMARY KEY", "s3a", "Spark Connect"}, cannot
    assert "ClassNotFound" in cannot["s3a"]
    assert found["versions"].seen.startswith("Spark 4.2")
    assert found["change feed"].seen == "2 rows of change feed"

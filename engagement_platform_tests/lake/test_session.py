"""Spark's configuration for an object store."""

from __future__ import annotations

from engagement_platform.lake.session import s3a_conf


def test_a_lake_on_a_disk_needs_nothing() -> None:
    assert s3a_conf("/data/lake", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_REGION": "eu-central-1"}) == {}


def test_amazon_needs_at_most_its_region() -> None:
    assert s3a_conf("s3a://b/lake", {}) == {}
    assert s3a_conf("s3a://b/lake", {"AWS_DEFAULT_REGION": "eu-central-1"}) == {
        "spark.hadoop.fs.s3a.endpoint.region": "eu-central-1"
    }


def test_another_store_is_found_by_the_variables_of_boto3_and_no_key_is_repeated() -> None:
    given = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_ACCESS_KEY_ID": "secret-1",
        "AWS_SECRET_ACCESS_KEY": "secret-2",
    }
    conf = s3a_conf("s3a://b/lake", given)
    assert conf == {
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
    of_s3_alone = s3a_conf("s3a://b/lake", {**given, "AWS_ENDPOINT_URL_S3": "https://minio.example.com"})
    assert of_s3_alone["spark.hadoop.fs.s3a.endpoint"] == "https://minio.example.com"
    assert of_s3_alone["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "true"

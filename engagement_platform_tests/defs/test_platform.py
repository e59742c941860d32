"""The resource: its fields win over the settings, so that one code location may have two platforms."""

# No `from __future__ import annotations` beside Dagster's decorators.

import json
from pathlib import Path
from uuid import uuid4

import boto3
import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from engagement_platform.definitions import defs
from engagement_platform.defs.platform import Platform
from engagement_platform.settings import Settings
from engagement_platform_tests.conftest import Moto


def test_two_platforms_in_one_code_location_have_settings_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_KAFKA__TIMEOUT", "PT7S")
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS", "setting:9092")
    monkeypatch.setenv("STORES_OF_EU", "postgresql+psycopg2://me:secret@eu/stores")
    found: dict[str, Settings] = {}

    @dg.op
    def look(eu: Platform, us: Platform) -> None:
        found.update(eu=eu.settings(), us=us.settings())

    @dg.job
    def look_at_both() -> None:
        look()

    eu = Platform(
        home=str(tmp_path / "eu"), kafka_bootstrap_servers="eu:9092", spark_remote="sc://eu:15002",
        stores_url=dg.EnvVar("STORES_OF_EU"),
    )  # fmt: skip
    both = dg.Definitions(jobs=[look_at_both], resources={"eu": eu, "us": Platform(home=str(tmp_path / "us"))})
    with dg.DagsterInstance.ephemeral() as instance:
        assert both.resolve_job_def("look_at_both").execute_in_process(instance=instance).success

    assert (found["eu"].lake, found["us"].lake) == (str(tmp_path / "eu" / "lake"), str(tmp_path / "us" / "lake"))
    assert [found[name].kafka.bootstrap_servers for name in ("eu", "us")] == ["eu:9092", "setting:9092"]
    assert [found[name].spark.remote_url for name in ("eu", "us")] == ["sc://eu:15002", None]
    assert found["eu"].store_url.endswith("@eu/stores")
    assert found["us"].store_url == f"sqlite:///{tmp_path / 'us' / 'stores.db'}"
    assert [found[name].kafka.timeout.total_seconds() for name in ("eu", "us")] == [7, 7]


def test_secrets_that_the_settings_name_are_settings_once_definitions_are_loaded(
    moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_STORES__URL", "sqlite://")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    for name, value in {
        "ENDPOINT_URL": moto.endpoint, "REGION": "eu-west-1", "ACCESS_KEY_ID": "none", "SECRET_ACCESS_KEY": "none",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    client = boto3.client("secretsmanager", region_name="eu-west-1")
    # Set, so that they are as they were after this test.
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_KAFKA__SECURITY", "{}")
    url = "postgresql+psycopg2://me:secret@db/stores"
    secrets = {"STORES__URL": url, "KAFKA__SECURITY": '{"sasl.password": "word"}'}
    arns = [
        client.create_secret(Name=f"prod/{uuid4().hex[:8]}/ENGAGEMENT_PLATFORM_{name}", SecretString=value)["ARN"]
        for name, value in secrets.items()
    ]
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_DAGSTER__SECRETS", json.dumps(arns))
    defs()
    settings = Platform().settings()
    assert settings.store_url == url
    assert settings.kafka.security["sasl.password"].get_secret_value() == "word"


def test_an_asset_beside_the_platform_reads_its_tables_by_the_resource_of_dagster_pyspark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spark` runs already, and there is one to a process; the configuration is what a new one would get."""
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path))
    spark.range(3).write.format("delta").save(str(tmp_path / "lake" / "shop" / "click"))

    @dg.asset
    def clicks(pyspark: LazyPySparkResource) -> dg.MaterializeResult[None]:
        conf = pyspark.spark_config
        assert "delta-spark" in conf["spark.jars"]
        assert conf["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
        rows = pyspark.spark_session.read.format("delta").load(str(tmp_path / "lake" / "shop" / "click")).count()
        return dg.MaterializeResult(metadata={"rows": rows})

    both = dg.Definitions(assets=[clicks], resources={"pyspark": (defs().resources or {})["pyspark"]})
    with dg.DagsterInstance.ephemeral() as instance:
        done = both.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    [event] = done.get_asset_materialization_events()
    assert event.materialization.metadata["rows"].value == 3

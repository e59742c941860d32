"""Spark's configuration for an object store, and what is shown of a Spark elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pydantic import ValidationError
from pyspark.errors import PySparkValueError
from pyspark.sql.connect.client import DefaultChannelBuilder

from engagement_platform.engine.database import open_engine, writing
from engagement_platform.engine.lease import LeaseLost
from engagement_platform.engine.schema import LEASE
from engagement_platform.lake.session import (
    SparkUnavailable,
    _answering,
    _server_name,
    local_modes,
    s3a_conf,
    server_conf,
)
from engagement_platform.lake.shared_session import shared_session
from engagement_platform.settings import Settings, SparkSettings

REMOTE = "sc://spark.example.org:443/;use_ssl=true;token=hunter2"
KEY = "spark.hadoop.fs.s3a.secret.key"


def test_a_lake_on_a_disk_needs_nothing() -> None:
    assert s3a_conf("/data/lake", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_REGION": "eu-central-1"}) == {}


def test_tables_in_the_home_are_for_its_owner_only_and_those_elsewhere_as_hadoop_has_it(tmp_path: Path) -> None:
    ours = {"spark.hadoop.fs.permissions.umask-mode": "077"}
    assert local_modes(Settings(home=tmp_path, lake_uri=None)) == ours
    assert local_modes(Settings(home=tmp_path, lake_uri=str(tmp_path / "lake"))) == ours
    for elsewhere in ("/data/lake", f"{tmp_path}-2/lake", "s3a://bucket/lake"):
        assert local_modes(Settings(home=tmp_path, lake_uri=elsewhere)) == {}


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


def test_a_token_and_configuration_reach_spark_and_are_not_shown() -> None:
    spark = SparkSettings(remote=REMOTE, conf={KEY: "hunter2"})
    assert spark.remote_url == REMOTE
    assert server_conf(Settings(spark=spark))[KEY] == "hunter2"
    shown = f"{spark} {spark!r} {spark.model_dump()} {spark.model_dump_json()} {spark.endpoint}"
    assert "hunter2" not in shown
    assert KEY in shown


_STARTS = """
import json, os, sys
from pathlib import Path
from engagement_platform.lake.session import build_classic

def descendants(pid):
    for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield each
        yield from descendants(each)

given = [json.loads(line) for line in sys.stdin]
for conf in given:
    spark = build_classic(conf, "canary")
    print(json.dumps({name: spark.conf.get(name) for name in conf}))
    print(json.dumps([Path(f"/proc/{pid}/cmdline").read_text() for pid in descendants(os.getpid())]))
    spark.stop()
"""


@pytest.mark.crash
def test_a_spark_of_this_process_has_its_whole_configuration_and_nobody_else_reads_its_secrets() -> None:
    """Whatever is in a value; also the second one in a process, whose JVM runs already."""
    odd = "a = : # ! \\ \" ' $HOME é"
    given = [
        {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
         "spark.driver.bindAddress": "127.0.0.1", "spark.driver.extraJavaOptions": "-Dodd=1 -XX:+UseSerialGC",
         KEY: f"hunter{number} {odd}"}
        for number in range(2)
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _STARTS], input="".join(f"{json.dumps(conf)}\n" for conf in given), text=True,
        capture_output=True, check=True, timeout=240,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--name own pyspark-shell"},
    )  # fmt: skip
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said[::2] == given
    assert all(any("-Dodd=1" in line for line in lines) for lines in said[1::2]), "the JVM is among them"
    assert "hunter" not in str(said[1::2])


def test_a_server_that_does_not_answer_is_named_by_host_and_port() -> None:
    at = r"answers at sc://spark\.example\.org:443 \("
    with pytest.raises(SparkUnavailable, match=at) as refused, _answering(SparkSettings(remote=REMOTE)):
        raise ConnectionError("failed to connect to all addresses")
    assert "hunter2" not in str(refused.value)


def test_servers_behind_one_gateway_are_told_apart_without_their_parameters() -> None:
    addresses = ("sc://a", "sc://a/", "sc://a/;", "sc://a:443", "sc://a/;cluster=one", "sc://a/;cluster=hunter2")
    names = [_server_name(SparkSettings(remote=address)) for address in addresses]
    assert names[:4] == ["sc://a", "sc://a", "sc://a", "sc://a:443"]
    assert len(set(names)) == 4
    assert "hunter2" not in "".join(names)
    assert _server_name(SparkSettings()) == ""


@pytest.mark.parametrize("rest", ["", ":443", ":443/", "/;", "/;token=hunter2", "/;a=b;token=hunt%3Der2%2F"])
def test_addresses_that_sparks_client_reads_are_settings(rest: str) -> None:
    assert DefaultChannelBuilder(str(SparkSettings(remote=f"sc://host{rest}").remote_url)).host == "host"


@pytest.mark.parametrize(
    "remote",
    ["sc://host/;token=hunter2==", "sc://host/;token=hunter2/x", "sc:///;token=hunter2", "sc://host/;hunter2"],
)
def test_an_address_that_sparks_client_would_repeat_is_refused_before_without_it(remote: str) -> None:
    with pytest.raises(PySparkValueError, match="hunter2"):
        DefaultChannelBuilder(remote)
    with pytest.raises(ValidationError, match="sc://host:port is needed") as refused:
        Settings(spark={"remote": remote})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("remote", ["sc://me:hunter2@host", "sc://host;token=hunter2", "sc://host/;token=a#hunter2"])
def test_an_address_of_which_host_and_port_cannot_be_told_is_refused(remote: str) -> None:
    with pytest.raises(ValidationError) as refused:
        SparkSettings(remote=remote)
    assert "hunter2" not in str(refused.value)


def test_a_run_whose_session_another_has_taken_says_that_and_not_that_spark_closed_it(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)

    def closed() -> None:
        raise RuntimeError("[INVALID_HANDLE.SESSION_CLOSED]")

    def is_overtaken() -> None:
        with writing(open_engine(settings.store_url), "test") as connection:
            connection.execute(LEASE.update().values(expires_ts=datetime(2020, 1, 1, tzinfo=UTC)))
        with shared_session(settings, "job", MagicMock()):
            closed()

    with pytest.raises(RuntimeError, match="SESSION_CLOSED"), shared_session(settings, "job", MagicMock()):
        closed()
    with pytest.raises(LeaseLost, match="spark-session/"), shared_session(settings, "job", MagicMock()):
        is_overtaken()

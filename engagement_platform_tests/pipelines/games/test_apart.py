"""The job as a client of a Spark Connect server, whose executors fetch the objects. The rest is in `test_job`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from engagement_platform.local.connect import connect_child
from engagement_platform.local.ports import free_ports
from engagement_platform.local.process import Supervisor
from engagement_platform.settings import EmbeddedSettings, SparkSettings
from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.pipelines.games.conftest import World
from engagement_platform_tests.pipelines.games.test_job import sent
from engagement_platform_tests.sources.test_s3_sqs_apart import CLUSTER, WITHIN_S

NO_SPARK = cast(SparkSession, None)
"""This process has none."""


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN_S)
@pytest.mark.usefixtures("spark_jars")
def test_a_client_of_a_connect_server_lands_each_event_once(
    moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    world = World(moto, tmp_path / "home", NO_SPARK)
    login, purchase = world.types["login"], world.types["purchase"]
    for n in range(8):
        world.put(f"events/{n}.json.gz", [sent(login, f"login-{n}"), sent(purchase, "the same"), b"no json"])
    (port,) = free_ports(1)
    server = SparkSettings(master=CLUSTER, conf={"spark.cores.max": "2"})
    settings = world.settings.model_copy(update={"spark": server, "embedded": EmbeddedSettings(connect_port=port)})
    env = {**os.environ, **world.variables(SPARK__REMOTE=f"sc://127.0.0.1:{port}")}
    command = [sys.executable, "-m", "engagement_platform.cli", "run", "ingest-game-events", "--until-idle", "--json"]
    with Supervisor(tmp_path / "logs") as supervisor:
        supervisor.start(connect_child(settings, tmp_path / "spark"))
        supervisor.wait_ready(WITHIN_S)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(report["rows_in"] for report in reports) == 24
    assert [row["event_id"] for row in world.rows("login")] == [f"login-{n}" for n in range(8)]
    assert (len(world.rows("purchase")), len(world.rows("quarantine"))) == (1, 8)
    assert world.left() == 0

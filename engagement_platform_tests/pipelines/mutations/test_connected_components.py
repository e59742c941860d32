"""GraphFrames where it is there, and one sentence where it is not: in this process and over Spark Connect.

That its parts make the moves of the whole is in `test_groups`. Not every mirror has GraphFrames' jars: tests that need
them are skipped with the reason; `spark.jar_folder` of the caller's settings takes them from a folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from engagement_platform.lake.session import GRAPH_PLUGIN, RELATION_PLUGINS
from engagement_platform.local.connect import connect_child
from engagement_platform.local.ports import free_ports
from engagement_platform.local.process import Supervisor
from engagement_platform.pipelines.mutations.connected_components import is_jar_missing, kept
from engagement_platform.settings import EmbeddedSettings, Settings, SparkSettings
from engagement_platform_tests.conftest import skip_without_graphframes

WITHIN_S = 600


@pytest.mark.parametrize(
    "error",
    [
        "py4j…: java.lang.ClassNotFoundException: org.graphframes.GraphFramePythonAPI",
        "(java.lang.ClassNotFoundException) org.apache.spark.sql.graphframes.GraphFramesConnect",
        "java.lang.ClassNotFoundException: org.apache.spark.sql.graphframes.GraphFramesConnect",
        "java.lang.NoClassDefFoundError: org/graphframes/GraphFrame",
        "(java.lang.NoClassDefFoundError) org/apache/spark/graphframes/graphx/Graph",
        "[CONNECT_INVALID_PLAN.NO_HANDLER_FOR_EXTENSION] The Spark Connect plan is invalid.",
    ],
)
def test_every_way_in_which_a_jar_can_be_missing_is_recognized(error: str) -> None:
    assert is_jar_missing(error)


@pytest.mark.parametrize(
    "error",
    [
        "java.lang.ClassNotFoundException: org.example.Other",
        "java.lang.IllegalArgumentException at org.graphframes.GraphFrame.connectedComponents",
        "java.lang.OutOfMemoryError: Java heap space",
    ],
)
def test_other_errors_stay_what_they_are(error: str) -> None:
    assert not is_jar_missing(error)


def test_a_result_is_analyzed_before_it_is_kept_and_freed_after() -> None:
    """Over Connect the checkpoint would run GraphFrames, and freeing it once more, with another result."""
    asked: list[str] = []

    class Result:
        @property
        def columns(self) -> list[str]:
            asked.append("columns")
            return ["id", "component"]

        def localCheckpoint(self) -> str:  # noqa: N802 - Spark's name
            asked.append("localCheckpoint")
            return "checkpointed"

        def unpersist(self) -> None:
            asked.append("unpersist")

    assert cast(Any, kept(cast(DataFrame, Result()))) == "checkpointed"
    assert asked == ["columns", "localCheckpoint", "unpersist"]


def found_by(settings: Settings, folder: Path) -> Any:
    """What a client of a Connect server with these settings finds."""
    command = [sys.executable, "-m", "engagement_platform_tests.pipelines.mutations.finding_components"]
    # The address of the server goes by the argument.
    env = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    with Supervisor(folder / "logs") as supervisor:
        supervisor.start(connect_child(settings, folder / "spark"))
        supervisor.wait_ready(WITHIN_S)
        address = f"sc://127.0.0.1:{settings.embedded.connect_port}"
        done = subprocess.run(
            [*command, address], env=env, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def on_a_free_port(folder: Path, **more: Any) -> Settings:
    (port,) = free_ports(1)
    return Settings(home=folder / "home", embedded=EmbeddedSettings(connect_port=port), **more)


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN_S)
@pytest.mark.usefixtures("spark_jars")
@pytest.mark.parametrize("conf", [{}, {RELATION_PLUGINS: GRAPH_PLUGIN}], ids=["no plugin", "a plugin without its jar"])
def test_a_connect_server_without_graphframes_is_told_what_it_lacks(conf: dict[str, str], tmp_path: Path) -> None:
    settings = on_a_free_port(tmp_path, spark=SparkSettings(conf=conf))
    assert "graphframes-connect-spark4_2.13" in found_by(settings, tmp_path)["missing"]


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN_S)
def test_a_connect_server_with_graphframes_finds_components(tmp_path: Path) -> None:
    skip_without_graphframes()
    settings = on_a_free_port(tmp_path, spark=SparkSettings(jar_folder=Settings().spark.jar_folder))
    assert found_by(settings, tmp_path) == {"components": [[1, 2, 3], [10, 11], [20]]}

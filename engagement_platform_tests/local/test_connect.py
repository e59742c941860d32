"""What the command of the embedded Connect server says: its jars, and GraphFrames' plugin where that is among them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import SecretStr

from engagement_platform.lake.session import GRAPH_PLUGIN, RELATION_PLUGINS
from engagement_platform.local.connect import connect_child
from engagement_platform.local.connect_server import CONF
from engagement_platform.settings import Settings, SparkSettings

CORE, CONNECT = "graphframes-spark4_2.13-0.12.3.jar", "graphframes-connect-spark4_2.13-0.12.3.jar"

pytestmark = [pytest.mark.usefixtures("spark_jars")]


def command(folder: Path, jars: tuple[str, ...], conf: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Names of the jars, and the confs, of a server with these jars in its folder."""
    (folder / "jars").mkdir()
    for name in jars:
        (folder / "jars" / name).write_bytes(b"")
    spark = SparkSettings(jar_folder=folder / "jars", conf=dict(conf))
    settings = Settings(lake_uri=None, home=folder / "home", spark=spark)
    child = connect_child(settings, folder / "work")
    jars_at = list(child.command).index("--jars") + 1
    return [Path(jar).name for jar in child.command[jars_at].split(",")], json.loads(child.env[CONF] or "")


@pytest.mark.parametrize(
    ("jars", "given", "expected"),
    [
        ((CORE, CONNECT), "", GRAPH_PLUGIN),
        ((CORE, CONNECT), GRAPH_PLUGIN, GRAPH_PLUGIN),
        ((CORE, CONNECT), "org.example.Own", f"org.example.Own,{GRAPH_PLUGIN}"),
        # A class that it could not load would keep the server from starting.
        ((CORE,), None, None),
    ],
)
def test_a_server_with_the_jars_of_graphframes_loads_their_plugin_and_those_of_its_configuration(
    tmp_path: Path, jars: tuple[str, ...], given: str | None, expected: str | None
) -> None:
    loaded, conf = command(tmp_path, jars, {} if given is None else {RELATION_PLUGINS: given})
    assert set(jars) <= set(loaded)
    assert conf.get(RELATION_PLUGINS) == expected


@pytest.mark.parametrize(("cores", "quick"), [(2, True), (64, False)])
def test_on_few_cores_the_server_compiles_quickly_and_own_options_come_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, quick: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    _, conf = command(tmp_path, (CORE,), {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"})
    options = conf["spark.driver.extraJavaOptions"].split()
    assert ("-XX:TieredStopAtLevel=1" in options) is quick
    assert options[-1] == "-XX:TieredStopAtLevel=4"


@pytest.mark.parametrize(("own", "kept"), [({}, "0"), ({"spark.connect.session.planCache.maxSize": "8"}, "8")])
def test_sessions_keep_no_plans_unless_that_is_asked_for(tmp_path: Path, own: dict[str, str], kept: str) -> None:
    _, conf = command(tmp_path, (CORE,), own)
    assert conf["spark.connect.session.planCache.maxSize"] == kept


def test_keys_of_object_stores_are_not_on_the_command_line_which_everybody_reads(tmp_path: Path) -> None:
    given = {"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.driver.memory": "2g"}
    spark = SparkSettings(jar_folder=tmp_path, conf={name: SecretStr(value) for name, value in given.items()})
    (tmp_path / CORE).write_bytes(b"")
    child = connect_child(Settings(lake_uri=None, home=tmp_path / "home", spark=spark), tmp_path / "work")
    assert "hunter2" not in " ".join(child.command)
    assert "spark.driver.memory=2g" in child.command, "of a JVM that runs nothing can be changed"
    assert given.items() <= json.loads(child.env[CONF] or "").items()

"""What the command of the embedded Connect server says: its jars, and GraphFrames' plugin where that is among them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import SecretStr

from engagement_platform.lake.session import GRAPH_PLUGIN, RELATION_PLUGINS
from engagement_platform.local import connect
from engagement_platform.local.connect import connect_child
from engagement_platform.local.connect_server import CONF
from engagement_platform.local.ports import LOCALHOST
from engagement_platform.settings import Settings, SparkSettings

CORE, CONNECT = "graphframes-spark4_2.13-0.12.3.jar", "graphframes-connect-spark4_2.13-0.12.3.jar"

pytestmark = [pytest.mark.usefixtures("spark_jars")]


def command(
    folder: Path, jars: tuple[str, ...], conf: Mapping[str, str], host: str = LOCALHOST
) -> tuple[list[str], dict[str, str]]:
    """Names of the jars, and the confs, of a server with these jars in its folder."""
    (folder / "jars").mkdir()
    for name in jars:
        (folder / "jars" / name).write_bytes(b"")
    spark = SparkSettings(jar_folder=folder / "jars", conf=dict(conf))
    settings = Settings(lake_uri=None, home=folder / "home", spark=spark)
    child = connect_child(settings, folder / "work", host=host)
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


@pytest.mark.parametrize("host", [LOCALHOST, "0.0.0.0"])
def test_a_server_listens_where_it_is_told_to(tmp_path: Path, host: str) -> None:
    _, conf = command(tmp_path, (CORE,), {"spark.connect.grpc.binding.address": "203.0.113.7"}, host)
    assert conf["spark.connect.grpc.binding.address"] == host


def test_run_as_a_program_it_becomes_the_server_and_listens_on_this_machine_only_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda *what: became.append(what))
    monkeypatch.setattr(os, "umask", lambda _: None)
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere:15002")
    for arguments in ([], ["--host", "0.0.0.0"]):
        monkeypatch.setattr(sys, "argv", ["connect", *arguments])
        connect.main()
    for (program, words, variables), host in zip(became, (LOCALHOST, "0.0.0.0"), strict=True):
        assert program == words[0]
        assert json.loads(variables[CONF])["spark.connect.grpc.binding.address"] == host
        # With a client's variable spark-submit refuses to start a server.
        assert "SPARK_REMOTE" not in variables
        assert variables["PYSPARK_PYTHON"] == sys.executable


def test_run_as_a_program_it_ends_with_one_sentence_where_it_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "umask", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["connect"])
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_SPARK__JAR_FOLDER", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit, match="no folder with jars"):
        connect.main()
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_SPARK__JAR_FOLDR", "nowhere")
    with pytest.raises(SystemExit, match="the nearest is jar_folder"):
        connect.main()

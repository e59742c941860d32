"""Dagster's programs on one machine: their configuration is what Dagster accepts, their ports are the settings'."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from dagster import DagsterInstance

from engagement_platform.defs import code_server
from engagement_platform.local.orchestrator import PORTS, SHARED_DRAIN, dagster_children, ui_address
from engagement_platform.pipelines.jobs import GAME_JOBS, JOB_NAMES
from engagement_platform.settings import Settings
from engagement_platform_tests.pipelines.profiles.histories import DEVICE, declared

TOP = Path(__file__).parents[2]


def test_the_instance_is_what_dagster_accepts(tmp_path: Path) -> None:
    shutil.copy(TOP / "dagster.yaml", tmp_path)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert not instance.telemetry_enabled
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1
        assert instance.run_monitoring_enabled
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        steady = len(JOB_NAMES) + len(GAME_JOBS)
        assert queue.max_concurrent_runs > steady, "what is always busy would leave no slot to checks and maintenance"


@pytest.mark.parametrize(("shared", "at_once"), [("true", 4), ("false", 8)])
def test_few_runs_go_on_at_once_where_one_drains_for_several_pipelines(
    tmp_path: Path, shared: str, at_once: int
) -> None:
    dagster_children(Settings(home=tmp_path), {SHARED_DRAIN: shared}, ())
    with DagsterInstance.from_config(str(tmp_path / "dagster")) as instance:
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        assert queue.max_concurrent_runs == at_once
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1, "the rest is as it was"
    (tmp_path / "defs").mkdir()
    (tmp_path / "defs" / "defs.yaml").write_text(declared(DEVICE, "device-changes"))
    dagster_children(Settings(home=tmp_path, defs_folder=tmp_path / "defs"), {SHARED_DRAIN: shared}, ())
    with DagsterInstance.from_config(str(tmp_path / "dagster")) as instance:
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        assert queue.max_concurrent_runs == at_once + 1, "what is declared drains beside the others"


def test_both_workspaces_name_the_same_code_location(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    dagster_children(settings, {}, ())
    generated = json.loads((tmp_path / "dagster" / "workspace.yaml").read_text())["load_from"][0]["grpc_server"]
    assert f"location_name: {generated['location_name']}\n" in (TOP / "workspace.yaml").read_text()
    assert (generated["host"], generated["location_name"]) == ("127.0.0.1", code_server.LOCATION)


def test_every_server_listens_on_this_machine_only(tmp_path: Path) -> None:
    settings = Settings.model_validate({"home": tmp_path, "embedded": {"ui_port": 3111, "code_port": 4111}})
    code, web, daemon = dagster_children(settings, {"A": "1"}, ("kafka",))
    for child, port in ((code, "4111"), (web, "3111")):
        command = list(child.command)
        assert command[command.index("--host") + 1] == "127.0.0.1"
        assert command[command.index("--port") + 1] == port
        assert child.env["A"] == "1"
        assert child.env["DAGSTER_HOME"] == str(tmp_path / "dagster")
    assert code_server.__name__ in code.command, "runs that died with the one before are canceled"
    assert daemon.after == ("code-server", "kafka")
    assert [getattr(settings.embedded, port) for port in PORTS] == [3111, 4111]
    assert ui_address(settings) == "http://127.0.0.1:3111"
    assert all(child.stage > 0 for child in (code, web, daemon)), "they stop before the services that they use"

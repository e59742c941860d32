"""What the code server of a deployment does before it listens: runs that died with the one before are ended."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from engagement_platform.defs import code_server
from engagement_platform.defs.code_server import end_abandoned_runs

STATUS = dg.DagsterRunStatus


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        yield made


def run_at(
    instance: dg.DagsterInstance,
    status: dg.DagsterRunStatus,
    location: str = code_server.LOCATION,
    *,
    sensor: bool = True,
) -> str:
    """Id of a new run, as the daemon launches one of a code location. sensor: for a sensor; else for a schedule or a
    person."""
    # As the stores of Dagster have them, for it exports no class for them.
    repository = {
        "__class__": "ExternalRepositoryOrigin",
        "repository_location_origin": {"__class__": "RegisteredRepositoryLocationOrigin", "location_name": location},
        "repository_name": dg.Definitions().get_repository_def().name,
    }
    run = json.loads(dg.serialize_value(dg.DagsterRun(job_name="a_job", run_id=str(uuid.uuid4()))))
    run["external_pipeline_origin"] = {
        "__class__": "ExternalPipelineOrigin",
        "external_repository_origin": repository,
        "pipeline_name": "a_job",
    }
    run["tags"] = {**run["tags"], **({code_server.SENSOR: "some_sensor"} if sensor else {})}
    run["status"] = json.loads(dg.serialize_value(status))
    return instance.add_run(dg.deserialize_value(json.dumps(run), dg.DagsterRun)).run_id


def status_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


@pytest.mark.parametrize(
    ("status", "sensor", "after"),
    [
        *((status, True, STATUS.CANCELED) for status in (STATUS.STARTING, STATUS.STARTED, STATUS.CANCELING)),
        # Nobody launches it again: of these there is an alert, or Dagster does, where their tags ask for that.
        (STATUS.STARTING, False, STATUS.FAILURE),
        (STATUS.STARTED, False, STATUS.FAILURE),
        (STATUS.CANCELING, False, STATUS.CANCELED),
        *((status, sensor, status) for status in (STATUS.QUEUED, STATUS.SUCCESS, STATUS.FAILURE)
          for sensor in (True, False)),
    ],
)  # fmt: skip
def test_runs_in_progress_are_canceled_where_a_sensor_launches_new_ones_and_have_failed_otherwise(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus, sensor: bool, after: dg.DagsterRunStatus
) -> None:
    run_id = run_at(instance, status, sensor=sensor)
    assert end_abandoned_runs(instance) == (after is not status)
    assert status_of(instance, run_id) is after


def test_runs_of_another_code_location_go_on(instance: dg.DagsterInstance) -> None:
    run_id = run_at(instance, STATUS.STARTED, "another")
    assert end_abandoned_runs(instance) == 0
    assert status_of(instance, run_id) is STATUS.STARTED


def test_runs_that_a_launcher_started_elsewhere_go_on(tmp_path: Path) -> None:
    launcher = {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"}
    with dg.instance_for_test(temp_dir=str(tmp_path), overrides={"run_launcher": launcher}) as instance:
        run_id = run_at(instance, STATUS.STARTED)
        assert end_abandoned_runs(instance) == 0
        assert status_of(instance, run_id) is STATUS.STARTED


def test_it_then_becomes_the_code_server(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: became.append([program, *words]))
    monkeypatch.setattr(sys, "argv", ["code_server", "--host", "0.0.0.0", "--port", "4000"])
    run_id = run_at(instance, STATUS.STARTED)
    code_server.main()
    assert status_of(instance, run_id) is STATUS.CANCELED
    assert capsys.readouterr().out.startswith("Runs that ended with the code server: 1.")
    [(program, *words)] = became
    assert program == words[0] == sys.executable
    assert words[1:5] == ["-m", "dagster", "api", "grpc"]
    assert words[-4:] == ["--host", "0.0.0.0", "--port", "4000"]

"""The example of a job in a container: S3 and ECS are emulated, the container is a process, messages go through S3."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import boto3
import dagster as dg
import pytest
from botocore.validate import ParamValidator
from dagster_aws.s3 import S3Resource

from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.defs.conftest import Home, home
from engagement_platform_tests.defs.test_mutation import engagement
from examples.ecs import definitions

__all__ = ["home"]


class Containers:
    """A client of ECS for one task, whose container is a process here; calls are checked as AWS describes them."""

    def __init__(self) -> None:
        self.meta = boto3.client("ecs").meta
        self._process: subprocess.Popen[bytes] | None = None

    def _task(self, **more: object) -> dict[str, Any]:
        return {"taskArn": "arn/one", "clusterArn": "arn/default", "containers": [{"name": "platform", **more}]}

    def _check(self, operation: str, params: dict[str, Any]) -> None:
        shape = self.meta.service_model.operation_model(operation).input_shape
        assert not ParamValidator().validate(params, shape).has_errors()

    def describe_task_definition(self, **params: Any) -> Any:
        """One container, with the platform's image."""
        self._check("DescribeTaskDefinition", params)
        return {"taskDefinition": {"containerDefinitions": [{"name": "platform"}]}}

    def run_task(self, **params: Any) -> Any:
        """Start the container with the variables that the caller gives it."""
        self._check("RunTask", params)
        [container] = params["overrides"]["containerOverrides"]
        given = {one["name"]: one["value"] for one in container["environment"]}
        self._process = subprocess.Popen([sys.executable, "-m", "examples.ecs"], env={**os.environ, **given})
        return {"tasks": [self._task()]}

    def get_waiter(self, name: str) -> Containers:
        """Of the only kind that is asked for."""
        assert name == "tasks_stopped"
        return self

    def wait(self, **_: Any) -> None:
        """Until the container has ended."""
        assert self._process is not None
        self._process.wait(timeout=300)

    def describe_tasks(self, **params: Any) -> Any:
        """With the exit status of the container."""
        self._check("DescribeTasks", params)
        assert self._process is not None
        return {"tasks": [self._task(runtimeId="one", exitCode=self._process.returncode)]}


@pytest.fixture
def bucket(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    name, where = f"pipes-{uuid4().hex[:8]}", {"LocationConstraint": "eu-central-1"}
    moto.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration=where)
    return name


def run(bucket: str, job: str, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """One run of the job, to its end."""
    task = {"job": job, "subnets": ["subnet-1"]}
    defined = definitions(bucket, Containers(), S3Resource()).resolve_job_def("ingest_engagements_on_ecs")
    return defined.execute_in_process(
        run_config={"ops": {"drain_on_ecs": {"config": task}}}, instance=instance, raise_on_error=False
    )


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def test_a_container_that_fails_fails_the_run(bucket: str, instance: dg.DagsterInstance) -> None:
    failed = run(bucket, "ingest-engagement", instance)
    assert not failed.success
    [event] = [event for event in failed.all_events if event.is_step_failure]
    assert "non-zero exit code" in str(event.step_failure_data.error)
    told = [str(record) for record in instance.all_logs(failed.run_id)]
    assert any("There is no job called 'ingest-engagement'" in each for each in told), told


@pytest.mark.slow
@pytest.mark.broker
def test_batches_of_a_container_are_materializations_of_the_run(bucket: str, home: Home) -> None:
    home.broker.produce(home.engagements, [(0, None, engagement(number)) for number in range(1, 6)])
    assert run(bucket, "ingest-engagements", home.instance).success
    assert sum(int(str(event.metadata["landed"].value)) for event in home.events("engagement/data")) == 5

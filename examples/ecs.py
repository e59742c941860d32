"""A job of the platform in a container of Amazon ECS, launched and followed by Dagster Pipes.

`definitions` belongs into the code location; the container runs `python -m examples.ecs`, so both have this file.
Context and messages go through a bucket, under the role of each side. On a lake at s3a:// the container is a thin
client as every run is: its task definition sets ENGAGEMENT_PLATFORM_SPARK__REMOTE and the stores (docs/deploy.md).
"""

# No `from __future__ import annotations` beside Dagster's decorators.

from typing import Any

import boto3
import dagster as dg
from dagster_aws.pipes import PipesECSClient, PipesS3ContextInjector, PipesS3MessageReader
from dagster_aws.s3 import S3Resource
from dagster_pipes import PipesS3ContextLoader, PipesS3MessageWriter, open_dagster_pipes

from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, run_job
from engagement_platform.settings import Settings


class Task(dg.Config):
    """What runs, and where."""

    job: str = INGEST_ENGAGEMENTS
    task_definition: str = "engagement-platform"
    cluster: str = "default"
    subnets: list[str]


# The pool of the platform's own runs of this job, so that two do not wait for one lease.
@dg.op(pool="engagement_data")
def drain_on_ecs(context: dg.OpExecutionContext, config: Task, ecs: dg.ResourceParam[PipesECSClient]) -> None:
    """Run a job until nothing waits; each batch is a materialization. Raises RuntimeError where the container fails."""
    done = ecs.run(
        context=context,
        run_task_params={
            "taskDefinition": config.task_definition,
            "cluster": config.cluster,
            "launchType": "FARGATE",
            "networkConfiguration": {"awsvpcConfiguration": {"subnets": config.subnets}},
        },
        extras={"job": config.job},
        waiter_config={"Delay": 6, "MaxAttempts": 10_000},
    )
    for batch in done.get_custom_messages():
        context.log_event(dg.AssetMaterialization(["engagement", "data"], metadata=batch))


@dg.job(executor_def=dg.in_process_executor)
def ingest_engagements_on_ecs() -> None:
    """Drain new engagements in a container."""
    drain_on_ecs()


def definitions(bucket: str, ecs: Any, s3: S3Resource) -> dg.Definitions:
    """The job with its resources. bucket: of context and messages; ecs: a client of boto3."""
    client = s3.get_client()
    pipes = PipesECSClient(
        client=ecs,
        context_injector=PipesS3ContextInjector(bucket=bucket, client=client),
        message_reader=PipesS3MessageReader(bucket=bucket, client=client, include_stdio_in_messages=True),
    )
    return dg.Definitions(jobs=[ingest_engagements_on_ecs], resources={"ecs": pipes})


def main() -> None:
    """In the container: run the job that the context names and report each batch."""
    s3 = boto3.client("s3")
    with open_dagster_pipes(context_loader=PipesS3ContextLoader(s3), message_writer=PipesS3MessageWriter(s3)) as pipes:
        for report in run_job(pipes.get_extra("job"), Settings(), until_idle=True):
            pipes.report_custom_message(report.as_json())


if __name__ == "__main__":
    main()

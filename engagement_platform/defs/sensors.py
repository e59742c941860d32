"""What sensors and schedules are made of: whether a run is launched for what waits, and why not.

They ask and never consume; how far a job is, is in the Checkpoint Store. No run keys: one that was launched is skipped
for ever, even when its run failed.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from engagement_platform.defs.backlog import Waiting, waiting
from engagement_platform.defs.evaluations import report_news, selected
from engagement_platform.defs.ingestion import IngestConfig
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.pool_yield import BACKLOG, GOING
from engagement_platform.defs.specs import DAYS
from engagement_platform.engine.model import JobState
from engagement_platform.errors import PlatformError
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka_errors import BrokerUnavailable, TopicMissing

IN_PROGRESS = (dg.DagsterRunStatus.QUEUED, *GOING)
LONGEST_PAUSE_S = 300.0
"""A run that fails again and again is tried less and less often: after 0, 10, 20, 40, … seconds, at most these."""

Answer = dg.RunRequest | dg.SkipReason | dg.SensorResult
Look = Callable[[dg.SensorEvaluationContext, Settings], Answer]
Results = Callable[[Waiting], Sequence[dg.AssetCheckResult]]

TRIED_AGAIN = dg.RetryPolicy(max_retries=2, delay=30, backoff=dg.Backoff.EXPONENTIAL)
"""Of maintenance and moves: a lease that another run holds, or a store that is away, is there again in a minute."""


def is_automatic() -> bool:
    """Whether sensors and schedules are loaded as running."""
    return Settings().dagster.automation == "running"


def sensor(name: str, look: Look, description: str, *, job: str | None = None, every: int = 30) -> dg.SensorDefinition:
    """A sensor under the settings, loaded as `dagster.automation` says."""
    running = is_automatic()

    @dg.sensor(
        name=name,
        job_name=job,
        minimum_interval_seconds=every,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description=description,
    )
    def evaluate(context: dg.SensorEvaluationContext, platform: Platform) -> Answer:
        return look(context, platform.settings())

    return evaluate


def schedule(
    job: str,
    cron: str,
    description: str,
    *,
    name: str | None = None,
    on: bool = True,
    look: Callable[[dg.ScheduleEvaluationContext, Settings], dg.RunRequest | dg.SkipReason] | None = None,
) -> dg.ScheduleDefinition:
    """A schedule in UTC under the settings, loaded as `dagster.automation` says; stopped in any case without `on`.

    look: by default a run each time.
    """
    running = on and is_automatic()

    @dg.schedule(
        name=name or f"{job}_schedule",
        job_name=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED,
        description=description,
    )
    def evaluate(context: dg.ScheduleEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
        return look(context, platform.settings()) if look else dg.RunRequest()

    return evaluate


@dataclass(frozen=True)
class Recent:
    """What the instance knows of the latest runs of a job. Unix times."""

    under_way: str | None = None
    """Status of a run that has not ended."""
    failures: int = 0
    """How many of the last runs failed, counted back from the newest."""
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    """Of the newest one."""


def recent_runs(instance: dg.DagsterInstance, job: str, assets: dg.AssetsDefinition | None = None) -> Recent:
    """Runs of a job, and those that materialize its assets, if it has any, in another way (by hand, in a backfill)."""
    ours = assets.keys if assets else set()
    for run in instance.get_runs(dg.RunsFilter(statuses=list(IN_PROGRESS)), limit=100):
        if run.job_name == job or (run.asset_selection and ours & run.asset_selection):
            return Recent(run.status.value)
    newest = instance.get_run_records(dg.RunsFilter(job_name=job), limit=10)
    failures = 0
    for record in newest:
        if record.dagster_run.status is not dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    if not newest:
        return Recent()
    return Recent(None, failures, newest[0].create_timestamp.timestamp(), newest[0].start_time, newest[0].end_time)


def why_not(backlog: int, recent: Recent, now: float) -> str | None:
    """Why no run is launched now; None when one is."""
    if backlog == 0:
        return "Nothing is waiting."
    if recent.under_way:
        return f"{backlog:,} messages are waiting; a run is {recent.under_way} already."
    # None after the first failure.
    pause = 0.0 if recent.failures < 2 else min(LONGEST_PAUSE_S, 10.0 * 2 ** (recent.failures - 2))
    left = (recent.ended or 0.0) + pause - now
    if recent.failures and left > 0:
        return f"{backlog:,} messages are waiting; the last {recent.failures} runs failed, next try in {left:.0f} s."
    return None


def too_soon(recent: Recent, now: float, pause_s: float) -> str | None:
    """Why no run is launched, whatever has changed, until so long after the last one; None when one may be."""
    if recent.under_way:
        return f"A run is {recent.under_way} already."
    left = (recent.ended or 0.0) + pause_s - now
    return f"The next look is in {left:.0f} s." if recent.ended and left > 0 else None


def backlog_sensor(
    name: str,
    job: str,
    backlog: Callable[[Waiting], int],
    description: str,
    *,
    assets: dg.AssetsDefinition | None = None,
    checks: Results | None = None,
    unknown: type[PlatformError] | tuple[type[PlatformError], ...] = (BrokerUnavailable, TopicMissing),
    every: int = 5,
) -> dg.SensorDefinition:
    """A sensor that launches a drain run of today's partition when something waits and none is under way.

    job: as the stores know it. assets: None for a job of an op. checks: results that it reports beside. unknown: errors
    of the source after which the tick is skipped. After any other, such as offsets that expired, a run is launched: it
    fails with the sentence that says so, and failed runs are alerts.
    """
    dagster_job = job.replace("-", "_")

    def look(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
        looked, lost = waiting(settings), None
        if checks is not None:
            report_news(context, checks(looked))
        try:
            waits = backlog(looked)
        except unknown as error:
            return dg.SkipReason(str(error))
        except PlatformError as error:
            waits, lost = 1, str(error)
        if reason := why_not(waits, recent_runs(context.instance, dagster_job, assets), time.time()):
            return dg.SkipReason(f"{reason} {lost}" if lost else reason)
        tags = {BACKLOG: "unknown" if lost else str(waits)}
        if assets is None:
            return dg.RunRequest(tags=tags)
        config = dg.RunConfig(ops={assets.node_def.name: IngestConfig(mode="drain")})
        return dg.RunRequest(run_config=config, partition_key=todays_partition(), tags=tags)

    return sensor(name, look, description, job=dagster_job, every=every)


def todays_partition() -> str | None:
    """None on a machine whose clock is before the first partition: it still ingests, without one."""
    today = datetime.now(UTC).date().isoformat()
    return today if DAYS.has_partition_key(today) else None


def unfinished_sensor(name: str, job: str, stored: str, description: str) -> dg.SensorDefinition:
    """A sensor that launches a run when the last batch of a job was interrupted. stored: its name in the stores."""

    def look(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
        last = waiting(settings).checkpoint(stored)
        if last is None or last.state is JobState.SUCCEEDED:
            return dg.SkipReason("Nothing is unfinished.")
        reason = why_not(1, recent_runs(context.instance, job), time.time())
        return dg.SkipReason(reason) if reason else dg.RunRequest()

    return sensor(name, look, description, job=job, every=15)


def check_on_demand(
    name: str, checks: Mapping[tuple[dg.AssetKey, str], str], results: Results
) -> dg.AssetChecksDefinition:
    """Checks that need no Spark, as a person launches them; a sensor reports the same without a run.

    checks: (asset, check) -> what it says.
    """
    specs = [dg.AssetCheckSpec(check, asset=asset, description=says) for (asset, check), says in checks.items()]

    @dg.multi_asset_check(name=name, can_subset=True, specs=specs)
    def evaluate(context: dg.AssetCheckExecutionContext, platform: Platform) -> Any:
        """From logs, stores and broker; a sensor reports the same without a run."""
        yield from selected(context, results(waiting(platform.settings())))

    return evaluate


def report_sensor(name: str, results: Results, description: str) -> dg.SensorDefinition:
    """A sensor that reports checks without a run."""

    def look(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
        return dg.SkipReason(f"Reported {report_news(context, results(waiting(settings)))} checks.")

    return sensor(name, look, description)

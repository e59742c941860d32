"""What sensors are made of: whether a run is launched for what waits, and why not.

They ask and never consume; how far a job is, is in the Checkpoint Store. No run keys: one that was launched is skipped
for ever, even when its run failed.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from engagement_platform.defs.backlog import Waiting, waiting
from engagement_platform.defs.evaluations import report_news
from engagement_platform.defs.ingestion import IngestConfig
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.pool_yield import BACKLOG, GOING
from engagement_platform.defs.specs import DAYS
from engagement_platform.engine.model import JobState
from engagement_platform.errors import PlatformError
from engagement_platform.sources.kafka_errors import BrokerUnavailable, TopicMissing

IN_PROGRESS = (dg.DagsterRunStatus.QUEUED, *GOING)
# A run that fails again and again is tried less and less often: 0, 10, 20, 40, … seconds, at most these.
LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True)
class Recent:
    """What the instance knows of the latest runs of a job."""

    under_way: str | None
    """Status of a run that has not ended."""
    failures: int
    """How many of the last runs failed, counted back from the newest."""
    ended: float | None
    """When the newest one ended, Unix time."""


def recent_runs(instance: dg.DagsterInstance, job: str, assets: dg.AssetsDefinition | None = None) -> Recent:
    """Runs of a job, and those that materialize its assets, if it has any, in another way (by hand, in a backfill)."""
    ours = assets.keys if assets else set()
    for run in instance.get_runs(dg.RunsFilter(statuses=list(IN_PROGRESS)), limit=100):
        if run.job_name == job or (run.asset_selection and ours & run.asset_selection):
            return Recent(run.status.value, 0, None)
    newest = instance.get_run_records(dg.RunsFilter(job_name=job), limit=10)
    failures = 0
    for record in newest:
        if record.dagster_run.status is not dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    return Recent(None, failures, newest[0].end_time if newest else None)


def pause_s(failures: int) -> float:
    """Seconds to leave between a failed run and the next: none after the first, then 10, 20, 40, … up to 300.

    >>> [pause_s(failures) for failures in (0, 1, 2, 3, 4, 9)]
    [0.0, 0.0, 10.0, 20.0, 40.0, 300.0]
    """
    return 0.0 if failures < 2 else min(LONGEST_PAUSE_S, 10.0 * 2 ** (failures - 2))


def why_not(backlog: int, recent: Recent, now: float) -> str | None:
    """Why no run is launched now; None when one is."""
    if backlog == 0:
        return "Nothing is waiting."
    if recent.under_way:
        return f"{backlog:,} messages are waiting; a run is {recent.under_way} already."
    left = (recent.ended or 0.0) + pause_s(recent.failures) - now
    if recent.failures and left > 0:
        return f"{backlog:,} messages are waiting; the last {recent.failures} runs failed, next try in {left:.0f} s."
    return None


def backlog_sensor(
    name: str,
    job: str,
    backlog: Callable[[Waiting], int],
    description: str,
    *,
    assets: dg.AssetsDefinition | None = None,
    checks: Callable[[Waiting], Sequence[dg.AssetCheckResult]] | None = None,
    unknown: type[PlatformError] | tuple[type[PlatformError], ...] = (BrokerUnavailable, TopicMissing),
    every: int = 5,
) -> dg.SensorDefinition:
    """A sensor that launches a drain run of today's partition when something waits and none is under way.

    job: as the stores know it. assets: None for a job of an op. checks: results that it reports beside. unknown: errors
    of the source after which the tick is skipped. After any other, such as offsets that expired, a run is launched: it
    fails with the sentence that says so, and failed runs are alerts.
    """
    dagster_job = job.replace("-", "_")

    @dg.sensor(
        name=name,
        job_name=dagster_job,
        minimum_interval_seconds=every,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )
    def look(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
        looked, lost = waiting(platform.settings()), None
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

    return look


def todays_partition() -> str | None:
    """None on a machine whose clock is before the first partition: it still ingests, without one."""
    today = datetime.now(UTC).date().isoformat()
    return today if DAYS.has_partition_key(today) else None


def unfinished_sensor(name: str, job: dg.JobDefinition, stored: str, description: str) -> dg.SensorDefinition:
    """A sensor that launches a run when the last batch of a job was interrupted. stored: its name in the stores."""

    @dg.sensor(
        name=name,
        job=job,
        minimum_interval_seconds=15,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )
    def look(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
        last = waiting(platform.settings()).checkpoint(stored)
        if last is None or last.state is JobState.SUCCEEDED:
            return dg.SkipReason("Nothing is unfinished.")
        reason = why_not(1, recent_runs(context.instance, job.name), time.time())
        return dg.SkipReason(reason) if reason else dg.RunRequest()

    return look

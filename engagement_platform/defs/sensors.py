"""What sensors and schedules are made of: whether a run is launched for what waits, and why not.

They ask and never consume; how far a job is, is in the Checkpoint Store. No run keys: one that was launched is skipped
for ever, even when its run failed.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import Any

import dagster as dg

from engagement_platform.defs.backlog import Waiting, waiting
from engagement_platform.defs.code_server import REPOSITORY
from engagement_platform.defs.evaluations import report_news, selected
from engagement_platform.defs.ingestion import NOT_THERE, Drain, IngestConfig, Ingestion
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.pool_yield import BACKLOG, GOING
from engagement_platform.defs.specs import ingestion_days
from engagement_platform.engine.drain import LONGEST_PAUSE_S, pause_after
from engagement_platform.engine.model import JobState
from engagement_platform.errors import PlatformError
from engagement_platform.settings import Settings

IN_PROGRESS = (dg.DagsterRunStatus.QUEUED, *GOING)
Answer = dg.RunRequest | dg.SkipReason | dg.SensorResult
Look = Callable[[dg.SensorEvaluationContext, Settings], Answer]
Results = Callable[[Waiting], Sequence[dg.AssetCheckResult]]

TRIED_AGAIN = dg.RetryPolicy(max_retries=2, delay=30, backoff=dg.Backoff.EXPONENTIAL)
"""Of maintenance and moves: a lease that another run holds, or a store that is away, is there again in a minute."""
RETRIED = {"dagster/max_retries": "1"}
"""Tag of jobs that are launched by the clock: a run that died is launched once more."""


def own_runs(context: dg.SensorEvaluationContext) -> Mapping[str, str] | None:
    """The tag of the runs of this code location, since an instance may have others; None where it has no name."""
    origin = context.code_location_origin
    return {REPOSITORY: f"{context.repository_name}@{origin.location_name}"} if origin else None


def is_automatic() -> bool:
    """Whether sensors and schedules are loaded as running."""
    return Settings().dagster.automation == "running"


def is_shared() -> bool:
    """Whether one run drains for all pipelines that ship (`shared_drain`), rather than one for each."""
    return Settings().dagster.shared_drain


def sensor(
    name: str, look: Look, description: str, *, job: str | None = None, every: int = 60, on: bool = True
) -> dg.SensorDefinition:
    """A sensor under the settings, loaded as `dagster.automation` says; stopped in any case without `on`.

    every: seconds. A look costs Dagster's processes about 0.4 s of one core, whatever comes of it.
    """
    running = on and is_automatic()

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
    succeeded: float | None = None
    """When the newest one was created that succeeded."""

    @property
    def is_undone(self) -> bool:
        """Whether the newest one did not end well: it failed, or was canceled."""
        return self.created is not None and self.created != self.succeeded


def recent_runs(instance: dg.DagsterInstance, job: str, assets: dg.AssetsDefinition | None = None) -> Recent:
    """Runs of a job, and those that materialize its assets, if it has any, in another way (by hand, in a backfill)."""
    ours = assets.keys if assets else set()
    for run in instance.get_runs(dg.RunsFilter(statuses=list(IN_PROGRESS)), limit=100):
        if run.job_name == job or (run.asset_selection and ours & run.asset_selection):
            return Recent(run.status.value)
    records = instance.get_run_records(dg.RunsFilter(job_name=job), limit=10)
    if not records:
        return Recent()
    failed = list(takewhile(lambda record: record.dagster_run.status is dg.DagsterRunStatus.FAILURE, records))
    last = records[0]
    done = (r for r in records if r.dagster_run.status is dg.DagsterRunStatus.SUCCESS)
    succeeded = next((record.create_timestamp.timestamp() for record in done), None)
    return Recent(None, len(failed), last.create_timestamp.timestamp(), last.start_time, last.end_time, succeeded)


def why_not(backlog: int, recent: Recent, now: float, longest_pause_s: float = LONGEST_PAUSE_S) -> str | None:
    """Why no run is launched now; None when one is. After the first failure at once, then ever more slowly."""
    if backlog == 0:
        return "Nothing is waiting."
    if recent.under_way:
        return f"{backlog:,} messages are waiting; a run is {recent.under_way} already."
    left = (recent.ended or 0.0) + pause_after(recent.failures - 1, longest_pause_s) - now
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
    name: str, drain: Drain, what: str, *, in_shared: bool = False, every: int = 5
) -> dg.SensorDefinition:
    """A sensor that launches a drain run, of today's partition where there are any, when something waits.

    what: what waits and where, for people. in_shared: `shared_drain` drains for this job, too; where that is on, this
    sensor is loaded as stopped.
    """

    def look(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
        waits, lost = waiting_for(partial(drain.backlog, waiting(settings)), drain.unknown)
        if waits is None:
            return dg.SkipReason(lost)
        assets = drain.assets if isinstance(drain, Ingestion) else None
        if reason := why_not(waits, recent_runs(context.instance, drain.dagster_job, assets), time.time()):
            return dg.SkipReason(f"{reason} {lost or ''}".strip())
        tags = {BACKLOG: "unknown" if lost else str(waits)}
        if assets is None:
            return dg.RunRequest(tags=tags)
        config = dg.RunConfig(ops={assets.node_def.name: IngestConfig(mode="drain")})
        partition = todays_partition() if drain.tables.by_day else None
        return dg.RunRequest(run_config=config, partition_key=partition, tags=tags)

    description = f"Launches a drain run when {what} and none is under way."
    return sensor(name, look, description, job=drain.dagster_job, every=every, on=not (in_shared and is_shared()))


def waiting_for(
    backlog: Callable[[], int], unknown: tuple[type[PlatformError], ...] = NOT_THERE
) -> tuple[int | None, str | None]:
    """How much waits, None where the source cannot say (it raises an error of these), and why it cannot.

    What was to be read next is lost: one, since the run says so.
    """
    try:
        return backlog(), None
    except unknown as error:
        return None, str(error)
    except PlatformError as error:
        return 1, str(error)


def todays_partition() -> str | None:
    """None on a machine whose clock is before the first partition: it still ingests, without one."""
    today = datetime.now(UTC).date().isoformat()
    return today if ingestion_days().has_partition_key(today) else None


def unfinished_sensor(name: str, job: str, stored: str, description: str) -> dg.SensorDefinition:
    """A sensor that launches a run when the last batch of a job was interrupted. stored: its name in the stores."""

    def look(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
        last = waiting(settings).checkpoint(stored)
        if last is None or last.state is JobState.SUCCEEDED:
            return dg.SkipReason("Nothing is unfinished.")
        if holder := waiting(settings).stores.leases.holder(f"job/{stored}"):
            # Such as the command that began it: a run would only wait for it, and fail.
            return dg.SkipReason(f"It is under way: {holder}.")
        reason = why_not(1, recent_runs(context.instance, job), time.time())
        return dg.SkipReason(reason) if reason else dg.RunRequest()

    return sensor(name, look, description, job=job)


def watched(
    name: str,
    checks: Mapping[tuple[dg.AssetKey, str], str],
    results: Results,
    sensor_name: str,
    description: str,
) -> dg.Definitions:
    """Checks that need no Spark: a sensor reports them without a run, and a person may evaluate them in one.

    checks: (asset, check) -> what it says. description: of the sensor.
    """
    specs = [dg.AssetCheckSpec(check, asset=asset, description=says) for (asset, check), says in checks.items()]

    @dg.multi_asset_check(name=name, can_subset=True, specs=specs)
    def evaluate(context: dg.AssetCheckExecutionContext, platform: Platform) -> Any:
        """From logs, stores and broker; a sensor reports the same without a run."""
        yield from selected(context, results(waiting(platform.settings())))

    def look(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
        return dg.SkipReason(f"Reported {report_news(context, results(waiting(settings)))} checks.")

    return dg.Definitions(asset_checks=[evaluate], sensors=[sensor(sensor_name, look, description)])

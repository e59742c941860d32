"""Sensors: launch a drain run where messages wait, check the tables after new batches, report freshness.

They ask and never consume; how far a job is, is in the Checkpoint Store. No run keys: one that was launched is skipped
for ever, even when its run failed.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from engagement_platform.defs.checks import verify_engagements, watched
from engagement_platform.defs.engagement import (
    IngestConfig,
    engagement_tables,
    ingest_engagements,
    ingest_mutation_requests,
    mutation_request_table,
)
from engagement_platform.defs.evaluations import report
from engagement_platform.defs.giving_way import BACKLOG, GOING
from engagement_platform.defs.mutation import apply_mutations
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.specs import DAYS
from engagement_platform.defs.waiting import Waiting, waiting
from engagement_platform.errors import PlatformError
from engagement_platform.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.sources.kafka_errors import BrokerUnavailable, TopicMissing

IN_PROGRESS = (dg.DagsterRunStatus.QUEUED, *GOING)
# A run that fails again and again is tried less and less often: 0, 10, 20, 40, … seconds, at most these.
LONGEST_PAUSE_S = 300.0

VERIFY_AT_MOST_EVERY = timedelta(minutes=2)
# Verification reads whole tables, so it takes longer as they grow; at most a tenth of the time goes into it.
VERIFY_PAUSE_PER_DURATION = 10

# State changes are reported at once, unchanged ones this often, so that the check's history stays readable.
REPORT_AGAIN_AFTER = timedelta(minutes=5)


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


def drain_request(
    job: str,
    assets: dg.AssetsDefinition,
    looked: Waiting,
    context: dg.SensorEvaluationContext,
    topic: str | None = None,
) -> dg.RunRequest | dg.SkipReason:
    """One look at a job: a drain run of today's partition, or why not. topic: None is the one the settings name.

    Where the topic has lost what was to be read next, a run is launched: it fails with the sentence that says so,
    and failed runs are what people are told of.
    """
    lost = None
    try:
        backlog = looked.backlog(job, topic)
    except (BrokerUnavailable, TopicMissing) as error:
        return dg.SkipReason(str(error))
    except PlatformError as error:
        backlog, lost = 1, str(error)
    return run_request(job, assets, backlog, context, lost)


def run_request(
    job: str,
    assets: dg.AssetsDefinition | None,
    backlog: int,
    context: dg.SensorEvaluationContext,
    lost: str | None = None,
) -> dg.RunRequest | dg.SkipReason:
    """A drain run of today's partition for what waits, or why not. assets: None for a job of an op. lost: why it will
    fail."""
    dagster_job = job.replace("-", "_")
    if reason := why_not(backlog, recent_runs(context.instance, dagster_job, assets), time.time()):
        return dg.SkipReason(f"{reason} {lost}" if lost else reason)
    if assets is None:
        return dg.RunRequest(tags={BACKLOG: str(backlog)})
    today = datetime.now(UTC).date().isoformat()
    return dg.RunRequest(
        run_config=dg.RunConfig(ops={assets.node_def.name: IngestConfig(mode="drain")}),
        # A machine whose clock is before the first partition still ingests, without one.
        partition_key=today if DAYS.has_partition_key(today) else None,
        tags={BACKLOG: "unknown" if lost else str(backlog)},
    )


@dg.sensor(
    job=ingest_engagements, minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Launches a drain run when engagements wait on the broker and none is under way.",
)  # fmt: skip
def engagements_backlog(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
    """Engagements on the broker against the checkpoint."""
    return drain_request(INGEST_ENGAGEMENTS, engagement_tables, waiting(platform.settings()), context)


@dg.sensor(
    job=ingest_mutation_requests, minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Launches a drain run when mutation requests wait on the broker and none is under way.",
)  # fmt: skip
def mutation_requests_backlog(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
    """Mutation requests on the broker against the checkpoint."""
    return drain_request(INGEST_MUTATION_REQUESTS, mutation_request_table, waiting(platform.settings()), context)


@dg.sensor(
    job=apply_mutations, minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Launches a drain run when published mutation requests wait to be announced and none is under way.",
)  # fmt: skip
def mutations_backlog(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
    """The newest published request against the newest that is announced."""
    return run_request(APPLY_MUTATIONS, None, waiting(platform.settings()).backlog(APPLY_MUTATIONS), context)


@dataclass(frozen=True)
class Verified:
    """The newest verification run: Unix times of its creation, start and end; None where that did not happen yet."""

    created: float
    started: float | None
    ended: float | None


def verification_due(last_batch: float | None, verified: Verified | None, now: float) -> str | None:
    """Why no verification is launched now; None when one is. last_batch: when the newest batch finished."""
    if last_batch is None:
        return "No batch has finished yet."
    if verified is None:
        return None
    if verified.ended is None:
        return "A verification is under way."
    if last_batch < verified.created:
        return "No batch has finished since the last verification."
    took = verified.ended - (verified.started or verified.ended)
    pause = max(VERIFY_AT_MOST_EVERY.total_seconds(), took * VERIFY_PAUSE_PER_DURATION)
    left = verified.ended + pause - now
    return f"The last verification took {took:.0f} s; the next begins in {left:.0f} s." if left > 0 else None


def last_verified(instance: dg.DagsterInstance) -> Verified | None:
    """The newest run of verify_engagements."""
    for record in instance.get_run_records(dg.RunsFilter(job_name=verify_engagements.name), limit=1):
        return Verified(record.create_timestamp.timestamp(), record.start_time, record.end_time)
    return None


@dg.sensor(
    job=verify_engagements, minimum_interval_seconds=15, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Checks the tables against the topic after new batches: at most every two minutes, never when idle.",
)  # fmt: skip
def verify_after_batches(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
    """New batches of engagements or mutations since the last verification."""
    history = waiting(platform.settings()).stores.checkpoints.history
    records = [record for job in (INGEST_ENGAGEMENTS, APPLY_MUTATIONS) for record in history(job, limit=3)]
    finished = max((r.finished_ts.timestamp() for r in records if r.finished_ts and not r.reason), default=None)
    reason = verification_due(finished, last_verified(context.instance), time.time())
    return dg.SkipReason(reason) if reason else dg.RunRequest()


def to_report(
    results: Sequence[dg.AssetCheckResult], cursor: str | None, now: float
) -> tuple[list[dg.AssetCheckResult], str]:
    """Which results are news, and the cursor that remembers what was reported: check -> [passed, Unix time]."""
    reported: dict[str, tuple[bool, float]] = json.loads(cursor or "{}")
    news = []
    for result in results:
        name = f"{result.asset_key.to_user_string() if result.asset_key else ''}:{result.check_name}"
        passed, at = reported.get(name, (None, 0.0))
        if passed != result.passed or now - at >= REPORT_AGAIN_AFTER.total_seconds():
            news.append(result)
            reported[name] = (result.passed, now)
    return news, json.dumps(reported)


@dg.sensor(
    minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reports the checks that need no run: freshness, and the share of rejected records.",
)  # fmt: skip
def watch(context: dg.SensorEvaluationContext, platform: Platform) -> dg.SkipReason:
    """Freshness and quarantine, from broker and stores."""
    news, cursor = to_report(watched(waiting(platform.settings())), context.cursor, time.time())
    report(context.instance, news)
    context.update_cursor(cursor)
    return dg.SkipReason(f"Reported {len(news)} checks." if news else "Nothing has changed.")


def definitions() -> dg.Definitions:
    """The sensors of this module."""
    return dg.Definitions(
        sensors=[engagements_backlog, mutation_requests_backlog, mutations_backlog, verify_after_batches, watch]
    )

"""The job that moves waiting aliases into the Data Table and purges deleted rows, and when it is launched.

What it does is `mutation/rematerialize`. Every ten minutes there is a look; a batch that was left unfinished is taken
up at once, for nothing else may begin on the same tables before it is done.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from engagement_platform.defs.mutated import hidden_rows
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.sensors import recent_runs, why_not
from engagement_platform.defs.telling import REMATERIALIZED_TABLES, tell, told_of
from engagement_platform.defs.waiting import waiting
from engagement_platform.engine.job import BatchReport, Told
from engagement_platform.engine.model import Checkpoint, JobState
from engagement_platform.mutation.rematerialize import PURGE_EVERY, REMATERIALIZE_ALIASES, reaches
from engagement_platform.pipelines.mutations.purge_horizon import purge_horizon
from engagement_platform.settings import Settings
from engagement_platform.status import pending_organizations, unread_from

# Its own: while one of its batches is unfinished, runs of the other pools wait for it.
PENDING_POOL = "engagement_pending"


def moved_batches(opened: Opened, told: Told, name: str = REMATERIALIZE_ALIASES) -> Iterator[tuple[date, BatchReport]]:
    """Batch after batch until nothing waits, each with the day on which it was planned."""
    from engagement_platform.engine.drain import DrainPolicy, drain
    from engagement_platform.jobs import build_job

    job = build_job(name, opened.spark, opened.settings, opened.stores, told)
    once = DrainPolicy(linger=timedelta(0), max_duration=opened.settings.drain.max_duration)
    for report in drain(job, once):
        yield report.manifest.ingestion_ts.date(), report


@dg.op(pool=PENDING_POOL)
def rematerialize(context: dg.OpExecutionContext, platform: Platform) -> None:
    """Organizations whose aliases wait, moved into the Data Table, a bounded number in each batch."""
    with platform.open(REMATERIALIZE_ALIASES) as opened:
        for _report in tell(context, REMATERIALIZED_TABLES, opened, moved_batches(opened, told_of(context))):
            pass


@dg.job
def rematerialize_aliases() -> None:
    """Move the bytes of conversions and deletions that so far only the view shows. Readers see no difference."""
    rematerialize()


@dataclass(frozen=True)
class ToMove:
    """What a run would find."""

    pending: int
    """Organizations whose aliases the Data Table does not show."""
    hidden: int
    """Deleted rows that it still has."""
    purge_due: bool
    """A day's deletions more have become final since the last purge, and there are hidden rows."""
    unfinished: bool
    """The last batch has not succeeded."""


def to_move(settings: Settings, last: Checkpoint | None, now: datetime) -> ToMove:
    """From the logs of two tables, the last batch, and the topic of requests where a purge may be due.

    Statistics do not say since when a row is hidden, so a purge is due once a day as long as there is any.
    """
    hidden = hidden_rows(settings)
    done = (unread_from(last) or {}).get("purge_before", 0)
    due = datetime.fromtimestamp(done / 1_000_000, UTC) + PURGE_EVERY
    from engagement_platform.jobs import unread_requests

    # The topic is asked only when a purge is due if everything on it has been read.
    may_be_due = hidden > 0 and reaches(purge_horizon(now, (), settings.mutation), due)
    unread = unread_requests(settings, waiting(settings).stores) if may_be_due else ()
    return ToMove(
        pending_organizations(settings),
        hidden,
        may_be_due and reaches(purge_horizon(now, unread, settings.mutation), due),
        last is not None and last.state is not JobState.SUCCEEDED,
    )


def why_not_now(found: ToMove, under_way: str | None) -> str | None:
    """Why no run is launched; None when one is."""
    if not (found.pending or found.unfinished or found.purge_due):
        return f"No aliases wait, and no purge is due; {found.hidden:,} deleted rows rest."
    return f"A run is {under_way} already." if under_way else None


def rematerialization(instance: dg.DagsterInstance, settings: Settings) -> dg.RunRequest | dg.SkipReason:
    """One look: a run, or why not."""
    found = to_move(settings, waiting(settings).checkpoint(REMATERIALIZE_ALIASES), datetime.now(UTC))
    recent = recent_runs(instance, rematerialize_aliases.name)
    reason = why_not_now(found, recent.under_way)
    return dg.SkipReason(reason) if reason else dg.RunRequest()


@dg.schedule(
    job=rematerialize_aliases, cron_schedule="*/10 * * * *", execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Moves aliases that wait into the Data Table; skipped when none do and nothing is to be purged.",
)  # fmt: skip
def rematerialize_every_ten_minutes(
    context: dg.ScheduleEvaluationContext, platform: Platform
) -> dg.RunRequest | dg.SkipReason:
    """Organizations that wait, and deleted rows, from the tables' logs."""
    return rematerialization(context.instance, platform.settings())


@dg.sensor(
    job=rematerialize_aliases, minimum_interval_seconds=15, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Launches a run that finishes what an interrupted one began: until then other jobs wait.",
)  # fmt: skip
def rematerialization_unfinished(
    context: dg.SensorEvaluationContext, platform: Platform
) -> dg.RunRequest | dg.SkipReason:
    """The state of the last batch."""
    last = waiting(platform.settings()).checkpoint(REMATERIALIZE_ALIASES)
    if last is None or last.state is JobState.SUCCEEDED:
        return dg.SkipReason("No batch is unfinished.")
    recent = recent_runs(context.instance, rematerialize_aliases.name)
    reason = why_not(1, recent, time.time())
    return dg.SkipReason(reason) if reason else dg.RunRequest()


def definitions() -> dg.Definitions:
    """Job, schedule and sensor of this module."""
    return dg.Definitions(
        jobs=[rematerialize_aliases],
        schedules=[rematerialize_every_ten_minutes],
        sensors=[rematerialization_unfinished],
    )

"""The job that moves pending changes into the Data Table and the mapping and purges deleted rows, and its sensor.

What it does is `pipelines/mutations/move`. Readers of the views see pending changes before; who reads the tables past
the views sees them at most `mutation.max_pending` later.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from engagement_platform.defs.mutated import hidden_rows
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.sensors import recent_runs, why_not
from engagement_platform.defs.telling import REMATERIALIZED_TABLES, callbacks_of, tell
from engagement_platform.defs.waiting import Waiting, waiting
from engagement_platform.engine.job import BatchReport, Callbacks
from engagement_platform.engine.model import BatchRecord, JobState
from engagement_platform.pipelines.mutations.move import PURGE_EVERY, REMATERIALIZE_ALIASES, purge_horizon, reaches
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.sources.lateness import from_microseconds
from engagement_platform.status import pending_changes

# Its own: while one of its batches is unfinished, runs of the other pools wait for it.
PENDING_POOL = "engagement_pending"

PRESSING_ROWS = 500_000
"""From so many pending rows on they are moved at once: the view looks each of them up (a guess)."""


def moved_batches(opened: Opened, callbacks: Callbacks) -> Iterator[tuple[date, BatchReport]]:
    """Batch after batch until nothing pends, each with the day on which it was planned."""
    from engagement_platform.engine.drain import DrainPolicy, drain
    from engagement_platform.jobs import build_job

    job = build_job(REMATERIALIZE_ALIASES, opened.spark, opened.settings, opened.stores, callbacks)
    once = DrainPolicy(idle_timeout=timedelta(0), max_duration=opened.settings.drain.max_duration)
    for report in drain(job, once):
        yield report.manifest.ingestion_ts.date(), report


@dg.op(pool=PENDING_POOL)
def rematerialize(context: dg.OpExecutionContext, platform: Platform) -> None:
    """All pending changes, moved into the Data Table and the mapping."""
    with platform.open(REMATERIALIZE_ALIASES) as opened:
        for _report in tell(context, REMATERIALIZED_TABLES, opened, moved_batches(opened, callbacks_of(context))):
            pass


@dg.job
def rematerialize_aliases() -> None:
    """Move conversions, deletions, patches, newer versions and names into their tables. Readers see no difference."""
    rematerialize()


@dataclass(frozen=True)
class ToMove:
    """What a run would find."""

    pending: int
    """Rows that are not moved, at least."""
    age: timedelta | None
    """Of the oldest pending change; None: nothing pends, or a change of unknown age does."""
    purge_due: bool
    """A day's deletions more have become final since the last purge, and there are hidden rows."""
    unfinished: bool
    """The last batch has not succeeded."""


def to_move(looked: Waiting, now: datetime) -> ToMove:
    """From the logs of the tables, the stores, and the topic of requests where a purge may be due."""
    last = looked.checkpoint(REMATERIALIZE_ALIASES)
    pending = pending_changes(looked.settings, looked.stores)
    return ToMove(
        pending.rows,
        None if pending.since is None else now - pending.since,
        purge_due(looked, last, now),
        last is not None and last.state is not JobState.SUCCEEDED,
    )


def purge_due(looked: Waiting, last: BatchRecord | None, now: datetime) -> bool:
    """Whether rows are to be deleted for good.

    Statistics do not say since when a row is hidden, so a purge is due once a day as long as there is any and all
    requests are announced. The Data Table's log and the topic are asked only when a purge is due if everything on the
    topic has been read.
    """
    from engagement_platform.jobs import unread_requests

    settings, done = looked.given, 0 if last is None else last.unread_from.get("purge_before", 0)
    due = from_microseconds(done) + PURGE_EVERY
    if not reaches(purge_horizon(now, (), settings.mutation), due) or not hidden_rows(settings):
        return False
    if looked.backlog(APPLY_MUTATIONS):
        return False
    return reaches(purge_horizon(now, unread_requests(settings, looked.stores), settings.mutation), due)


def why_move(found: ToMove, max_pending: timedelta) -> str | None:
    """Why changes are to be moved now; None: they can wait. Exactly max_pending is long enough."""
    if found.unfinished:
        return "The last batch is unfinished."
    if found.pending > PRESSING_ROWS:
        return f"{found.pending:,} rows pend, more than {PRESSING_ROWS:,}."
    if found.pending and (found.age is None or found.age >= max_pending):
        return f"{found.pending:,} rows pend for mutation.max_pending ({max_pending}) or longer."
    return "Deleted rows can be purged." if found.purge_due else None


def move_request(
    instance: dg.DagsterInstance, looked: Waiting, now: datetime | None = None
) -> dg.RunRequest | dg.SkipReason:
    """One look: a run, or why not."""
    found = to_move(looked, now or datetime.now(UTC))
    why = why_move(found, looked.given.mutation.max_pending)
    if why is None:
        return dg.SkipReason(f"{found.pending:,} rows pend, and no purge is due.")
    no = why_not(max(1, found.pending), recent_runs(instance, rematerialize_aliases.name), time.time())
    return dg.SkipReason(f"{why} {no}") if no else dg.RunRequest()


@dg.sensor(
    job=rematerialize_aliases, minimum_interval_seconds=15, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Moves pending changes when the oldest is older than mutation.max_pending, when very many pend, when "
    "deleted rows can be purged, and when a run was interrupted: until that is finished other jobs wait.",
)  # fmt: skip
def changes_pending(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
    """What pends, from logs and stores."""
    return move_request(context.instance, waiting(platform.settings()))


def definitions() -> dg.Definitions:
    """Job and sensor of this module."""
    return dg.Definitions(jobs=[rematerialize_aliases], sensors=[changes_pending])

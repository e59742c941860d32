"""The jobs that announce what accepted requests change, and that move pending changes into the tables; their sensors.

`pipelines/mutations` says what a batch does. Readers of the views see pending changes at once; direct readers of the
tables see them at most `mutation.max_pending` later.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import dagster as dg

from engagement_platform.defs.backlog import Waiting, waiting
from engagement_platform.defs.batches import Tables
from engagement_platform.defs.ingestion import UNBOUNDED, Drain
from engagement_platform.defs.mutation_checks import hidden_rows
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.sensors import TRIED_AGAIN, backlog_sensor, recent_runs, sensor, why_not
from engagement_platform.defs.specs import DATA_TABLE
from engagement_platform.engine.model import BatchRecord, JobState
from engagement_platform.lake.engagement import CHANGESET, MAPPING, NOTIFICATION
from engagement_platform.pipelines.jobs import unread_requests
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES, purge_before
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.status import pending_changes

ANNOUNCE_EVERY = timedelta(seconds=30)
"""Batches of engagements and announcements exclude each other, and one of 800 requests takes as long as one of 5,000
engagements (8 s on 2 cores): with one after each, engagements wait for every other batch."""

PRESSING_ROWS = 500_000
"""From so many pending rows on they are moved at once: the view looks each of them up (a guess)."""

ANNOUNCEMENTS = Drain(
    job=APPLY_MUTATIONS,
    # Not the pool of the engagements: a pool is held for a whole drain, in which no request would be announced. The
    # lease of the Data Table is taken batch by batch, first come first served, so two drains side by side take turns;
    # the log of the run says for whom it waits.
    pool="engagement_mutation",
    tables=Tables({}, {NOTIFICATION: "notification"}, always=True),
    interval=ANNOUNCE_EVERY,
)
MOVES = Drain(
    job=REMATERIALIZE_ALIASES,
    # Its own: while one of its batches is unfinished, runs of the other pools wait for it.
    pool="engagement_pending",
    tables=Tables(
        {}, {DATA_TABLE: "base", MAPPING: "base", CHANGESET: "changeset"}, figures={MAPPING: ()}, always=True
    ),
)


@dg.op(pool=ANNOUNCEMENTS.pool)
def announce(context: dg.OpExecutionContext, platform: Platform) -> None:
    """A notification for each engagement that published requests change for readers, batch after batch."""
    ANNOUNCEMENTS.run(context, platform)


@dg.job
def apply_mutations() -> None:
    """Announce what new conversions, deletions and updates change. Readers of the view see them before that."""
    announce()


@dg.op(pool=MOVES.pool, retry_policy=TRIED_AGAIN)
def rematerialize(context: dg.OpExecutionContext, platform: Platform) -> None:
    """All changes that pend when it begins, moved into the Data Table and the mapping."""
    # What comes meanwhile waits for the next run: moved at once, each half minute's changes would write the tables anew
    # for as long as requests come, and batches of engagements would wait for each of these.
    MOVES.run(context, platform, once=True)


@dg.job(tags=UNBOUNDED)
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
    """A day's deletions more have become final since the last purge, there are hidden rows, and nothing pends: a purge
    needs a moment in which all requests are announced, and where requests keep coming each run for its sake alone would
    find that moment gone. While changes pend it is left to their move."""
    unfinished: bool
    """The last batch has not succeeded."""


def to_move(looked: Waiting, now: datetime) -> ToMove:
    """From the logs of the tables, the stores, and the topic of requests where a purge may be due."""
    last = looked.checkpoint(REMATERIALIZE_ALIASES)
    pending = pending_changes(looked.settings, looked.stores)
    return ToMove(
        pending.rows,
        None if pending.since is None else now - pending.since,
        not pending.rows and purge_due(looked, last, now),
        last is not None and last.state is not JobState.SUCCEEDED,
    )


def purge_due(looked: Waiting, last: BatchRecord | None, now: datetime) -> bool:
    """Whether rows are to be deleted for good.

    Statistics do not say since when a row is hidden, so a purge is due once a day as long as there is any and all
    requests are announced. The Data Table's log and the topic are asked only when a purge is due if everything on the
    topic has been read.
    """
    settings, done = looked.given, 0 if last is None else last.unread_from.get("purge_before", 0)
    unread = partial(unread_requests, settings, looked.stores)

    def ready() -> bool:
        return bool(hidden_rows(settings)) and not looked.backlog(APPLY_MUTATIONS)

    return purge_before(done, now, unread, settings.mutation, ready) != done


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
    """One look at logs and stores: a run, or why not."""
    found = to_move(looked, now or datetime.now(UTC))
    why = why_move(found, looked.given.mutation.max_pending)
    if why is None:
        return dg.SkipReason(f"{found.pending:,} rows pend, and no purge is due.")
    no = why_not(max(1, found.pending), recent_runs(instance, rematerialize_aliases.name), time.time())
    return dg.SkipReason(f"{why} {no}") if no else dg.RunRequest()


def definitions() -> dg.Definitions:
    mutations_backlog = backlog_sensor(
        "mutations_backlog", ANNOUNCEMENTS, "published mutation requests wait to be announced", in_shared=True
    )
    pending = sensor(
        "changes_pending",
        lambda context, settings: move_request(context.instance, waiting(settings)),
        "Moves pending changes when the oldest is older than mutation.max_pending, when very many pend, when deleted "
        "rows can be purged, and when a run was interrupted: until that is finished other jobs wait.",
        job=rematerialize_aliases.name,
        every=30,
    )
    return dg.Definitions(jobs=[apply_mutations, rematerialize_aliases], sensors=[mutations_backlog, pending])

"""Whether another run wants the pool that this one holds, or one of the jobs that it makes batches of.

A run that drains would hold it for as long as messages come, up to `drain.max_duration`, while a backfill, a redrive or
a replay that was launched by hand is queued. The sensor launches the next drain when that one has ended.
"""

import time
from collections.abc import Callable, Collection, Mapping

import dagster as dg

from engagement_platform.defs.materialization_events import Context

LOOK_EVERY_S = 2.0
BACKLOG = "engagement_platform/backlog"
"""Tag of the runs that sensors launch to drain. They give way to what people launched, not to each other: two jobs of
one pool would take turns by runs of a single batch."""

GOING = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
"""Of runs that hold what they need; those that wait for it are QUEUED."""


def wanted_by_others(context: Context, jobs: Mapping[str, str]) -> Callable[[], Collection[str]]:
    """A question for between two batches: which jobs of a shared run another run wants, under way or in the queue.

    jobs: pool -> job that it is for. A query of the instance every few seconds.
    """
    looked, wanted = 0.0, frozenset[str]()

    def ask() -> Collection[str]:
        nonlocal looked, wanted
        if time.monotonic() - looked < LOOK_EVERY_S:
            return wanted
        looked = time.monotonic()
        others = context.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED, *GOING]))
        pools = {pool: run for run in others if run.run_id != context.run.run_id for pool in _pools(run)}
        now = frozenset(job for pool, job in jobs.items() if pool in pools)
        for pool, job in jobs.items():
            if job in now - wanted:
                run = pools[pool]
                context.log.info(f"Leaves {job} to run {run.run_id[:8]} of {run.job_name}, which wants {pool}.")
        wanted = now
        return wanted

    return ask


def gives_way(context: Context) -> Callable[[], bool]:
    """A question for between two batches; it costs a query of the instance every few seconds.

    Where Dagster knows no pools of this run, as in one that was not launched by way of the queue, the answer is no.
    """
    ours = _pools(context.run)
    looked = time.monotonic()

    def held_by_others() -> set[str]:
        """Who waits for these as well would not begin if this run ended."""
        going = context.instance.get_runs(dg.RunsFilter(statuses=list(GOING)))
        return {pool for run in going if run.run_id != context.run.run_id for pool in _pools(run)}

    def another_waits() -> bool:
        nonlocal looked
        if not ours or time.monotonic() - looked < LOOK_EVERY_S:
            return False
        looked = time.monotonic()
        for run in context.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])):
            if BACKLOG not in run.tags and (shared := ours & _pools(run)) and not _pools(run) & held_by_others():
                pool = ", ".join(sorted(shared))
                context.log.info(f"Ends here: run {run.run_id[:8]} of {run.job_name} waits in the queue for {pool}.")
                return True
        return False

    return another_waits


def _pools(run: dg.DagsterRun) -> set[str]:
    known = run.run_op_concurrency
    return set(known.all_pools or ()) if known else set()

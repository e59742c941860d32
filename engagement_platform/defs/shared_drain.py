"""One run that drains for the pipelines of engagements and profiles, in one process with one Spark session, by turns.

On one machine a run of its own for each pipeline costs a process and a Spark session each, and their batches slow each
other down. Games keep a run of their own: a batch of them takes as long as six of the others, which would be late by
that. `dagster.shared_drain` chooses which sensors are loaded as running; both kinds of runs can be launched from the
UI, and the shared one leaves a pipeline to any other run that wants it.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

import time
from functools import partial

import dagster as dg

from engagement_platform.defs.backlog import waiting
from engagement_platform.defs.engagement import ENGAGEMENTS, REQUESTS
from engagement_platform.defs.entity import PROFILES
from engagement_platform.defs.ingestion import Drain, drain_policy
from engagement_platform.defs.materialization_events import Recorder, callbacks_of
from engagement_platform.defs.mutation import ANNOUNCEMENTS
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.pool_yield import BACKLOG, wanted_by_others
from engagement_platform.defs.sensors import Answer, is_shared, recent_runs, sensor, waiting_for, why_not
from engagement_platform.engine.drain import drain_in_turns
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka_errors import TopicMissing

JOB = "drain_pipelines"
LONGEST_PAUSE_S = 30.0
"""Between two runs, however many failed: most of the pipelines were well, and one that fails rests within the run."""


def drains(settings: Settings) -> list[Drain]:
    """The pipelines that it serves and that are on."""
    on = settings.pipelines
    return [
        *((ENGAGEMENTS, REQUESTS, ANNOUNCEMENTS) if on.engagements else ()),
        *((PROFILES.changes,) if on.profiles else ()),
    ]


@dg.op(pool=JOB)
def drain_by_turns(context: dg.OpExecutionContext, platform: Platform) -> None:
    """Batch after batch of all pipelines that are on, always of the one that is due for the longest."""
    with platform.open(JOB.replace("_", "-")) as opened:
        served = drains(opened.settings)
        recorders = {one.job: Recorder(context, one.tables, opened, one.result) for one in served}
        jobs = [(one.build(opened, callbacks_of(context)), one.interval) for one in served]

        def failed(name: str, error: Exception) -> None:
            context.log.error(f"{name} failed, is tried again later, and the others go on: {error}")
            recorders[name].evaluate(str(error))

        def recovered(name: str) -> None:
            recorders[name].evaluate(anew=True)

        wanted = wanted_by_others(context, {one.pool: one.job for one in served})
        try:
            policy = drain_policy(context, opened)
            batches = drain_in_turns(
                jobs, policy, absent=(TopicMissing,), wanted=wanted, on_failure=failed, on_recovery=recovered
            )
            for name, report in batches:
                recorders[name].add(report.manifest.ingestion_ts.date(), report)
        finally:
            for recorder in recorders.values():
                recorder.record()
                recorder.evaluate()


@dg.job(name=JOB, executor_def=dg.in_process_executor)
def drain_pipelines() -> None:
    """Drain engagements, mutation requests, announcements and changes of profiles by turns, in one process."""
    drain_by_turns()


def _look(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
    recent = recent_runs(context.instance, JOB)
    if recent.under_way:
        return dg.SkipReason(f"A run is {recent.under_way} already.")
    reasons = []
    for drain in drains(settings):
        waits, lost = waiting_for(partial(drain.backlog, waiting(settings)), drain.unknown)
        reason = lost if waits is None else why_not(waits, recent, time.time(), longest_pause_s=LONGEST_PAUSE_S)
        if reason is None:
            return dg.RunRequest(tags={BACKLOG: "unknown" if lost else str(waits)})
        reasons.append(f"{drain.job}: {reason}")
    return dg.SkipReason(" ".join(reasons) or "No pipeline is on.")


def definitions() -> dg.Definitions:
    backlog = sensor(
        "pipelines_backlog",
        _look,
        "Launches a run that drains engagements, requests, announcements and changes of profiles when one of them "
        "waits and none is under way.",
        job=JOB,
        every=10,
        on=is_shared(),
    )
    return dg.Definitions(jobs=[drain_pipelines], sensors=[backlog])

"""How far the jobs are, from the stores, the broker and the requests' table: backlog, totals, freshness. No Spark."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import BatchRecord, JobState, Offsets
from engagement_platform.jobs import (
    GAME_JOBS,
    INGEST_ENGAGEMENTS,
    INGEST_MUTATION_REQUESTS,
    JOB_NAMES,
    REMATERIALIZE_PROFILE,
    TOPIC_JOBS,
    declared_jobs,
    job_names,
    open_stores,
    topic_of,
)
from engagement_platform.lake.engagement import MUTATION_REQUEST
from engagement_platform.pipelines import snapshot as lake_snapshot
from engagement_platform.pipelines.backlog import moved_up_to, oldest_above, pending_rows, rows_above
from engagement_platform.pipelines.declarations.declared import DeclaredEntity
from engagement_platform.pipelines.games.backlog import backlog as objects_waiting
from engagement_platform.pipelines.games.feed import Feed, shipped
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS, announced
from engagement_platform.pipelines.profiles.entity import Entity, profile
from engagement_platform.pipelines.profiles.rematerialize import job_name as rematerialize_name
from engagement_platform.pipelines.profiles.snapshot import pending_rows as pending_of_entity
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.kafka_errors import TopicMissing

WARMING_BATCHES = 2
"""Of a job after a start: the first pays for loading classes (about 10 s), the second for what waited meanwhile."""


@dataclass(frozen=True)
class StatusSnapshot:
    """Totals since the stores exist, counted from finished batches.

    landed to backlog: of the jobs that read a topic, in messages. A request is a message once, when it lands; what
    becomes of it then is counted apart.
    """

    landed: int = 0
    duplicates: int = 0
    quarantined: int = 0
    batches: int = 0
    backlog: int = 0
    failing: str | None = None
    """Which job's last batch failed, and why; None when all is well."""
    mutation_batches: int = 0
    requests_applied: int = 0
    """Accepted requests that are announced."""
    requests_waiting: int = 0
    """Accepted requests, which readers see, that are not announced yet."""


@dataclass(frozen=True)
class StatusSummary:
    """Totals of the batches that finished at or after a moment; freshness in seconds from produced to committed."""

    landed: int = 0
    duplicates: int = 0
    quarantined: int = 0
    batches: int = 0
    files: int = 0
    freshness_p50_s: float | None = None
    freshness_p95_s: float | None = None
    freshness_running_p95_s: float | None = None
    """The same without each job's first WARMING_BATCHES: those of a JVM that has just started."""
    mutation_batches: int = 0
    requests_applied: int = 0
    rows_mutated: int = 0
    """Rows that look different to readers: inserted, updated or deleted by requests."""
    mutated_p50_s: float | None = None
    """Seconds from a request's production to the end of the batch that announced it; readers see it earlier."""
    mutated_p95_s: float | None = None


@dataclass(frozen=True)
class Waiting:
    """Rows that a job has yet to take."""

    rows: int = 0
    """At least, as `rows_above` counts; 0: nothing waits."""
    since: datetime | None = None
    """When the oldest batch that may have them was planned, UTC; None: nothing waits, or only what a redrive or a
    re-reading brought."""


@dataclass(frozen=True)
class JobStatus:
    """One job: its last batch, what waits, and why it failed if it did."""

    job: str
    checkpoint: BatchRecord | None
    backlog: int
    batches: int
    totals: Mapping[str, int]
    waiting_since: datetime | None = None
    """Since when at least the oldest of it waits, where that is in tables of engagements; None: nothing does."""

    @property
    def failure(self) -> str | None:
        """Why the last batch failed; None while it runs and when it succeeded."""
        failed = self.checkpoint is not None and self.checkpoint.state is JobState.FAILED
        return self.checkpoint.reason if failed and self.checkpoint else None


def unread_from(checkpoint: BatchRecord | None) -> Offsets | None:
    """Where what no finished batch has read begins; None before the first batch."""
    return None if checkpoint is None else checkpoint.unread_from


def unannounced_requests(settings: Settings, stores: Stores) -> Waiting:
    """Accepted requests that `apply-mutations` has yet to announce. Reads a log, no rows."""
    mark = announced(stores)
    rows = rows_above(settings.lake, {MUTATION_REQUEST: mark})
    return Waiting(rows, oldest_above(stores, (INGEST_MUTATION_REQUESTS,), mark)) if rows else Waiting()


def pending_changes(settings: Settings, stores: Stores) -> Waiting:
    """Row images, requests and names that `rematerialize-aliases` has yet to move; readers see them. Reads logs."""
    at = lake_snapshot.snapshot(settings.lake)
    rows = pending_rows(settings.lake, at)
    if not rows:
        return Waiting()
    return Waiting(rows, oldest_above(stores, (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS), moved_up_to(at)))


def in_tables(job: str, settings: Settings, stores: Stores) -> Waiting | None:
    """What the engagement tables have for a job; None: it reads something else."""
    if job == APPLY_MUTATIONS:
        return unannounced_requests(settings, stores)
    return pending_changes(settings, stores) if job == REMATERIALIZE_ALIASES else None


def backlog(job: str, settings: Settings, checkpoint: BatchRecord | None) -> int:
    """What no finished batch has read: messages on the broker, or rows of the engagement tables, see `in_tables`.

    For rematerialization of an entity changes that wait; of game events, messages of their queue. A batch under way
    counts as waiting. Raises what the source raises: no broker, no topic, offsets lost. A topic of profile changes need
    not be there.
    """
    if (waits := in_tables(job, settings, open_stores(settings))) is not None:
        return waits.rows
    if (feed := _feed(job, settings)) is not None:
        return objects_waiting(feed.settings(settings), checkpoint)
    if (entity := _rematerialized(job, settings)) is not None:
        return pending_of_entity(settings.lake, entity)
    start = unread_from(checkpoint)
    try:
        return KafkaSource(topic_of(job, settings), settings.kafka).backlog(start)
    except TopicMissing:
        # Who has no profiles need not make a topic for them, and one that is declared may come; one that was read
        # before is missed.
        if job in (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS) or checkpoint is not None:
            raise
        return 0


def _feed(job: str, settings: Settings) -> Feed | None:
    """The feed whose queue the job reads; None for other jobs."""
    if job in GAME_JOBS:
        return shipped(settings)
    declared = None if job in JOB_NAMES else declared_jobs(settings).get(job)
    return declared if isinstance(declared, Feed) else None


def _rematerialized(job: str, settings: Settings) -> Entity | None:
    """The entity whose changes the job moves into its base; None for other jobs."""
    if job == REMATERIALIZE_PROFILE:
        return profile(settings)
    declared = None if job in JOB_NAMES else declared_jobs(settings).get(job)
    if isinstance(declared, DeclaredEntity) and job == rematerialize_name(declared.entity):
        return declared.entity
    return None


def snapshot(settings: Settings) -> StatusSnapshot:
    """Totals and backlog of all jobs now."""
    every = job_statuses(settings)
    jobs = [job for job in every if job.job in TOPIC_JOBS]
    mutations = next(job for job in every if job.job == APPLY_MUTATIONS)
    totals: Counter[str] = Counter()
    for job in jobs:
        totals.update(job.totals)
    return StatusSnapshot(
        landed=totals["landed"],
        duplicates=totals["duplicates"],
        quarantined=totals["quarantined"],
        batches=sum(job.batches for job in jobs),
        backlog=sum(job.backlog for job in jobs),
        failing=next((f"{job.job} failed: {why}" for job in every if (why := job.failure)), None),
        mutation_batches=mutations.batches,
        requests_applied=mutations.totals.get("rows_in", 0),
        requests_waiting=mutations.backlog,
    )


def job_statuses(settings: Settings) -> list[JobStatus]:
    """Every job that goes on for ever, those of games where there is a queue, in the order in which messages travel.

    So nothing is overlooked that moves on meanwhile: requests are counted in their table after those on the topic.
    """
    stores = open_stores(settings)
    return [_job_status(job, settings, stores) for job in job_names(settings)]


def _job_status(job: str, settings: Settings, stores: Stores) -> JobStatus:
    checkpoint = stores.checkpoints.latest(job)
    done = succeeded(stores.checkpoints.history(job))
    waits = in_tables(job, settings, stores) or Waiting(backlog(job, settings, checkpoint))
    return JobStatus(job, checkpoint, waits.rows, len(done), summed(done), waits.since)


def summary(settings: Settings, since: datetime) -> StatusSummary:
    """Totals and freshness of what finished since a moment."""
    stores = open_stores(settings)

    def finished(job: str) -> list[BatchRecord]:
        done = succeeded(stores.checkpoints.history(job))
        return [record for record in done if record.finished_ts is not None and record.finished_ts >= since]

    by_job = {job: finished(job) for job in TOPIC_JOBS}
    done = [record for records in by_job.values() for record in records]
    running = [
        record
        for records in by_job.values()
        for record in sorted(records, key=lambda record: record.manifest.batch_id)[WARMING_BATCHES:]
    ]
    totals = summed(done)
    p50, p95 = freshness_quantiles(done, (0.5, 0.95))
    (running_p95,) = freshness_quantiles(running, (0.95,))
    applied = finished(APPLY_MUTATIONS)
    mutated = summed(applied)
    mutated_p50, mutated_p95 = mutated_quantiles(by_job[INGEST_MUTATION_REQUESTS], applied, (0.5, 0.95))
    return StatusSummary(
        landed=totals["landed"],
        duplicates=totals["duplicates"],
        quarantined=totals["quarantined"],
        batches=len(done),
        files=totals["files"] + mutated["files"],
        freshness_p50_s=p50,
        freshness_p95_s=p95,
        freshness_running_p95_s=running_p95,
        mutation_batches=len(applied),
        requests_applied=mutated["rows_in"],
        rows_mutated=sum(mutated[kind] for kind in ("inserted", "updated", "deleted")),
        mutated_p50_s=mutated_p50,
        mutated_p95_s=mutated_p95,
    )


def succeeded(records: Iterable[BatchRecord]) -> list[BatchRecord]:
    """Those that finished."""
    return [record for record in records if record.state is JobState.SUCCEEDED]


def summed(records: Iterable[BatchRecord]) -> Counter[str]:
    """Their counts added up; a count nobody had is 0."""
    totals: Counter[str] = Counter()
    for record in records:
        totals.update(record.counts)
    return totals


def freshness_quantiles(records: Sequence[BatchRecord], shares: Sequence[float]) -> list[float | None]:
    """Seconds from a message's production to the end of its batch, at these shares of all messages.

    Each batch knows 21 quantiles of its messages' production times; each stands for a part of the batch's messages.
    Off by at most the distance of two neighbouring quantiles. All None when nothing was read.
    """
    return _quantiles(((record, record.finished_ts) for record in records), shares)


def mutated_quantiles(
    landed: Iterable[BatchRecord], applied: Iterable[BatchRecord], shares: Sequence[float]
) -> list[float | None]:
    """Seconds from a request's production to the end of the batch that announced it, at these shares of the requests.

    landed: batches that accepted requests; applied: batches that announced them. Requests that are not announced yet
    are left out.
    """
    done = sorted((r.manifest.end["sequence"], r.finished_ts) for r in applied if r.finished_ts is not None)
    reached = [sequence for sequence, _ in done]

    def told(record: BatchRecord) -> datetime | None:
        place = bisect_left(reached, record.manifest.sequence)
        return done[place][1] if place < len(done) else None

    return _quantiles(((record, told(record)) for record in landed), shares)


def _quantiles(finished: Iterable[tuple[BatchRecord, datetime | None]], shares: Sequence[float]) -> list[float | None]:
    weighted: list[tuple[float, float]] = []
    for record, moment in finished:
        produced = record.details.get("produced_quantiles_ms")
        if not isinstance(produced, list) or not produced or moment is None:
            continue
        weight = record.counts.get("rows_in", 0) / len(produced)
        weighted += [((moment.timestamp() * 1000 - float(at)) / 1000, weight) for at in produced]
    weighted.sort()
    total = sum(weight for _, weight in weighted)
    return [_at_share(weighted, share * total) for share in shares]


def _at_share(weighted: Sequence[tuple[float, float]], reach: float) -> float | None:
    passed = 0.0
    for value, weight in weighted:
        passed += weight
        if passed >= reach:
            return value
    return weighted[-1][0] if weighted else None

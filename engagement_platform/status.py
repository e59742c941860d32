"""How far the jobs are, from the stores and the broker: backlog, totals, freshness. No Spark, no JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from engagement_platform.jobs import TOPIC_JOBS, open_stores, topic_of
from engagement_platform.microbatch.job import Stores
from engagement_platform.microbatch.model import Checkpoint, JobState
from engagement_platform.microbatch.stores import BatchRecord
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource

WARMING_BATCHES = 2
"""Of a job after a start: the first pays for loading classes (about 10 s), the second for what waited meanwhile."""


@dataclass(frozen=True)
class StatusSnapshot:
    """Totals over all jobs since their stores exist, counted from finished batches; backlog in messages."""

    landed: int
    duplicates: int
    quarantined: int
    batches: int
    backlog: int
    failing: str | None
    """Which job's last batch failed, and why; None when all is well."""


@dataclass(frozen=True)
class StatusSummary:
    """Totals of the batches that finished at or after a moment; freshness in seconds from produced to committed."""

    landed: int
    duplicates: int
    quarantined: int
    batches: int
    files: int
    freshness_p50_s: float | None
    freshness_p95_s: float | None
    freshness_running_p95_s: float | None
    """The same without each job's first WARMING_BATCHES: those of a JVM that has just started."""


@dataclass(frozen=True)
class JobStatus:
    """One job: its last batch, what waits, and why it failed if it did."""

    job: str
    checkpoint: Checkpoint | None
    backlog: int
    batches: int
    totals: Mapping[str, int]

    @property
    def failure(self) -> str | None:
        """Why the last batch failed; None while it runs and when it succeeded."""
        failed = self.checkpoint is not None and self.checkpoint.state is JobState.FAILED
        return self.checkpoint.reason if failed and self.checkpoint else None


def backlog(job: str, settings: Settings, checkpoint: Checkpoint | None) -> int:
    """Messages on the broker that no finished batch has read. A batch under way counts as waiting.

    Raises what the source raises: no broker, no topic, offsets lost.
    """
    unfinished = checkpoint is not None and checkpoint.state is not JobState.SUCCEEDED
    source = KafkaSource(topic_of(job, settings), settings.kafka)
    if checkpoint is None:
        return source.backlog(None)
    return source.backlog(checkpoint.manifest.start if unfinished else checkpoint.manifest.end)


def snapshot(settings: Settings) -> StatusSnapshot:
    """Totals and backlog of all jobs now."""
    jobs = job_statuses(settings)
    totals: Counter[str] = Counter()
    for job in jobs:
        totals.update(job.totals)
    return StatusSnapshot(
        landed=totals["landed"],
        duplicates=totals["duplicates"],
        quarantined=totals["quarantined"],
        batches=sum(job.batches for job in jobs),
        backlog=sum(job.backlog for job in jobs),
        failing=next((f"{job.job} failed: {why}" for job in jobs if (why := job.failure)), None),
    )


def job_statuses(settings: Settings) -> list[JobStatus]:
    """Every job that reads a topic."""
    stores = open_stores(settings)
    return [_job_status(job, settings, stores) for job in TOPIC_JOBS]


def _job_status(job: str, settings: Settings, stores: Stores) -> JobStatus:
    checkpoint = stores.checkpoints.latest(job)
    done = succeeded(stores.checkpoints.history(job))
    return JobStatus(job, checkpoint, backlog(job, settings, checkpoint), len(done), summed(done))


def summary(settings: Settings, since: datetime) -> StatusSummary:
    """Totals and freshness of what finished since a moment."""
    stores = open_stores(settings)
    by_job = [
        [
            record
            for record in succeeded(stores.checkpoints.history(job))
            if record.finished_ts is not None and record.finished_ts >= since
        ]
        for job in TOPIC_JOBS
    ]
    done = [record for records in by_job for record in records]
    running = [
        record
        for records in by_job
        for record in sorted(records, key=lambda record: record.manifest.batch_id)[WARMING_BATCHES:]
    ]
    totals = summed(done)
    p50, p95 = freshness_quantiles(done, (0.5, 0.95))
    (running_p95,) = freshness_quantiles(running, (0.95,))
    return StatusSummary(
        landed=totals["landed"],
        duplicates=totals["duplicates"],
        quarantined=totals["quarantined"],
        batches=len(done),
        files=totals["files"],
        freshness_p50_s=p50,
        freshness_p95_s=p95,
        freshness_running_p95_s=running_p95,
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
    weighted: list[tuple[float, float]] = []
    for record in records:
        produced = record.details.get("produced_quantiles_ms")
        if not isinstance(produced, list) or not produced or record.finished_ts is None:
            continue
        committed_ms = record.finished_ts.timestamp() * 1000
        weight = record.counts.get("rows_in", 0) / len(produced)
        weighted += [((committed_ms - float(moment)) / 1000, weight) for moment in produced]
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

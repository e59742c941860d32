"""The figures of a run of `up`: totals from stores and broker, whether they balance, and how long messages took."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from rich.table import Table

from engagement_platform.engine.model import BatchRecord, JobState
from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.jobs import (
    INGEST_MUTATION_REQUESTS,
    INGEST_PROFILE_CHANGES,
    JOB_NAMES,
    REMATERIALIZE_PROFILE,
    TOPIC_JOBS,
    open_stores,
    topic_of,
)
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.status import Sums, job_statuses, quantiles
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.kafka_errors import TopicMissing

WARMING_BATCHES = 2
"""Of a job after a start: the first pays for loading classes (about 10 s), the second for what waited meanwhile."""
REASON_LENGTH = 160
_EVERY_S = 2.0
BALANCE = "balance"


@dataclass(frozen=True)
class Figures:
    """Totals since the stores exist, and what waits now.

    on_broker: messages ever written to the topics. landed, duplicates, quarantined, batches, backlog: of the jobs that
    read a topic, in messages; a request is a message once, when it lands. mutation_batches, requests_applied,
    rows_mutated, requests_waiting: of the job that announces requests. files: of both. What pipelines read that are off
    does not count: nothing ingests it.
    """

    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    counts: Counter[str] = field(default_factory=Counter)
    failing: str | None = None
    """Which job's last batch failed, and why; None when all is well."""

    @property
    def waiting(self) -> int:
        """Messages that wait to be ingested, and requests that wait to be announced."""
        return self.counts["backlog"] + self.counts["requests_waiting"]

    def since(self, opening: Figures) -> Counter[str]:
        """What came since then; what waits is as it is now."""
        change = self.counts.copy()
        change.subtract({name: n for name, n in opening.counts.items() if name not in ("backlog", "requests_waiting")})
        return change

    def missing(self, opening: Figures) -> int:
        """Messages that are unaccounted for; 0 is right, negative means that some were counted twice.

        Each message that waited at the opening or was produced since must have landed, been known or been quarantined.
        """
        came = self.since(opening)
        return opening.counts["backlog"] + came["on_broker"] - came["landed"] - came["duplicates"] - came["quarantined"]

    def books(self, opening: Figures, *, traffic: bool) -> str:
        """BALANCE, or in what they do not. traffic: whether something has to have been produced since the opening."""
        if traffic and self.since(opening)["on_broker"] <= 0:
            return "nothing produced"
        missing = self.missing(opening)
        return BALANCE if missing == 0 else f"{abs(missing):,} {'missing' if missing > 0 else 'too many'}"


def figures(settings: Settings, sums: dict[str, Sums] | None = None) -> Figures:
    """The figures now; sums: as for `job_statuses`. Raises BrokerUnavailable, KafkaRefused, what the stores raise."""
    at, on_broker = datetime.now(UTC), messages_on_broker(settings)
    jobs = {job.job: job for job in job_statuses(settings, sums, partial(_is_on, settings))}
    counts = Counter(on_broker=on_broker)
    for job in (jobs[name] for name in TOPIC_JOBS if name in jobs):
        counts.update({kind: job.totals[kind] for kind in ("landed", "duplicates", "quarantined", "files")})
        counts.update(batches=job.batches, backlog=job.backlog)
    if (mutations := jobs.get(APPLY_MUTATIONS)) is not None:
        counts.update(
            files=mutations.totals["files"],
            mutation_batches=mutations.batches,
            requests_applied=mutations.totals["rows_in"],
            requests_waiting=mutations.backlog,
            rows_mutated=sum(mutations.totals[kind] for kind in ("inserted", "updated", "deleted")),
        )
    return Figures(
        at, counts, next((f"{job.job} failed: {why}" for job in jobs.values() if (why := job.failure)), None)
    )


def _is_on(settings: Settings, job: str) -> bool:
    """Whether the pipeline of one of the platform's own jobs is on; of others, whose figures nobody adds up, True."""
    if job in (INGEST_PROFILE_CHANGES, REMATERIALIZE_PROFILE):
        return settings.pipelines.profiles
    return settings.pipelines.engagements or job not in JOB_NAMES


def messages_on_broker(settings: Settings) -> int:
    """Messages ever written to the topics: the sum of their end offsets, whatever retention removed since.

    Asks the broker, not the producer, so that a producer that was killed cannot make the sum wrong. A topic that does
    not exist holds none. Raises BrokerUnavailable, KafkaRefused.
    """
    total = 0
    for topic in (topic_of(job, settings) for job in TOPIC_JOBS if _is_on(settings, job)):
        with suppress(TopicMissing):
            total += sum(KafkaSource(topic, settings.kafka).end_offsets().values())
    return total


def latencies(settings: Settings, since: datetime) -> dict[str, float | None]:
    """Seconds from production to the end of the batch, of what finished since; None where nothing did.

    freshness: until a message landed. once running: without each job's first WARMING_BATCHES, those of a JVM that has
    just started. mutation visible: until readers of the view see a request. mutation announced: until its notifications
    are there.
    """
    stores = open_stores(settings)

    def finished(job: str) -> list[BatchRecord]:
        done = [r for r in stores.checkpoints.history(job) if r.state is JobState.SUCCEEDED]
        late = [r for r in done if r.finished_ts is not None and r.finished_ts >= since]
        return sorted(late, key=lambda r: r.manifest.batch_id)

    by_job = {job: finished(job) for job in TOPIC_JOBS}
    p50, p95 = quantiles([(r, r.finished_ts) for records in by_job.values() for r in records], (0.5, 0.95))
    warm = [(r, r.finished_ts) for records in by_job.values() for r in records[WARMING_BATCHES:]]
    announcing = finished(APPLY_MUTATIONS)
    announced = [(r, announced_at(r, announcing)) for r in by_job[INGEST_MUTATION_REQUESTS]]
    visible = [(r, r.finished_ts) for r in by_job[INGEST_MUTATION_REQUESTS]]
    return {
        "freshness p50": p50,
        "freshness p95": p95,
        "p95 once running": quantiles(warm, (0.95,))[0],
        "mutation visible p95": quantiles(visible, (0.95,))[0],
        "mutation announced p95": quantiles(announced, (0.95,))[0],
    }


def announced_at(landed: BatchRecord, announcing: Sequence[BatchRecord]) -> datetime | None:
    """When the requests of a batch were announced: the end of the first batch that reached its sequence, if any."""
    reached = (r for r in announcing if r.manifest.end["sequence"] >= landed.manifest.sequence)
    return min((r.finished_ts for r in reached if r.finished_ts is not None), default=None)


class Watch:
    """Asks for the figures every few seconds in a thread, so that a broker that is down never stops the console.

    `latest` is the last answer, `trouble` is why there is no newer one, `asked` counts the rounds.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._stop = settings, threading.Event()
        self._sums = dict[str, Sums]()
        self.latest: Figures | None = None
        self.trouble: str | None = None
        self.asked = 0

    def start(self) -> None:
        threading.Thread(target=self._run, name="figures", daemon=True).start()

    def close(self) -> None:
        """Ask no more; does not wait for a question under way."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.latest, self.trouble = figures(self._settings, self._sums), None
            except Exception as error:  # the console shows it; the services go on
                self.trouble = str(error) if isinstance(error, PlatformError) else f"{type(error).__name__}: {error}"
            self.asked += 1
            self._stop.wait(_EVERY_S)


def progress(watch: Watch, opening: Figures, left_s: float | None) -> str:
    """One line: what was produced and landed since the start, batches, backlog, requests announced and waiting."""
    if watch.latest is None:
        return watch.trouble or "waiting for the first figures"
    came = watch.latest.since(opening)
    parts = [
        f"produced {came['on_broker']:,}",
        *(f"{name} {came[name]:,}" for name in ("landed", "duplicates", "quarantined", "batches", "backlog")),
        f"mutations {came['requests_applied']:,} (waiting {came['requests_waiting']:,})",
    ]
    if left_s is not None:
        parts.append(f"{max(left_s, 0):.0f} s left")
    if watch.trouble:
        parts.append(watch.trouble)
    if watch.latest.failing:
        # All of it is in `engagement-platform status`.
        first = watch.latest.failing.splitlines()[0]
        parts.append(first if len(first) <= REASON_LENGTH else f"{first[:REASON_LENGTH]} …")
    return "  ".join(parts)


def summary_table(closing: Figures, opening: Figures, seconds: dict[str, float | None], books: str) -> Table:
    """The figures of a bounded run, one a line, and whether they balance. books: as `Figures.books` has it."""
    came = closing.since(opening)
    took = {name: "-" if value is None else f"{value:.1f} s" for name, value in seconds.items()}
    rows = {
        "produced": f"{came['on_broker']:,}",
        **({"waiting before": f"{waited:,}"} if (waited := opening.counts["backlog"]) else {}),
        **{name: f"{came[name]:,}" for name in ("landed", "quarantined", "duplicates", "batches")},
        **{name: took[name] for name in ("freshness p50", "freshness p95", "p95 once running")},
        "mutations applied": f"{came['requests_applied']:,}",
        "mutation batches": f"{came['mutation_batches']:,}",
        "rows mutated": f"{came['rows_mutated']:,}",
        **{name: took[name] for name in ("mutation visible p95", "mutation announced p95")},
        "files": f"{came['files']:,}",
        "books": books,
    }
    table = Table("Summary", "")
    table.columns[1].justify = "right"
    for row in rows.items():
        table.add_row(*row)
    return table

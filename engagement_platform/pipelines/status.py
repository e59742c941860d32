"""How far each job is: its last batch, what waits for it and since when, totals, and how long messages took.

From the stores, the tables' logs and the sources: no row is read, and no Spark is started.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import accumulate, takewhile
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import func, select

from engagement_platform.engine.database import may_exist, open_engine, reading
from engagement_platform.engine.forgotten_batches import Forgotten, forgotten
from engagement_platform.engine.job import Stores
from engagement_platform.engine.model import BatchRecord, JobState, Offsets
from engagement_platform.engine.schema import BATCH
from engagement_platform.lake import live_files, log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import CHANGESET, MAPPING, MUTATION_REQUEST
from engagement_platform.pipelines.declarations.declared import DeclaredEntity
from engagement_platform.pipelines.games.backlog import backlog as objects_waiting
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.jobs import (
    INGEST_ENGAGEMENTS,
    INGEST_MUTATION_REQUESTS,
    declared_of,
    job_names,
    open_stores,
    topic_of,
)
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS, announced
from engagement_platform.pipelines.profiles.snapshot import pending_rows as pending_of_entity
from engagement_platform.pipelines.snapshot import snapshot
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.kafka_errors import TopicMissing

_FIRST_LOOK: Final = 64
"""Batches that are asked of the stores at first: those of ten minutes, with `drain.min_batch_interval` at 10 s."""


def first_batch_day(settings: Settings) -> date | None:
    """UTC day on which the first batch of any job was planned; None before it. Raises StoresUnavailable."""
    if not may_exist(settings.store_url):
        return None
    engine = open_engine(settings.store_url)
    try:
        with reading(engine) as connection:
            found = connection.execute(select(func.min(BATCH.c.ingestion_date))).scalar()
    finally:
        engine.dispose()
    return date.fromisoformat(found) if found else None


@dataclass(frozen=True)
class Waiting:
    """What a job has yet to take: rows of the engagement tables, or messages about objects."""

    rows: int = 0
    """Rows at least, as `rows_above` counts, or messages as SQS estimates them; 0: nothing waits."""
    since: datetime | None = None
    """When the oldest batch that may have them was planned, UTC; None: nothing waits, or only what a redrive or a
    re-reading brought."""


@dataclass(frozen=True)
class JobStatus:
    """One job: its last batch, what waits, and what its finished batches come to."""

    job: str
    checkpoint: BatchRecord | None
    backlog: int
    batches: int
    totals: Counter[str]
    waiting_since: datetime | None = None
    """Since when at least the oldest of it waits, where that is in tables of engagements; None: nothing does."""
    finished: BatchRecord | None = None
    """The last batch that finished."""

    @property
    def failure(self) -> str | None:
        """Why the last batch failed; None while it runs and when it succeeded."""
        return self.checkpoint.reason if self.checkpoint and self.checkpoint.state is JobState.FAILED else None


@dataclass
class Sums:
    """What the finished batches of one job come to. Who looks again and again reads only those since its last look."""

    batches: int = 0
    totals: Counter[str] = field(default_factory=Counter)
    last: BatchRecord | None = None
    """The newest of them."""

    def look(self, job: str, stores: Stores) -> None:
        """Add what has finished since; batches of a job finish one after the other."""
        new = list[BatchRecord]()
        for limit in () if self.last is None else (_FIRST_LOOK, None):
            records = stores.checkpoints.history(job, limit=limit)
            new = list(takewhile(lambda one: self.last is None or one.manifest != self.last.manifest, records))
            if len(new) < len(records):
                break
        else:
            # The first look, or into stores that no longer know what was seen.
            new, gone = _everything(job, stores)
            self.batches, self.totals, self.last = gone.batches, Counter(gone.counts), None
        done = succeeded(new)
        self.batches += len(done)
        self.totals.update(summed(done))
        self.last = done[0] if done else self.last


def job_statuses(
    settings: Settings, sums: dict[str, Sums] | None = None, among: Callable[[str], bool] = lambda _: True
) -> list[JobStatus]:
    """Every job that goes on for ever, those of games where there is a queue, in the order in which messages travel.

    So nothing is overlooked that moves on meanwhile: requests are counted in their table after those on the topic.
    sums: by job, of who asks again; they are brought up to now. among: which jobs are looked at, by name.
    """
    stores, sums = open_stores(settings), {} if sums is None else sums
    found = []
    for job in filter(among, job_names(settings)):
        of = sums.setdefault(job, Sums())
        checkpoint = stores.checkpoints.latest(job)
        of.look(job, stores)
        waits = in_tables(job, settings, stores) or Waiting(backlog(job, settings, checkpoint))
        found.append(JobStatus(job, checkpoint, waits.rows, of.batches, of.totals.copy(), waits.since, of.last))
    return found


def _everything(job: str, stores: Stores) -> tuple[list[BatchRecord], Forgotten]:
    """The job's batches, newest first, and what those come to that are forgotten; both of one moment."""
    records, seen = list[BatchRecord](), None
    while (gone := forgotten(stores.leases.engine, job)) != seen:
        records, seen = stores.checkpoints.history(job), gone
    return records, gone


def unread_from(checkpoint: BatchRecord | None) -> Offsets | None:
    """Where what no finished batch has read begins; None before the first batch."""
    return None if checkpoint is None else checkpoint.unread_from


def pending_changes(settings: Settings, stores: Stores) -> Waiting:
    """Row images, requests and names that `rematerialize-aliases` has yet to move; readers see them. Reads logs.

    Edges are counted as the requests that they are.
    """
    at = snapshot(settings.lake)
    marks = {CHANGESET: at.watermark, MAPPING: at.names_watermark, MUTATION_REQUEST: at.moved_up_to}
    rows = rows_above(settings.lake, marks) if at.pends else 0
    jobs = (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS)
    return Waiting(rows, oldest_above(stores, jobs, at.moved_up_to)) if rows else Waiting()


def in_tables(job: str, settings: Settings, stores: Stores) -> Waiting | None:
    """What the engagement tables have for a job, by their logs; None: it reads something else."""
    if job == REMATERIALIZE_ALIASES:
        return pending_changes(settings, stores)
    if job != APPLY_MUTATIONS:
        return None
    mark = announced(stores)
    rows = rows_above(settings.lake, {MUTATION_REQUEST: mark})
    return Waiting(rows, oldest_above(stores, (INGEST_MUTATION_REQUESTS,), mark)) if rows else Waiting()


def rows_above(root: str, marks: Mapping[Table, int]) -> int:
    """Rows of tables with a greater batch_sequence than these, at least.

    A file in which compaction merged them with older rows counts as one, so the answer is 0 only where there are none.
    """
    rows = 0
    for table, mark in marks.items():
        found = log.open_log(table.uri(root))
        if found is None:
            continue
        files = pa.table(found.get_add_actions(flatten=True))
        late = files.filter(pc.greater(live_files.of_files(files, "max.batch_sequence", pa.int64()), mark))
        alone = pc.greater(live_files.of_files(late, "min.batch_sequence", pa.int64()), mark)
        rows += pc.sum(pc.if_else(alone, pc.fill_null(late.column("num_records"), 1), 1)).as_py() or 0
    return rows


def oldest_above(stores: Stores, jobs: Iterable[str], sequence: int) -> datetime | None:
    """When the oldest batch of these jobs with a greater sequence was planned, UTC; None where there is none."""
    found = [planned for job in jobs if (planned := _oldest(stores, job, sequence)) is not None]
    return min(found, default=None)


def _oldest(stores: Stores, job: str, sequence: int) -> datetime | None:
    limit = _FIRST_LOOK
    while True:
        records = stores.checkpoints.history(job, limit=limit)
        late = [record.manifest.ingestion_ts for record in records if record.manifest.sequence > sequence]
        if len(late) < limit:
            return min(late, default=None)
        limit *= 8


def backlog(job: str, settings: Settings, checkpoint: BatchRecord | None) -> int:
    """What no finished batch has read of a topic, or of a queue of game events; what is in tables is `in_tables`.

    For rematerialization of an entity changes that wait. A batch under way counts as waiting. Raises what the source
    raises: no broker, no topic, offsets lost.
    """
    declared = declared_of(job, settings)
    if isinstance(declared, Feed):
        return objects_waiting(declared.settings(settings), checkpoint)
    if isinstance(declared, DeclaredEntity) and job == declared.entity.rematerialize_job:
        return pending_of_entity(settings.lake, declared.entity)
    try:
        return KafkaSource(topic_of(job, settings), settings.kafka).backlog(unread_from(checkpoint))
    except TopicMissing:
        # A topic of profiles, of a declared table or of a pipeline that is off may come later; one that was read before
        # is missed.
        if checkpoint is not None or (declared is None and settings.pipelines.engagements):
            raise
        return 0


def succeeded(records: Iterable[BatchRecord]) -> list[BatchRecord]:
    """Those that finished."""
    return [record for record in records if record.state is JobState.SUCCEEDED]


def summed(records: Iterable[BatchRecord]) -> Counter[str]:
    """Their counts added up; a count nobody had is 0."""
    totals: Counter[str] = Counter()
    for record in records:
        totals.update(record.counts)
    return totals


def freshness_quantiles(records: Iterable[BatchRecord], shares: Sequence[float]) -> list[float | None]:
    """Seconds from a message's production to the end of its batch, at these shares of all messages."""
    return quantiles([(record, record.finished_ts) for record in records], shares)


def quantiles(finished: Iterable[tuple[BatchRecord, datetime | None]], shares: Sequence[float]) -> list[float | None]:
    """Seconds from a message's production to a moment, at these shares of all messages; batches without one left out.

    Each batch knows 21 quantiles of its messages' production times; each stands for a part of the batch's messages.
    Off by at most the distance of two neighbouring quantiles. All None when nothing was read.
    """
    weighted: list[tuple[float, float]] = []
    for record, moment in finished:
        produced = record.details.get("produced_quantiles_ms")
        if isinstance(produced, list) and produced and moment is not None:
            weight = record.counts.get("rows_in", 0) / len(produced)
            weighted += [(moment.timestamp() - float(at) / 1000, weight) for at in produced]
    weighted.sort()
    passed = list(accumulate(weight for _, weight in weighted))
    if not weighted:
        return [None] * len(shares)
    return [weighted[min(bisect_left(passed, share * passed[-1]), len(weighted) - 1)][0] for share in shares]

"""The rows of the stores as values and back, and the steps that every change of a job's batches is made of.

Nothing here decides whether a change may be made: that is `stores`, and `offset_reset` for a job that is put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from sqlalchemy import Connection, Engine, Row, Table, select

from engagement_platform.engine.database import (
    BATCH,
    FOREIGN_APPLICATION,
    JOB_GENERATION,
    SEQUENCE,
    writing,
)
from engagement_platform.engine.lease import Fence, lock_name, verify
from engagement_platform.engine.model import UNFINISHED, Counts, JobState, Manifest, manifest_from
from engagement_platform.errors import PlatformError


class StaleBatch(PlatformError):
    """A write that is not based on what the store holds: another run went on, or the job was reset."""

    def __init__(self, manifest: Manifest, stored: str) -> None:
        self.manifest, self.stored = manifest, stored
        super().__init__(
            f"{manifest} (of {manifest.app_id}) is out of date: {stored}. Nothing was written. Another run of the job "
            "went on meanwhile, or it was reset; run again to continue from what is stored"
        )


@dataclass(frozen=True)
class BatchRecord:
    """One batch in the history of a job."""

    manifest: Manifest
    state: JobState
    ingestion_date: date
    """UTC date of the manifest's ingestion_ts."""
    started_ts: datetime
    """First attempt."""
    finished_ts: datetime | None
    """When it succeeded or last failed; None while it runs."""
    attempts: int
    counts: Counts = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    reason: str | None = None


@contextmanager
def job_transaction(engine: Engine, job: str, fences: Sequence[Fence]) -> Iterator[Connection]:
    """A writing transaction alone with one job; the fences are verified first and stay true until the commit."""
    with writing(engine, f"job/{job}", *(lock_name(fence.name) for fence in fences)) as connection:
        for fence in fences:
            verify(connection, fence)
        yield connection


_OF_TODAY = (BATCH.c.job_name == JOB_GENERATION.c.job_name) & (BATCH.c.app_id == JOB_GENERATION.c.app_id)


def checkpoint_row(connection: Connection, job: str) -> Row[tuple[object, ...]] | None:
    """The last batch of a job since its last reset, as it is stored."""
    own = select(BATCH).join(JOB_GENERATION, _OF_TODAY).where(BATCH.c.job_name == job)
    return connection.execute(own.order_by(BATCH.c.batch_id.desc()).limit(1)).one_or_none()


def unfinished_rows(connection: Connection) -> list[Row[tuple[object, ...]]]:
    """Unfinished batches of all jobs, by job. Only the last batch of a job can be unfinished."""
    begun = select(BATCH).join(JOB_GENERATION, _OF_TODAY).where(BATCH.c.job_state.in_(UNFINISHED))
    return list(connection.execute(begun.order_by(BATCH.c.job_name)).all())


def generation_of(connection: Connection, job: str) -> tuple[int, str | None]:
    """How often the job has begun anew, from 1, and its application id; None before it has one."""
    row = connection.execute(select(JOB_GENERATION).where(JOB_GENERATION.c.job_name == job)).one_or_none()
    return (1, None) if row is None else (row.generation, row.app_id)


def keep_generation(connection: Connection, job: str, generation: int, app_id: str) -> str:
    """Give the job an application id, and return it."""
    values = {"job_name": job, "generation": generation, "app_id": app_id}
    upsert(connection, JOB_GENERATION, values, "job_name")
    return app_id


def next_sequence(connection: Connection) -> int:
    """The number of a batch that begins now: greater than that of every batch of these stores, of any job.

    Whoever asks holds the row until its transaction ends, so batches get their numbers in the order in which they are
    begun, whatever the clocks of their machines say.
    """
    last = SEQUENCE.c.last
    if connection.execute(SEQUENCE.update().values(last=last + 1)).rowcount == 0:
        # Of two that come first on PostgreSQL one fails here, and its batch begins with the next run.
        connection.execute(SEQUENCE.insert().values(name="batch", last=1))
    return int(connection.execute(select(last)).scalar_one())


def note_foreign(connection: Connection, job: str, app_ids: Iterable[str]) -> None:
    """Remember application ids of a job that tables hold and these stores did not give out."""
    for app_id in app_ids:
        upsert(connection, FOREIGN_APPLICATION, {"app_id": app_id, "job_name": job}, "app_id")


def raise_sequence(connection: Connection, least: int) -> None:
    """Make the next number greater than `least`."""
    next_sequence(connection)
    connection.execute(SEQUENCE.update().where(SEQUENCE.c.last < least).values(last=least))


def add_batch(
    connection: Connection,
    manifest: Manifest,
    generation: int,
    state: JobState,
    now: datetime,
    *,
    details: Mapping[str, object] | None = None,
    reason: str | None = None,
) -> None:
    """Write down a batch that the job has not had: begun at `now`. state SUCCEEDED: finished then as well."""
    connection.execute(
        BATCH.insert().values(
            job_name=manifest.job,
            app_id=manifest.app_id,
            batch_id=manifest.batch_id,
            manifest=manifest.as_json(),
            job_state=state,
            counts={},
            generation=generation,
            ingestion_date=manifest.ingestion_ts.astimezone(UTC).date().isoformat(),
            attempts=1,
            started_ts=now,
            finished_ts=now if state is JobState.SUCCEEDED else None,
            details=details or {},
            reason=reason,
        )
    )


def manifest_of(row: Row[tuple[object, ...]]) -> Manifest:
    """From a row of the history."""
    return manifest_from(row.manifest)


def record_of(row: Row[tuple[object, ...]]) -> BatchRecord:
    """From a row of the history."""
    return BatchRecord(
        manifest=manifest_of(row),
        state=JobState(row.job_state),
        ingestion_date=date.fromisoformat(row.ingestion_date),
        started_ts=row.started_ts,
        finished_ts=row.finished_ts,
        attempts=row.attempts,
        counts=row.counts,
        details=row.details,
        reason=row.reason,
    )


def upsert(connection: Connection, table: Table, values: Mapping[str, object], *key: str) -> None:
    """Update or insert; nobody can insert in between, the transaction is alone with the job."""
    where = [table.c[name] == values[name] for name in key]
    if connection.execute(table.update().where(*where).values(**values)).rowcount == 0:
        connection.execute(table.insert().values(**values))

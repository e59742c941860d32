"""The rows of the stores as values and back, and the steps that every change of a job's batches is made of.

Nothing here decides whether a change may be made: that is `stores`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, Engine, Row, Table, select

from engagement_platform.engine.database import writing
from engagement_platform.engine.lease import Fence, lock_name, verify
from engagement_platform.engine.model import BatchRecord, JobState, Manifest, manifest_from
from engagement_platform.engine.schema import BATCH, BATCH_METADATA, FOREIGN_APPLICATION, JOB_GENERATION, SEQUENCE

# Only batches since the job's last reset.
OF_TODAY = (BATCH.c.job_name == JOB_GENERATION.c.job_name) & (BATCH.c.app_id == JOB_GENERATION.c.app_id)


@contextmanager
def alone(engine: Engine, job: str, fences: Sequence[Fence] = ()) -> Iterator[Connection]:
    """A writing transaction alone with one job; the fences are verified first and stay true until the commit."""
    with writing(engine, f"job/{job}", *(lock_name(fence.name) for fence in fences)) as connection:
        for fence in fences:
            verify(connection, fence)
        yield connection


def last_batch(connection: Connection, job: str) -> BatchRecord | None:
    own = select(BATCH).join(JOB_GENERATION, OF_TODAY).where(BATCH.c.job_name == job)
    row = connection.execute(own.order_by(BATCH.c.batch_id.desc()).limit(1)).one_or_none()
    return None if row is None else record_of(row)


def record_of(row: Row[tuple[object, ...]]) -> BatchRecord:
    return BatchRecord(
        manifest_from(row.manifest), JobState(row.job_state), row.started_ts, row.finished_ts, row.attempts,
        row.counts, row.details, row.reason,
    )  # fmt: skip


def generation_of(connection: Connection, job: str) -> tuple[int, str | None]:
    """How often the job has begun anew, from 1, and its application id; None before it has one."""
    row = connection.execute(select(JOB_GENERATION).where(JOB_GENERATION.c.job_name == job)).one_or_none()
    return (1, None) if row is None else (row.generation, row.app_id)


def keep_generation(connection: Connection, job: str, generation: int, app_id: str) -> str:
    """Give the job an application id, and return it."""
    upsert(connection, JOB_GENERATION, {"job_name": job, "generation": generation, "app_id": app_id}, "job_name")
    return app_id


def next_sequence(connection: Connection) -> int:
    """The number of a batch that begins now: greater than that of every batch of these stores, of any job.

    The transaction holds the row until it ends, so batches get their numbers in the order in which they are
    begun, whatever the clocks of their machines say.
    """
    last = SEQUENCE.c.last
    if connection.execute(SEQUENCE.update().values(last=last + 1)).rowcount == 0:
        # Of two that come first on PostgreSQL one fails here, and its batch begins with the next run.
        connection.execute(SEQUENCE.insert().values(name="batch", last=1))
    return int(connection.execute(select(last)).scalar_one())


def add_batch(
    connection: Connection,
    manifest: Manifest,
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
            generation=manifest.generation,
            ingestion_date=manifest.ingestion_ts.astimezone(UTC).date().isoformat(),
            attempts=1,
            started_ts=now,
            finished_ts=now if state is JobState.SUCCEEDED else None,
            details=details or {},
            reason=reason,
        )
    )


def is_batch(manifest: Manifest) -> ColumnElement[bool]:
    own = (BATCH.c.job_name == manifest.job) & (BATCH.c.app_id == manifest.app_id)
    return own & (BATCH.c.batch_id == manifest.batch_id)


def note_foreign(connection: Connection, job: str, app_ids: Iterable[str]) -> None:
    for app_id in app_ids:
        upsert(connection, FOREIGN_APPLICATION, {"app_id": app_id, "job_name": job}, "app_id")


def note_tables(connection: Connection, job: str, foreign: Iterable[str], sequence: int) -> None:
    """Begin after all that tables hold of a job. sequence: the next one is greater."""
    note_foreign(connection, job, foreign)
    next_sequence(connection)
    connection.execute(SEQUENCE.update().where(SEQUENCE.c.last < sequence).values(last=sequence))
    connection.execute(BATCH_METADATA.delete().where(BATCH_METADATA.c.job_name == job))


def upsert(connection: Connection, table: Table, values: Mapping[str, object], *key: str) -> None:
    """Update or insert; nobody can insert in between, the transaction is alone with the job."""
    where = [table.c[name] == values[name] for name in key]
    if connection.execute(table.update().where(*where).values(**values)).rowcount == 0:
        connection.execute(table.insert().values(**values))

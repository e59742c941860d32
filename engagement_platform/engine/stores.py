"""The Checkpoint Store and the Batch Metadata Store: which batch a job is at, and which processes have finished it.

Every change is one transaction that first proves it is based on what is stored; running a batch is `job`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime

from sqlalchemy import Connection, Engine, Row, Update, and_, select, union

from engagement_platform.engine.database import BATCH, BATCH_METADATA, FOREIGN_APPLICATION, JOB_GENERATION, reading
from engagement_platform.engine.lease import Fence
from engagement_platform.engine.model import UNFINISHED, Checkpoint, Counts, JobState, Manifest, ProcessState
from engagement_platform.engine.records import (
    BatchRecord,
    StaleBatch,
    add_batch,
    checkpoint_row,
    generation_of,
    job_transaction,
    keep_generation,
    manifest_of,
    next_sequence,
    note_foreign,
    raise_sequence,
    record_of,
    unfinished_rows,
    upsert,
)

__all__ = ["BatchMetadataStore", "BatchRecord", "CheckpointStore", "StaleBatch"]

# A Spark error can carry a whole plan; the beginning says what happened.
MAX_REASON_CHARS = 8_000


def random_token() -> str:
    """The end of an application id, by which these stores' transactions differ from any others'."""
    return secrets.token_hex(4)


def utc_now() -> datetime:
    """This machine's clock, UTC."""
    return datetime.now(UTC)


class CheckpointStore:
    """The batches of each job; the last one since the job's last reset is its checkpoint.

    Every method raises StoresUnavailable; every write takes the fences of the leases it relies on, verified in
    the same transaction (LeaseLost). clock: for started and updated times only; no decision rests on it.
    """

    def __init__(
        self, engine: Engine, *, clock: Callable[[], datetime] = utc_now, token: Callable[[], str] = random_token
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._token = token

    def latest(self, job: str) -> Checkpoint | None:
        """The last batch of the job; None before the first one and after a reset."""
        with reading(self._engine) as connection:
            row = checkpoint_row(connection, job)
        return None if row is None else _checkpoint(row)

    def unfinished(self) -> list[Checkpoint]:
        """The batches of all jobs that were begun and have not succeeded, by job; none that a reset gave up."""
        with reading(self._engine) as connection:
            return [_checkpoint(row) for row in unfinished_rows(connection)]

    def app_id(self, job: str) -> str:
        """The application id that the job's transactions carry now, such as `ingest-engagements@1.5f0c9a2e`.

        Drawn once for a job and kept. Its random end tells these stores from others that wrote the same tables
        before: with the id of those, Delta would take new batches for old ones and skip them.
        """
        with job_transaction(self._engine, job, ()) as connection:
            generation, app_id = generation_of(connection, job)
            return app_id or keep_generation(connection, job, generation, self._new_app_id(job, generation))

    def applications(self, job: str) -> tuple[frozenset[str], str | None]:
        """(every application id of the job that these stores know, the one that it has now); None: it has none."""
        with reading(self._engine) as connection:
            current = generation_of(connection, job)[1]
            used = connection.execute(select(BATCH.c.app_id).where(BATCH.c.job_name == job).distinct()).scalars()
            foreign = select(FOREIGN_APPLICATION.c.app_id).where(FOREIGN_APPLICATION.c.job_name == job)
            known = {*used, *connection.execute(foreign).scalars(), *([current] if current else [])}
        return frozenset(known), current

    def every_application(self) -> frozenset[str]:
        """Every application id of every job that these stores gave out or have met, also from before resets."""
        columns = (BATCH.c.app_id, JOB_GENERATION.c.app_id, FOREIGN_APPLICATION.c.app_id)
        with reading(self._engine) as connection:
            return frozenset(connection.execute(union(*(select(column) for column in columns))).scalars()) - {""}

    def begin(self, manifest: Manifest, *, fences: Sequence[Fence] = ()) -> Manifest:
        """Write down what the batch will do, RUNNING, before it does anything; the manifest with its sequence.

        Raises StaleBatch unless this is batch 0 of a job without a checkpoint, the batch after the last SUCCEEDED
        one, or the unfinished last batch again with an identical manifest.
        """
        _check_manifest(manifest)
        with job_transaction(self._engine, manifest.job, fences) as connection:
            generation = _require_generation(connection, manifest)
            stored = checkpoint_row(connection, manifest.job)
            if _is_next(manifest, stored):
                manifest = replace(manifest, sequence=next_sequence(connection))
                add_batch(connection, manifest, generation, JobState.RUNNING, self._clock())
            else:
                again = {"job_state": JobState.RUNNING, "reason": None, "finished_ts": None}
                connection.execute(_update(manifest).values(**again, attempts=BATCH.c.attempts + 1))
            # As it is stored: JSON knows no tuples, and every later change is compared with the row.
            row = checkpoint_row(connection, manifest.job)
            assert row is not None, "it was written just now"
            return manifest_of(row)

    def succeed(
        self,
        manifest: Manifest,
        counts: Counts,
        details: Mapping[str, object] | None = None,
        finished_ts: datetime | None = None,
        fences: Sequence[Fence] = (),
    ) -> None:
        """The batch is done: from here on the next one starts at this one's end. Raises StaleBatch unless RUNNING.

        details: anything JSON can say, such as files and bytes per table. finished_ts: default the store's clock.
        """
        done = {"job_state": JobState.SUCCEEDED, "counts": counts, "details": details or {}, "reason": None}
        with job_transaction(self._engine, manifest.job, fences) as connection:
            _require(connection, manifest, JobState.RUNNING)
            connection.execute(_update(manifest).values(**done, finished_ts=finished_ts or self._clock()))

    def fail(self, manifest: Manifest, reason: str, fences: Sequence[Fence] = ()) -> None:
        """The batch stopped; the next run takes the same batch again. Raises StaleBatch once it has SUCCEEDED."""
        failed = {"job_state": JobState.FAILED, "reason": _storable(reason)}
        with job_transaction(self._engine, manifest.job, fences) as connection:
            _require(connection, manifest, *UNFINISHED)
            connection.execute(_update(manifest).values(**failed, finished_ts=self._clock()))

    def history(self, job: str, *, ingestion_date: date | None = None, limit: int | None = None) -> list[BatchRecord]:
        """Batches of the job, newest first, also from before resets.

        ingestion_date: only those whose ingestion_ts falls on this UTC date. limit: at most so many.
        """
        query = select(BATCH).where(BATCH.c.job_name == job)
        if ingestion_date is not None:
            query = query.where(BATCH.c.ingestion_date == ingestion_date.isoformat())
        query = query.order_by(BATCH.c.generation.desc(), BATCH.c.batch_id.desc()).limit(limit)
        with reading(self._engine) as connection:
            return [record_of(row) for row in connection.execute(query)]

    def jobs(self) -> list[str]:
        """Every job that has ever begun a batch, by name."""
        with reading(self._engine) as connection:
            return sorted(connection.execute(select(BATCH.c.job_name).distinct()).scalars())

    def reset(self, job: str, fences: Sequence[Fence] = (), *, foreign: Collection[str] = (), sequence: int = 0) -> str:
        """Forget how far the job is and return its new application id, such as `ingest-engagements@2.77ab03c1`.

        foreign: application ids of the job that tables hold, which stores before these gave out; from now on they are
        known to be of the past. sequence: that of the next batch is greater.

        The next batch is 0, at the source's configured start. The history stays; a batch that was still RUNNING
        becomes FAILED there. A run that is under way is refused at its next write to the stores (StaleBatch).
        """
        with job_transaction(self._engine, job, fences) as connection:
            generation, old = generation_of(connection, job)
            new = self._new_app_id(job, generation + 1)
            unfinished = (BATCH.c.job_name == job, BATCH.c.app_id == old, BATCH.c.job_state == JobState.RUNNING)
            connection.execute(
                BATCH.update()
                .where(*unfinished)
                .values(job_state=JobState.FAILED, reason="given up by a reset", finished_ts=self._clock())
            )
            note_foreign(connection, job, foreign)
            raise_sequence(connection, sequence)
            connection.execute(BATCH_METADATA.delete().where(BATCH_METADATA.c.job_name == job))
            return keep_generation(connection, job, generation + 1, new)

    def _new_app_id(self, job: str, generation: int) -> str:
        return f"{job}@{generation}.{self._token()}"


class BatchMetadataStore:
    """One row a job and process: the last batch the process finished. Raises StoresUnavailable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, job: str) -> dict[str, ProcessState]:
        """The processes of the job that have finished a batch since the last reset, by name."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(BATCH_METADATA).where(BATCH_METADATA.c.job_name == job)).all()
        return {r.process_name: ProcessState(job, r.process_name, r.batch_id, r.modified_ts, r.counts) for r in rows}

    def record(
        self, manifest: Manifest, process: str, counts: Counts, now: datetime, fences: Sequence[Fence] = ()
    ) -> None:
        """The process has finished the batch at `now`.

        Raises StaleBatch when the job was reset meanwhile, or when the process would go back or leave a batch out;
        the first record of a process may have any batch id, since processes are added to jobs that run. The same
        batch again replaces counts and time. Raises LeaseLost when a fence is not its holder's.
        """
        with job_transaction(self._engine, manifest.job, fences) as connection:
            _require_generation(connection, manifest)
            key = and_(BATCH_METADATA.c.job_name == manifest.job, BATCH_METADATA.c.process_name == process)
            stored = connection.execute(select(BATCH_METADATA.c.batch_id).where(key)).scalar_one_or_none()
            if stored is not None and manifest.batch_id not in (stored, stored + 1):
                raise StaleBatch(manifest, f"process {process} is at batch {stored}")
            values = {
                "job_name": manifest.job, "process_name": process, "app_id": manifest.app_id,
                "batch_id": manifest.batch_id, "modified_ts": now, "counts": counts,
            }  # fmt: skip
            upsert(connection, BATCH_METADATA, values, "job_name", "process_name")


def _is_next(manifest: Manifest, stored: Row[tuple[object, ...]] | None) -> bool:
    """True: a new batch. False: the unfinished one again. Raises StaleBatch when it is neither."""
    if stored is None:
        if manifest.batch_id != 0:
            raise StaleBatch(manifest, "the job has no checkpoint, so its next batch is 0")
        return True
    if stored.job_state == JobState.SUCCEEDED:
        if manifest.batch_id != stored.batch_id + 1:
            raise StaleBatch(manifest, f"batch {stored.batch_id} has succeeded, the next is {stored.batch_id + 1}")
        return True
    if manifest.batch_id != stored.batch_id:
        raise StaleBatch(manifest, f"batch {stored.batch_id} is {stored.job_state} and comes first")
    if manifest != manifest_of(stored):
        raise StaleBatch(manifest, "the stored manifest of this batch is another one, and a replay must be the same")
    return False


def _require(connection: Connection, manifest: Manifest, *states: JobState) -> None:
    stored = checkpoint_row(connection, manifest.job)
    if stored is None or manifest != manifest_of(stored):
        held = f"batch {stored.batch_id} of {stored.app_id}, with another manifest" if stored else "no batch of the job"
        raise StaleBatch(manifest, f"the checkpoint holds {held}")
    if stored.job_state not in states:
        raise StaleBatch(manifest, f"its state is {stored.job_state} already")


def _check_manifest(manifest: Manifest) -> None:
    """What the database would silently change or only half keep."""
    if manifest.ingestion_ts.tzinfo is None:
        raise ValueError(f"{manifest}: ingestion_ts needs a zone")
    if manifest.batch_id < 0:
        raise ValueError(f"{manifest}: batch ids start at 0")


def _checkpoint(row: Row[tuple[object, ...]]) -> Checkpoint:
    updated_ts = row.finished_ts or row.started_ts
    return Checkpoint(
        manifest_of(row), JobState(row.job_state), updated_ts, row.counts, row.reason, attempts=row.attempts
    )


def _require_generation(connection: Connection, manifest: Manifest) -> int:
    """The generation of the manifest's application id, which has to be the job's; a job's first batch brings it."""
    generation, app_id = generation_of(connection, manifest.job)
    if app_id is None:
        app_id = keep_generation(connection, manifest.job, generation, manifest.app_id)
    if manifest.app_id != app_id:
        raise StaleBatch(manifest, f"the job goes by {app_id} now")
    return generation


def _update(manifest: Manifest) -> Update:
    own = (BATCH.c.job_name == manifest.job) & (BATCH.c.app_id == manifest.app_id)
    return BATCH.update().where(own, BATCH.c.batch_id == manifest.batch_id)


def _storable(reason: str) -> str:
    """Text that both databases take: PostgreSQL refuses NUL, neither takes half a surrogate pair."""
    text = reason.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")
    return text if len(text) <= MAX_REASON_CHARS else text[:MAX_REASON_CHARS] + " …"

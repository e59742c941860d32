"""The Checkpoint Store and the Batch Metadata Store: which batch a job is at, and which processes have finished it.

Every change is one transaction that is alone with the job, verifies the fences and compares with what is stored.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime

from sqlalchemy import ColumnElement, Connection, Engine, Row, Select, select, union

from engagement_platform.engine.database import draw_after, next_sequence, reading, storable, upsert, utc_now, writing
from engagement_platform.engine.forgotten_batches import not_forgotten
from engagement_platform.engine.lease import Fence, lock_name, verify
from engagement_platform.engine.model import (
    REWOUND_BY,
    REWOUND_FROM,
    UNFINISHED,
    BatchRecord,
    Counts,
    JobState,
    Manifest,
    Offsets,
    ProcessState,
    manifest_from,
)
from engagement_platform.engine.schema import BATCH, BATCH_METADATA, FOREIGN_APPLICATION, JOB_GENERATION
from engagement_platform.errors import PlatformError


class StaleBatch(PlatformError):
    """A write that is not based on what the store holds: another run went on, or the job was reset."""

    def __init__(self, manifest: Manifest, stored: str) -> None:
        super().__init__(
            f"{manifest} (of {manifest.app_id}) is out of date: {stored}. Nothing was written; run again to continue "
            "from what is stored"
        )


class CheckpointStore:
    """The batches of each job; the last one since the job's last reset is its checkpoint.

    Every method raises StoresUnavailable; writes verify the fences in their own transaction (LeaseLost). clock: for
    started and finished times only. token: ends an application id.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], datetime] = utc_now,
        token: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self._engine, self._clock, self._token = engine, clock, token

    def latest(self, job: str) -> BatchRecord | None:
        """The last batch of the job; None before the first one and after a reset."""
        with reading(self._engine) as connection:
            return _latest(connection, job)

    def unfinished(self) -> list[BatchRecord]:
        """The batches of all jobs that were begun and have not succeeded, by job; none that a reset gave up."""
        begun = _since_reset().where(BATCH.c.job_state.in_(UNFINISHED)).order_by(BATCH.c.job_name)
        with reading(self._engine) as connection:
            return [_record(row) for row in connection.execute(begun)]

    def history(self, job: str, *, ingestion_date: date | None = None, limit: int | None = None) -> list[BatchRecord]:
        """Batches of the job, newest first, also from before resets; of one UTC date of ingestion, or of all."""
        query = (
            select(BATCH).where(BATCH.c.job_name == job).order_by(BATCH.c.generation.desc(), BATCH.c.batch_id.desc())
        )
        if ingestion_date is not None:
            query = query.where(BATCH.c.ingestion_date == ingestion_date.isoformat())
        with reading(self._engine) as connection:
            return [_record(row) for row in connection.execute(query.limit(limit))]

    def jobs(self) -> list[str]:
        """Every job that has ever begun a batch, by name."""
        with reading(self._engine) as connection:
            return sorted(connection.execute(select(BATCH.c.job_name).distinct()).scalars())

    def app_id(self, job: str) -> str:
        """The application id of the job's transactions, such as `ingest-engagements@1.5f0c9a2e`; drawn once and kept.

        Its random end distinguishes these stores from others that wrote the same tables before: with the id of those,
        Delta would take new batches for old ones and skip them.
        """
        with _alone(self._engine, job) as connection:
            generation, app_id = _generation(connection, job)
            return app_id or self._draw(connection, job, generation)

    def applications(self, job: str) -> tuple[frozenset[str], str | None]:
        """(every application id of the job that these stores know, the one that it has now); None: it has none."""
        with reading(self._engine) as connection:
            current = _generation(connection, job)[1]
            used = select(BATCH.c.app_id).where(BATCH.c.job_name == job)
            foreign = select(FOREIGN_APPLICATION.c.app_id).where(FOREIGN_APPLICATION.c.job_name == job)
            known = frozenset(connection.execute(union(used, foreign)).scalars())
            return known | ({current} if current else set()), current

    def every_application(self) -> frozenset[str]:
        """Every application id of every job that these stores know, also from before resets."""
        columns = (BATCH.c.app_id, JOB_GENERATION.c.app_id, FOREIGN_APPLICATION.c.app_id)
        with reading(self._engine) as connection:
            return frozenset(connection.execute(union(*map(select, columns))).scalars())

    def begin(self, manifest: Manifest, *, fences: Sequence[Fence] = ()) -> Manifest:
        """Write down what the batch will do, RUNNING, before it does anything; the manifest with its sequence.

        Raises StaleBatch unless this is batch 0 of a job without a checkpoint, the batch after the last SUCCEEDED
        one, or the unfinished last batch again with an identical manifest.
        """
        if manifest.ingestion_ts.tzinfo is None:
            raise ValueError(f"{manifest}: ingestion_ts needs a zone")
        with _alone(self._engine, manifest.job, fences) as connection:
            _require_generation(connection, manifest)
            if _is_next(manifest, _latest(connection, manifest.job)):
                manifest = replace(manifest, sequence=next_sequence(connection))
                _add(connection, manifest, JobState.RUNNING, self._clock())
            else:
                again = {"job_state": JobState.RUNNING, "reason": None, "finished_ts": None}
                _update(connection, manifest, again | {"attempts": BATCH.c.attempts + 1})
            # As it is stored: JSON knows no tuples, and every later change is compared with the row.
            return _record(connection.execute(select(BATCH).where(_is(manifest))).one()).manifest

    def succeed(
        self,
        manifest: Manifest,
        counts: Counts,
        details: Mapping[str, object] | None = None,
        finished_ts: datetime | None = None,
        fences: Sequence[Fence] = (),
    ) -> None:
        """The batch is done: from here on the next one starts at this one's end. Raises StaleBatch unless RUNNING."""
        done = {"job_state": JobState.SUCCEEDED, "counts": counts, "details": details or {}, "reason": None}
        now = finished_ts or self._clock()
        with _alone(self._engine, manifest.job, fences) as connection:
            _require(connection, manifest, JobState.RUNNING)
            _update(connection, manifest, done | {"finished_ts": now})
            _pass(connection, manifest, now)

    def fail(self, manifest: Manifest, reason: str, fences: Sequence[Fence] = ()) -> None:
        """The batch stopped; the next run takes the same batch again. Raises StaleBatch once it has SUCCEEDED."""
        failed = {"job_state": JobState.FAILED, "reason": storable(reason), "finished_ts": self._clock()}
        with _alone(self._engine, manifest.job, fences) as connection:
            _require(connection, manifest, *UNFINISHED)
            _update(connection, manifest, failed)

    def draw_after(self, sequence: int) -> None:
        """Give the next batch, of any job, a greater sequence."""
        with writing(self._engine) as connection:
            draw_after(connection, sequence)

    def reset(self, job: str, fences: Sequence[Fence] = (), *, foreign: Collection[str] = (), sequence: int = 0) -> str:
        """Forget how far the job is and return its new application id, such as `ingest-engagements@2.77ab03c1`.

        foreign: application ids of the job that tables hold; from now on they are known to be of the past. sequence:
        that of the next batch is greater. The next batch is 0, at the source's configured start. The history stays; a
        batch that was RUNNING becomes FAILED there, and its run is refused at its next write (StaleBatch).
        """
        with _alone(self._engine, job, fences) as connection:
            generation, old = _generation(connection, job)
            running = (BATCH.c.job_name == job, BATCH.c.app_id == old, BATCH.c.job_state == JobState.RUNNING)
            given_up = {"job_state": JobState.FAILED, "reason": "given up by a reset", "finished_ts": self._clock()}
            connection.execute(BATCH.update().where(*running).values(**given_up))
            _continue_after(connection, job, foreign, sequence)
            return self._draw(connection, job, generation + 1)

    def rewind(
        self,
        job: str,
        start: Offsets,
        end: Offsets,
        by: Manifest,
        now: datetime,
        *,
        details: Mapping[str, object] | None = None,
        fences: Sequence[Fence] = (),
    ) -> Manifest:
        """Make the job's next batch begin at `end`; the manifest of that record.

        start: checks of the tables against the source begin here. by: the batch that puts the job back; called again
        for the same one, nothing changes. The record is a batch after the last one, SUCCEEDED, without counts, under
        a new application id: what is read again then has other transaction and notification ids than what was undone.
        Batch ids go on growing. Raises StaleBatch when the job has no batch or an unfinished one.
        """
        with _alone(self._engine, job, fences) as connection:
            stored = _latest(connection, job)
            if stored is None:
                raise StaleBatch(by, f"{job} has no batch to be put back")
            last = stored.manifest
            if stored.rewound_by == by.name:
                return last
            if stored.state is not JobState.SUCCEEDED:
                raise StaleBatch(by, f"batch {last.batch_id} of {job} is {stored.state} and comes first")
            app_id = self._draw(connection, job, _generation(connection, job)[0] + 1)
            source = {REWOUND_BY: by.name, REWOUND_FROM: last.app_id}
            manifest = Manifest(
                job, app_id, last.batch_id + 1, start, end, by.ingestion_ts,
                identity=last.identity, source=source, sequence=next_sequence(connection),
            )  # fmt: skip
            _add(connection, manifest, JobState.SUCCEEDED, now, details)
            _pass(connection, manifest, now)
            return manifest

    def adopt(
        self,
        last: Manifest,
        state: JobState,
        before: Iterable[Manifest],
        *,
        reason: str,
        foreign: Collection[str],
        sequence: int,
        fences: Sequence[Fence] = (),
    ) -> None:
        """Record the last batch that tables hold as the job's checkpoint, and those before it as finished.

        reason: of a last batch that is unfinished. foreign, sequence: as for `reset`. What processes had recorded is
        forgotten, since it was of another batch; done again, their commits are skipped.
        """
        now, recovered = self._clock(), {"recovered": True}
        with _alone(self._engine, last.job, fences) as connection:
            _keep_generation(connection, last.job, last.generation, last.app_id)
            stored = _latest(connection, last.job)
            if stored is None or stored.state is not state or stored.manifest.digest != last.digest:
                finished = select(BATCH.c.app_id, BATCH.c.batch_id).where(
                    BATCH.c.job_name == last.job, BATCH.c.job_state == JobState.SUCCEEDED
                )
                known = {(app_id, batch_id) for app_id, batch_id in connection.execute(finished)}
                lacks = not_forgotten(connection, last.job, known, before)
                lost = [(one, JobState.SUCCEEDED) for one in lacks if (one.app_id, one.batch_id) not in known]
                for batch, ended in (*lost, (last, state)):
                    connection.execute(BATCH.delete().where(_is(batch)))
                    _add(connection, batch, ended, now, recovered, reason if ended is JobState.FAILED else None)
            _continue_after(connection, last.job, foreign, sequence)

    def know(self, job: str, app_ids: Iterable[str]) -> None:
        """Remember application ids of a job that tables hold and these stores did not give out."""
        with _alone(self._engine, job) as connection:
            _know(connection, job, app_ids)

    def _draw(self, connection: Connection, job: str, generation: int) -> str:
        return _keep_generation(connection, job, generation, f"{job}@{generation}.{self._token()}")


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
        """The process has finished the batch at `now`; the same batch again replaces counts and time.

        Raises StaleBatch when the job was reset meanwhile, or when the process would go back or leave a batch out;
        the first record of a process may have any batch id, since processes are added to jobs that run.
        """
        with _alone(self._engine, manifest.job, fences) as connection:
            _require_generation(connection, manifest)
            key = (BATCH_METADATA.c.job_name == manifest.job, BATCH_METADATA.c.process_name == process)
            stored = connection.execute(select(BATCH_METADATA.c.batch_id).where(*key)).scalar_one_or_none()
            if stored is not None and manifest.batch_id not in (stored, stored + 1):
                raise StaleBatch(manifest, f"process {process} is at batch {stored}")
            values = {
                "job_name": manifest.job, "process_name": process, "app_id": manifest.app_id,
                "batch_id": manifest.batch_id, "modified_ts": now, "counts": counts,
            }  # fmt: skip
            upsert(connection, BATCH_METADATA, values, "job_name", "process_name")


@contextmanager
def _alone(engine: Engine, job: str, fences: Sequence[Fence] = ()) -> Iterator[Connection]:
    """A writing transaction alone with one job; the fences are verified first and stay true until the commit."""
    with writing(engine, f"job/{job}", *(lock_name(fence.name) for fence in fences)) as connection:
        for fence in fences:
            verify(connection, fence)
        yield connection


def _since_reset() -> Select[tuple[object, ...]]:
    same = (BATCH.c.job_name == JOB_GENERATION.c.job_name) & (BATCH.c.app_id == JOB_GENERATION.c.app_id)
    return select(BATCH).join(JOB_GENERATION, same)


def _latest(connection: Connection, job: str) -> BatchRecord | None:
    own = _since_reset().where(BATCH.c.job_name == job).order_by(BATCH.c.batch_id.desc()).limit(1)
    row = connection.execute(own).one_or_none()
    return None if row is None else _record(row)


def _record(row: Row[tuple[object, ...]]) -> BatchRecord:
    return BatchRecord(
        manifest_from(row.manifest), JobState(row.job_state), row.started_ts, row.finished_ts, row.attempts,
        row.counts, row.details, row.reason,
    )  # fmt: skip


def _is(manifest: Manifest) -> ColumnElement[bool]:
    own = (BATCH.c.job_name == manifest.job) & (BATCH.c.app_id == manifest.app_id)
    return own & (BATCH.c.batch_id == manifest.batch_id)


def _update(connection: Connection, manifest: Manifest, values: Mapping[str, object]) -> None:
    connection.execute(BATCH.update().where(_is(manifest)).values(**values))


def _pass(connection: Connection, manifest: Manifest, now: datetime) -> None:
    """Let processes that a batch had nothing for go on after it, such as a restore's that was given up."""
    others = (BATCH_METADATA.c.job_name == manifest.job) & (BATCH_METADATA.c.batch_id < manifest.batch_id)
    passed = {"app_id": manifest.app_id, "batch_id": manifest.batch_id, "modified_ts": now, "counts": {}}
    connection.execute(BATCH_METADATA.update().where(others).values(**passed))


def _add(
    connection: Connection,
    manifest: Manifest,
    state: JobState,
    now: datetime,
    details: Mapping[str, object] | None = None,
    reason: str | None = None,
) -> None:
    """Write down a batch that begins at `now`, or that SUCCEEDED then."""
    connection.execute(
        BATCH.insert().values(
            job_name=manifest.job, app_id=manifest.app_id, batch_id=manifest.batch_id, manifest=manifest.as_json(),
            generation=manifest.generation, job_state=state, attempts=1, counts={}, details=details or {},
            ingestion_date=manifest.ingestion_ts.astimezone(UTC).date().isoformat(), reason=reason,
            started_ts=now, finished_ts=now if state is JobState.SUCCEEDED else None,
        )
    )  # fmt: skip


def _generation(connection: Connection, job: str) -> tuple[int, str | None]:
    """How often the job has begun anew, from 1, and its application id; None before it has one."""
    row = connection.execute(select(JOB_GENERATION).where(JOB_GENERATION.c.job_name == job)).one_or_none()
    return (1, None) if row is None else (row.generation, row.app_id)


def _keep_generation(connection: Connection, job: str, generation: int, app_id: str) -> str:
    upsert(connection, JOB_GENERATION, {"job_name": job, "generation": generation, "app_id": app_id}, "job_name")
    return app_id


def _know(connection: Connection, job: str, app_ids: Iterable[str]) -> None:
    for app_id in app_ids:
        upsert(connection, FOREIGN_APPLICATION, {"app_id": app_id, "job_name": job}, "app_id")


def _continue_after(connection: Connection, job: str, foreign: Iterable[str], sequence: int) -> None:
    """Begin after all that tables hold of a job: its application ids are known, the next sequence is greater."""
    _know(connection, job, foreign)
    draw_after(connection, sequence)
    connection.execute(BATCH_METADATA.delete().where(BATCH_METADATA.c.job_name == job))


def _require_generation(connection: Connection, manifest: Manifest) -> None:
    """The manifest's application id has to be the job's; a job's first batch brings it."""
    app_id = _generation(connection, manifest.job)[1]
    if app_id is None:
        _keep_generation(connection, manifest.job, manifest.generation, manifest.app_id)
    elif manifest.app_id != app_id:
        raise StaleBatch(manifest, f"the job goes by {app_id} now")


def _is_next(manifest: Manifest, stored: BatchRecord | None) -> bool:
    """True: a new batch. False: the unfinished one again. Raises StaleBatch when it is neither."""
    if stored is None or stored.state is JobState.SUCCEEDED:
        follows = 0 if stored is None else stored.manifest.batch_id + 1
        if manifest.batch_id != follows:
            raise StaleBatch(manifest, f"the next batch of the job is {follows}")
        return True
    if manifest != stored.manifest:
        raise StaleBatch(manifest, f"{stored.manifest} is {stored.state} and comes first, with its own manifest")
    return False


def _require(connection: Connection, manifest: Manifest, *states: JobState) -> None:
    stored = _latest(connection, manifest.job)
    if stored is None or manifest != stored.manifest:
        raise StaleBatch(manifest, f"the checkpoint holds {stored.manifest if stored else 'no batch'}, another one")
    if stored.state not in states:
        raise StaleBatch(manifest, f"its state is {stored.state} already")

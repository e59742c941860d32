"""The Checkpoint Store and the Batch Metadata Store: which batch a job is at, and which processes have finished it.

Every change is one transaction that first proves it is based on what is stored; running a batch is `job`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime

from sqlalchemy import Connection, Engine, Update, select, union

from engagement_platform.engine.database import reading, utc_now
from engagement_platform.engine.lease import Fence
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
)
from engagement_platform.engine.records import (
    OF_TODAY,
    add_batch,
    alone,
    generation_of,
    is_batch,
    keep_generation,
    last_batch,
    next_sequence,
    note_foreign,
    note_tables,
    record_of,
    upsert,
)
from engagement_platform.engine.schema import BATCH, BATCH_METADATA, FOREIGN_APPLICATION, JOB_GENERATION
from engagement_platform.errors import PlatformError

# A Spark error can carry a whole plan; its beginning names the cause.
MAX_REASON_CHARS = 8_000


class StaleBatch(PlatformError):
    """A write that is not based on what the store holds: another run went on, or the job was reset."""

    def __init__(self, manifest: Manifest, stored: str) -> None:
        self.manifest, self.stored = manifest, stored
        super().__init__(
            f"{manifest} (of {manifest.app_id}) is out of date: {stored}. Nothing was written. Another run of the job "
            "went on meanwhile, or it was reset; run again to continue from what is stored"
        )


def random_token() -> str:
    """The end of an application id, by which these stores' transactions differ from any others'."""
    return secrets.token_hex(4)


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

    def latest(self, job: str) -> BatchRecord | None:
        """The last batch of the job; None before the first one and after a reset."""
        with reading(self._engine) as connection:
            return last_batch(connection, job)

    def unfinished(self) -> list[BatchRecord]:
        """The batches of all jobs that were begun and have not succeeded, by job; none that a reset gave up."""
        begun = select(BATCH).join(JOB_GENERATION, OF_TODAY).where(BATCH.c.job_state.in_(UNFINISHED))
        with reading(self._engine) as connection:
            return [record_of(row) for row in connection.execute(begun.order_by(BATCH.c.job_name))]

    def app_id(self, job: str) -> str:
        """The application id that the job's transactions carry now, such as `ingest-engagements@1.5f0c9a2e`.

        Drawn once for a job and kept. Its random end distinguishes these stores from others that wrote the same tables
        before: with the id of those, Delta would take new batches for old ones and skip them.
        """
        with alone(self._engine, job) as connection:
            generation, app_id = generation_of(connection, job)
            return app_id or self._new_app_id(connection, job, generation)

    def applications(self, job: str) -> tuple[frozenset[str], str | None]:
        """(every application id of the job that these stores know, the one that it has now); None: it has none."""
        with reading(self._engine) as connection:
            current = generation_of(connection, job)[1]
            used = select(BATCH.c.app_id).where(BATCH.c.job_name == job)
            foreign = select(FOREIGN_APPLICATION.c.app_id).where(FOREIGN_APPLICATION.c.job_name == job)
            known = connection.execute(union(used, foreign)).scalars()
            return frozenset({*known, *([current] if current else [])}), current

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
        if manifest.ingestion_ts.tzinfo is None:
            raise ValueError(f"{manifest}: ingestion_ts needs a zone")
        with alone(self._engine, manifest.job, fences) as connection:
            _require_generation(connection, manifest)
            if _is_next(manifest, last_batch(connection, manifest.job)):
                manifest = replace(manifest, sequence=next_sequence(connection))
                add_batch(connection, manifest, JobState.RUNNING, self._clock())
            else:
                again = {"job_state": JobState.RUNNING, "reason": None, "finished_ts": None}
                connection.execute(_update(manifest).values(**again, attempts=BATCH.c.attempts + 1))
            # As it is stored: JSON knows no tuples, and every later change is compared with the row.
            stored = last_batch(connection, manifest.job)
            assert stored is not None, "it was written just now"
            return stored.manifest

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
        with alone(self._engine, manifest.job, fences) as connection:
            _require(connection, manifest, JobState.RUNNING)
            connection.execute(_update(manifest).values(**done, finished_ts=finished_ts or self._clock()))

    def fail(self, manifest: Manifest, reason: str, fences: Sequence[Fence] = ()) -> None:
        """The batch stopped; the next run takes the same batch again. Raises StaleBatch once it has SUCCEEDED."""
        failed = {"job_state": JobState.FAILED, "reason": _storable(reason)}
        with alone(self._engine, manifest.job, fences) as connection:
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
        with alone(self._engine, job, fences) as connection:
            generation, old = generation_of(connection, job)
            running = (BATCH.c.job_name == job, BATCH.c.app_id == old, BATCH.c.job_state == JobState.RUNNING)
            given_up = {"job_state": JobState.FAILED, "reason": "given up by a reset", "finished_ts": self._clock()}
            connection.execute(BATCH.update().where(*running).values(**given_up))
            note_tables(connection, job, foreign, sequence)
            return self._new_app_id(connection, job, generation + 1)

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
        with alone(self._engine, job, fences) as connection:
            stored = last_batch(connection, job)
            if stored is None:
                raise StaleBatch(by, f"{job} has no batch to be put back")
            last = stored.manifest
            if stored.rewound_by == by.name:
                return last
            if stored.state is not JobState.SUCCEEDED:
                raise StaleBatch(by, f"batch {last.batch_id} of {job} is {stored.state} and comes first")
            app_id = self._new_app_id(connection, job, generation_of(connection, job)[0] + 1)
            source = {REWOUND_BY: by.name, REWOUND_FROM: last.app_id}
            manifest = Manifest(
                job, app_id, last.batch_id + 1, start, end, by.ingestion_ts,
                identity=last.identity, source=source, sequence=next_sequence(connection),
            )  # fmt: skip
            add_batch(connection, manifest, JobState.SUCCEEDED, now, details=details)
            # A process refuses to leave a batch out, and it never sees this one.
            passed = {"app_id": app_id, "batch_id": manifest.batch_id, "modified_ts": now, "counts": {}}
            connection.execute(BATCH_METADATA.update().where(BATCH_METADATA.c.job_name == job).values(**passed))
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
        with alone(self._engine, last.job, fences) as connection:
            keep_generation(connection, last.job, last.generation, last.app_id)
            stored = last_batch(connection, last.job)
            if stored is None or stored.state is not state or stored.manifest.digest != last.digest:
                for batch in before:
                    if connection.execute(
                        select(BATCH).where(is_batch(batch), BATCH.c.job_state == "SUCCEEDED")
                    ).first():
                        continue
                    connection.execute(BATCH.delete().where(is_batch(batch)))
                    add_batch(connection, batch, JobState.SUCCEEDED, now, details=recovered)
                connection.execute(BATCH.delete().where(is_batch(last)))
                why = reason if state is JobState.FAILED else None
                add_batch(connection, last, state, now, details=recovered, reason=why)
            note_tables(connection, last.job, foreign, sequence)

    def know(self, job: str, app_ids: Collection[str]) -> None:
        """Remember application ids of a job that tables hold and these stores did not give out."""
        with alone(self._engine, job) as connection:
            note_foreign(connection, job, app_ids)

    def _new_app_id(self, connection: Connection, job: str, generation: int) -> str:
        return keep_generation(connection, job, generation, f"{job}@{generation}.{self._token()}")


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
        with alone(self._engine, manifest.job, fences) as connection:
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


def lineage(records: Iterable[BatchRecord], app_id: str) -> set[str]:
    """The application ids under which a job has read the source that it reads now: `app_id`, and those it was put
    back from. A reset begins anew. records: the job's history, in any order."""
    former = {
        record.manifest.app_id: str(record.manifest.source[REWOUND_FROM])
        for record in records
        if record.rewound_by is not None
    }
    found = {app_id}
    while (app_id := former.get(app_id, "")) and app_id not in found:
        found.add(app_id)
    return found


def first_start(records: Iterable[BatchRecord], app_id: str) -> Offsets | None:
    """Where the oldest record of an application id begins; None where there is none."""
    own = [record.manifest for record in records if record.manifest.app_id == app_id]
    return min(own, key=lambda manifest: manifest.batch_id).start if own else None


def _require_generation(connection: Connection, manifest: Manifest) -> None:
    """The manifest's application id has to be the job's; a job's first batch brings it."""
    app_id = generation_of(connection, manifest.job)[1]
    if app_id is None:
        keep_generation(connection, manifest.job, manifest.generation, manifest.app_id)
    elif manifest.app_id != app_id:
        raise StaleBatch(manifest, f"the job goes by {app_id} now")


def _is_next(manifest: Manifest, stored: BatchRecord | None) -> bool:
    """True: a new batch. False: the unfinished one again. Raises StaleBatch when it is neither."""
    if stored is None:
        if manifest.batch_id != 0:
            raise StaleBatch(manifest, "the job has no checkpoint, so its next batch is 0")
        return True
    last = stored.manifest.batch_id
    if stored.state is JobState.SUCCEEDED:
        if manifest.batch_id != last + 1:
            raise StaleBatch(manifest, f"batch {last} has succeeded, the next is {last + 1}")
        return True
    if manifest.batch_id != last:
        raise StaleBatch(manifest, f"batch {last} is {stored.state} and comes first")
    if manifest != stored.manifest:
        raise StaleBatch(manifest, "the stored manifest of this batch is another one, and a replay must be the same")
    return False


def _require(connection: Connection, manifest: Manifest, *states: JobState) -> None:
    stored = last_batch(connection, manifest.job)
    if stored is None or manifest != stored.manifest:
        held = f"{stored.manifest} of {stored.manifest.app_id}, with another manifest" if stored else "no batch"
        raise StaleBatch(manifest, f"the checkpoint holds {held}")
    if stored.state not in states:
        raise StaleBatch(manifest, f"its state is {stored.state} already")


def _update(manifest: Manifest) -> Update:
    return BATCH.update().where(is_batch(manifest))


def _storable(reason: str) -> str:
    """Text that both databases take: PostgreSQL refuses NUL, neither takes half a surrogate pair."""
    text = reason.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")
    return text if len(text) <= MAX_REASON_CHARS else text[:MAX_REASON_CHARS] + " …"

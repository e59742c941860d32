"""Removes the rows of batches that finished long ago from the Checkpoint Store, and keeps what they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, func, select, tuple_

from engagement_platform.engine.database import reading, upsert, writing
from engagement_platform.engine.model import Counts, JobState, Manifest, manifest_from
from engagement_platform.engine.schema import BATCH, FORGOTTEN_BATCHES
from engagement_platform.engine.table_logs import CROSSING

_AT_ONCE = 1_000
"""Rows that one transaction removes, while which no batch of the job begins or ends."""


@dataclass(frozen=True)
class Forgotten:
    """What the finished batches of a job come to of which there is no row any more."""

    batches: int = 0
    counts: Counts = field(default_factory=dict)
    through: datetime | None = None
    """When the last of them ended; None where there are none."""


def forgotten(engine: Engine, job: str) -> Forgotten:
    """Of one job. Raises StoresUnavailable."""
    with reading(engine) as connection:
        return _of(connection, job)


def last_of_each(engine: Engine, job: str) -> list[Manifest]:
    """The last batch under each application id of a job, which is never forgotten. Raises StoresUnavailable."""
    last = select(BATCH.c.app_id, func.max(BATCH.c.batch_id)).where(BATCH.c.job_name == job).group_by(BATCH.c.app_id)
    which = tuple_(BATCH.c.app_id, BATCH.c.batch_id).in_(last)
    with reading(engine) as connection:
        found = connection.execute(select(BATCH.c.manifest).where(BATCH.c.job_name == job, which)).scalars()
        return [manifest_from(stored) for stored in found]


def forget(engine: Engine, keep: timedelta, now: datetime) -> int:
    """Remove the rows of all batches that succeeded longer ago than `keep`; how many. Raises StoresUnavailable.

    now: by the clock of this machine. Where that is ahead of the end of the newest batch, this end counts: a clock that
    has jumped must not cost what is kept.
    The last of them under each application id stays: a job that is put back to before its next batch begins at the end
    of that one, and the id stays known. So do restores and erasures, which say what became of others, and what a reset
    gave up. What stays of a job has no gaps, also where clocks were set back. A call that is interrupted is made again.
    """
    succeeded = BATCH.c.job_state == JobState.SUCCEEDED
    last = select(BATCH.c.job_name, BATCH.c.app_id, func.max(BATCH.c.batch_id)).group_by(
        BATCH.c.job_name, BATCH.c.app_id
    )
    with reading(engine) as connection:
        newest = connection.execute(select(func.max(BATCH.c.finished_ts)).where(succeeded)).scalar_one()
        if newest is None:
            return 0
        before = min(now, newest) - keep
        old = (succeeded, BATCH.c.finished_ts < before, BATCH.c.job_name.not_in(CROSSING))
        stay = connection.execute(last.where(*old)).all()
    removed = 0
    for job, app_id, batch_id in stay:
        while some := _forget_some(engine, job, app_id, batch_id, before):
            removed += some
    return removed


def _forget_some(engine: Engine, job: str, app_id: str, stays: int, before: datetime) -> int:
    older = (
        BATCH.c.job_name == job, BATCH.c.app_id == app_id, BATCH.c.batch_id < stays,
        BATCH.c.job_state == JobState.SUCCEEDED,
    )  # fmt: skip
    some = select(BATCH.c.batch_id, BATCH.c.counts, BATCH.c.finished_ts).where(*older).order_by(BATCH.c.batch_id)
    with writing(engine, f"job/{job}") as connection:
        rows = connection.execute(some.limit(_AT_ONCE)).all()
        if not rows:
            return 0
        gone = _of(connection, job)
        counts = Counter(gone.counts)
        for row in rows:
            counts.update(row.counts)
        # Of one that ended by a clock that was ahead it is not known when: with the latest of the others at most.
        ends = [min(row.finished_ts, before) for row in rows] + ([] if gone.through is None else [gone.through])
        values = {
            "job_name": job, "batches": gone.batches + len(rows), "counts": counts, "through": max(ends),
        }  # fmt: skip
        upsert(connection, FORGOTTEN_BATCHES, values, "job_name")
        connection.execute(BATCH.delete().where(*older, BATCH.c.batch_id <= rows[-1].batch_id))
    return len(rows)


def not_forgotten(
    connection: Connection, job: str, known: Iterable[tuple[str, int]], batches: Iterable[Manifest]
) -> list[Manifest]:
    """Of batches that tables know those that the stores have lost, or have. known: application ids and numbers of the
    finished batches of which there is a row: before the first of an id are those that are forgotten."""
    if not _of(connection, job).batches:
        return list(batches)
    first = dict(sorted(known, reverse=True))
    return [batch for batch in batches if batch.batch_id >= first.get(batch.app_id, 0)]


def _of(connection: Connection, job: str) -> Forgotten:
    found = select(FORGOTTEN_BATCHES).where(FORGOTTEN_BATCHES.c.job_name == job)
    row = connection.execute(found).one_or_none()
    return Forgotten() if row is None else Forgotten(row.batches, row.counts, row.through)

"""Removes the rows of batches that finished long ago from the Checkpoint Store, and keeps what they come to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, Engine, func, select, tuple_

from engagement_platform.engine.database import reading, upsert, writing
from engagement_platform.engine.model import Counts, JobState
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


def forget(engine: Engine, before: datetime) -> int:
    """Remove the rows of all batches that succeeded before a time; how many. Raises StoresUnavailable.

    The last of them under each application id stays: a job that is put back to before its next batch begins at the end
    of that one, and the id stays known. So do restores and erasures, which say what became of others, and what a reset
    gave up. What stays of a job has no gaps, also where clocks were set back. A call that is interrupted is made again.
    """
    with reading(engine) as connection:
        jobs = connection.execute(select(BATCH.c.job_name).distinct().order_by(BATCH.c.job_name)).scalars().all()
    removed = 0
    for job in (job for job in jobs if job not in CROSSING):
        while some := _forget_some(engine, job, before):
            removed += some
    return removed


def _forget_some(engine: Engine, job: str, before: datetime) -> int:
    done = (BATCH.c.job_name == job, BATCH.c.job_state == JobState.SUCCEEDED)
    last = (
        select(BATCH.c.app_id, func.max(BATCH.c.batch_id).label("batch_id"))
        .where(*done, BATCH.c.finished_ts < before)
        .group_by(BATCH.c.app_id)
        .subquery()
    )
    older = (BATCH.c.app_id == last.c.app_id) & (BATCH.c.batch_id < last.c.batch_id)
    some = select(BATCH.c.app_id, BATCH.c.batch_id, BATCH.c.counts, BATCH.c.finished_ts).join(last, older).where(*done)
    with writing(engine, f"job/{job}") as connection:
        rows = connection.execute(some.limit(_AT_ONCE)).all()
        if not rows:
            return 0
        before_these = _of(connection, job)
        counts = Counter(before_these.counts)
        for row in rows:
            counts.update(row.counts)
        ends = [row.finished_ts for row in rows]
        values = {
            "job_name": job, "batches": before_these.batches + len(rows), "counts": counts,
            "through": max(ends if before_these.through is None else [before_these.through, *ends]),
        }  # fmt: skip
        upsert(connection, FORGOTTEN_BATCHES, values, "job_name")
        these = tuple_(BATCH.c.app_id, BATCH.c.batch_id).in_([(row.app_id, row.batch_id) for row in rows])
        connection.execute(BATCH.delete().where(BATCH.c.job_name == job, these))
    return len(rows)


def _of(connection: Connection, job: str) -> Forgotten:
    found = select(FORGOTTEN_BATCHES).where(FORGOTTEN_BATCHES.c.job_name == job)
    row = connection.execute(found).one_or_none()
    return Forgotten() if row is None else Forgotten(row.batches, row.counts, row.through)

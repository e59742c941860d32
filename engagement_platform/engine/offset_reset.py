"""Puts a job back to earlier offsets, or notes that a range was given up: one record in the stores, for both.

Which offsets, and what becomes of the tables, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Engine

from engagement_platform.engine.database import BATCH_METADATA
from engagement_platform.engine.lease import Fence
from engagement_platform.engine.model import JobState, Manifest, Offsets
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
)
from engagement_platform.engine.stores import random_token

_BY, _AFTER = "rewound_by", "rewound_from"


@dataclass(frozen=True)
class Rewind:
    """What is written down of a job that is put back."""

    job: str
    start: Offsets
    """From where on the tables stand for what was read: checks of the tables against the source begin here."""
    end: Offsets
    """Where the next batch begins."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Anything JSON can say, for people."""


def rewind(
    engine: Engine,
    what: Rewind,
    by: Manifest,
    now: datetime,
    *,
    fences: Sequence[Fence] = (),
    token: Callable[[], str] = random_token,
) -> Manifest:
    """Make the job's next batch begin at `what.end`; the manifest of the record that says so. One transaction.

    The record is a batch after the last one, SUCCEEDED, without counts, under a new application id: what is read
    again then has other transaction and notification ids than what was undone. Batch ids go on growing. by: the batch
    that does it; called again for the same one, nothing changes.
    Raises StaleBatch when the job has no batch or an unfinished one, LeaseLost, StoresUnavailable.
    """
    marker = marker_of(by)
    with job_transaction(engine, what.job, fences) as connection:
        stored = checkpoint_row(connection, what.job)
        if stored is None:
            raise StaleBatch(by, f"{what.job} has no batch to be put back")
        last = manifest_of(stored)
        if last.source.get(_BY) == marker:
            return last
        if stored.job_state != JobState.SUCCEEDED:
            raise StaleBatch(by, f"batch {last.batch_id} of {what.job} is {stored.job_state} and comes first")
        generation = generation_of(connection, what.job)[0] + 1
        app_id = keep_generation(connection, what.job, generation, f"{what.job}@{generation}.{token()}")
        manifest = Manifest(
            what.job, app_id, last.batch_id + 1, what.start, what.end, by.ingestion_ts,
            identity=last.identity, source={_BY: marker, _AFTER: last.app_id}, sequence=next_sequence(connection),
        )  # fmt: skip
        add_batch(
            connection,
            manifest,
            generation,
            JobState.SUCCEEDED,
            now,
            details=what.details,
        )
        # A process refuses to leave a batch out, and it never sees this one.
        connection.execute(
            BATCH_METADATA.update()
            .where(BATCH_METADATA.c.job_name == what.job)
            .values(app_id=app_id, batch_id=manifest.batch_id, modified_ts=now, counts={})
        )
        return manifest


def marker_of(manifest: Manifest) -> str:
    """By which the records that a batch has made of other jobs are known."""
    return f"{manifest.app_id}#{manifest.batch_id}"


def rewound_by(record: BatchRecord) -> str | None:
    """`marker_of` the batch that put the job back with this record; None for a batch that was read."""
    marker = record.manifest.source.get(_BY)
    return marker if isinstance(marker, str) else None


def lineage(records: Iterable[BatchRecord], app_id: str) -> set[str]:
    """The application ids under which a job has read the source that it reads now: `app_id`, and those it was put
    back from. A reset begins anew. records: the job's history, in any order."""
    former = {
        record.manifest.app_id: str(record.manifest.source[_AFTER])
        for record in records
        if rewound_by(record) is not None
    }
    found = {app_id}
    while (app_id := former.get(app_id, "")) and app_id not in found:
        found.add(app_id)
    return found


def first_start(records: Iterable[BatchRecord], app_id: str) -> Offsets | None:
    """Where the oldest record of an application id begins; None where there is none."""
    own = [record.manifest for record in records if record.manifest.app_id == app_id]
    return min(own, key=lambda manifest: manifest.batch_id).start if own else None

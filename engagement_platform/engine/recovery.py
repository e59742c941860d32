"""Brings stores that are older than the tables, or new, up to what the tables' commits say.

What is in the tables counts: a batch that they hold was begun, with the manifest that its commits carry.
Noticing that stores are older is `table_logs`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Engine

from engagement_platform.engine.database import BATCH, BATCH_METADATA
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import Fence
from engagement_platform.engine.model import Checkpoint, JobState, Manifest
from engagement_platform.engine.offset_reset import Rewind, rewind
from engagement_platform.engine.records import (
    add_batch,
    checkpoint_row,
    job_transaction,
    keep_generation,
    manifest_of,
    note_foreign,
    raise_sequence,
)
from engagement_platform.engine.stores import utc_now
from engagement_platform.engine.table_logs import CROSSING, Held, Note
from engagement_platform.errors import PlatformError

REWINDS = "rewinds"
"""In `Manifest.source` of a batch that puts other jobs back: job -> start and end offsets from then on."""

_TAKEN_OVER = "taken over from the tables by `engagement-platform recover`; the next run finishes it"


class TablesDisagree(PlatformError):
    """Commits of one batch carry different manifests."""

    def __init__(self, notes: Sequence[Note]) -> None:
        told = ", ".join(sorted(f"{note.table} ({note.digest})" for note in notes))
        super().__init__(
            f"{notes[0].manifest} of {notes[0].manifest.app_id} was written by two manifests: {told}. So the tables do "
            "not stand at one batch, and nobody can say at which offsets the job goes on. Nothing was changed. Restore "
            "the tables to a batch before it, or begin the job anew, what is already there counts as duplicate: "
            f"engagement-platform reset {notes[0].manifest.job} --abandon"
        )


@dataclass(frozen=True)
class Recovered:
    """What the tables say of one job, and what becomes of it in the stores."""

    job: str
    manifest: Manifest | None
    """Of the last batch that the tables hold; None where no log has it any more."""
    state: JobState | None
    """What the batch is recorded as; None: the stores know as much."""
    rewound_by: Manifest | None = None
    """The restore that has put the job back since."""
    app_ids: frozenset[str] = frozenset()
    """All that tables hold of the job."""
    given_up: bool = False
    """A reset gave the batch up; its commits that are missing can no longer be made."""
    batches: tuple[Manifest, ...] = field(default=(), repr=False)
    """Those before the last that the logs still have, oldest first."""

    @property
    def is_lost(self) -> bool:
        """Only a reset goes on: nobody can say how far the job is, or nobody can finish its batch."""
        return self.manifest is None

    def __str__(self) -> str:
        if self.given_up:
            return (
                f"{self.job}: its last batch was given up by a reset that the stores have lost, so nobody can "
                "finish it; begin the job anew, what is already there counts as duplicate: "
                f"engagement-platform reset {self.job}"
            )
        if self.manifest is None:
            return (
                f"{self.job}: its commits are no longer in the logs, so how far it was cannot be told; begin it anew, "
                f"what is already there counts as duplicate: engagement-platform reset {self.job}"
            )
        stands = f"{self.job}: batch {self.manifest.batch_id} of {self.manifest.app_id}"
        if self.state is None:
            return f"{stands}, as the stores have it"
        ended = "finished" if self.state is JobState.SUCCEEDED else "unfinished, the next run finishes it"
        back = f", put back since by {self.rewound_by}" if self.rewound_by else ""
        return f"{stands} is recorded as {ended}{back}"


def recover(stores: Stores, *, dry_run: bool = False) -> list[Recovered]:
    """Compare every job with the tables and record what the stores lack; by job.

    Only the stores are changed, a job in a transaction; a second call changes nothing. dry_run: nothing is.
    Cost: reads every entry that the tables' logs have. Raises TablesDisagree, LeaseUnavailable while a job runs.
    """
    held = stores.tables.held()
    with ExitStack() as leases:
        jobs = sorted({each.job for each in held})
        fences = {job: leases.enter_context(stores.leases.acquire(f"job/{job}", purpose="recover")) for job in jobs}
        # Under the leases, so that nothing moves between the look and the change.
        found = planned(stores, stores.tables.held(), list(stores.tables.notes()))
        if not dry_run:
            for one in found:
                if one.manifest is None and one.job in CROSSING:
                    _know(stores.leases.engine, one)
                elif one.state is not None:
                    _record(stores.leases.engine, one, [fences[one.job].fence], stores.tables.last_sequence())
    return found


def planned(stores: Stores, held: Iterable[Held], notes: Iterable[Note]) -> list[Recovered]:
    """What each job's tables say, against the stores. Changes nothing. Raises TablesDisagree."""
    by_job: dict[str, list[Held]] = defaultdict(list)
    for each in held:
        by_job[each.job].append(each)
    told: dict[tuple[str, int], list[Note]] = defaultdict(list)
    for note in notes:
        told[note.manifest.app_id, note.manifest.batch_id].append(note)
    everything = [note for some in told.values() for note in some]
    return [_planned(stores, job, by_job[job], told, everything) for job in sorted(by_job)]


def _planned(
    stores: Stores,
    job: str,
    held: Sequence[Held],
    told: Mapping[tuple[str, int], Sequence[Note]],
    everything: Sequence[Note],
) -> Recovered:
    app_ids = frozenset(each.app_id for each in held)
    known = [notes[0].manifest for (app_id, _), notes in told.items() if app_id in app_ids]
    if not known:
        return Recovered(job, None, None, app_ids=app_ids)
    newest = max(known, key=lambda manifest: manifest.sequence).app_id
    last = max(each.batch_id for each in held if each.app_id == newest)
    notes = told.get((newest, last), ())
    if not notes:
        return Recovered(job, None, None, app_ids=app_ids)
    if len({note.digest for note in notes}) > 1:
        raise TablesDisagree(notes)
    if any(note.abandoned for note in notes):
        return Recovered(job, None, None, app_ids=app_ids, given_up=True)
    manifest = notes[0].manifest
    back = _put_back(manifest, everything)
    finished = back is not None or any(note.final for note in notes) or _gone_on(manifest, everything)
    stored = stores.checkpoints.latest(job)
    known_ids = stores.checkpoints.applications(job)[0]
    is_known = stored is not None and _knows(stored, manifest, known_ids)
    if is_known and not (back is not None and stored is not None and stored.manifest.sequence < back.sequence):
        return Recovered(job, manifest, None, app_ids=app_ids)
    before = sorted((one for one in known if one is not manifest), key=lambda one: one.sequence)
    state = JobState.SUCCEEDED if finished else JobState.FAILED
    return Recovered(job, manifest, state, back, app_ids, batches=tuple(before))


def _knows(stored: Checkpoint, manifest: Manifest, app_ids: frozenset[str]) -> bool:
    """Whether the stores stand at this batch or after it."""
    if stored.manifest.app_id != manifest.app_id:
        return manifest.app_id in app_ids and stored.manifest.sequence > manifest.sequence
    if stored.manifest.batch_id == manifest.batch_id:
        return stored.manifest.digest == manifest.digest
    return stored.manifest.batch_id > manifest.batch_id


def _put_back(manifest: Manifest, notes: Iterable[Note]) -> Manifest | None:
    """The last restore since that has put the job back; a job is not put back while its batch is unfinished."""
    back = [
        note.manifest
        for note in notes
        if note.manifest.sequence > manifest.sequence and manifest.job in _rewinds(note.manifest)
    ]
    return max(back, key=lambda one: one.sequence, default=None)


def _gone_on(manifest: Manifest, notes: Iterable[Note]) -> bool:
    """Whether a restore or an erasure must have ended: until then nobody begins a batch on the tables it pinned."""
    return manifest.job in CROSSING and any(
        note.table in manifest.table_versions and note.manifest.sequence > manifest.sequence for note in notes
    )


def _rewinds(manifest: Manifest) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    found = manifest.source.get(REWINDS)
    return found if isinstance(found, Mapping) else {}


def _record(engine: Engine, one: Recovered, fences: Sequence[Fence], sequence: int) -> None:
    """One transaction, and one more for a job that was put back."""
    manifest, state, now = one.manifest, one.state, utc_now()
    assert manifest is not None, "what is lost has no state"
    assert state is not None, "what the stores know is not recorded"
    with job_transaction(engine, one.job, fences) as connection:
        keep_generation(connection, one.job, _generation(manifest), manifest.app_id)
        row = checkpoint_row(connection, one.job)
        stands = row is not None and row.job_state == state and manifest_of(row).digest == manifest.digest
        for batch in () if stands else (*one.batches, manifest):
            key = (BATCH.c.job_name == one.job, BATCH.c.app_id == batch.app_id, BATCH.c.batch_id == batch.batch_id)
            of = state if batch is manifest else JobState.SUCCEEDED
            is_done = connection.execute(BATCH.select().where(*key, BATCH.c.job_state == JobState.SUCCEEDED)).first()
            if batch is manifest or is_done is None:
                connection.execute(BATCH.delete().where(*key))
                reason = _TAKEN_OVER if of is JobState.FAILED else None
                add_batch(connection, batch, _generation(batch), of, now, details={"recovered": True}, reason=reason)
        # Whatever a process had recorded was of another batch. Done again, its commits are skipped.
        connection.execute(BATCH_METADATA.delete().where(BATCH_METADATA.c.job_name == one.job))
        note_foreign(connection, one.job, one.app_ids)
        raise_sequence(connection, sequence)
    if one.rewound_by is not None:
        _put_back_again(engine, one.job, one.rewound_by, now, fences)


def _know(engine: Engine, one: Recovered) -> None:
    """Of a restore or an erasure so long ago that no log tells of it, only that it was."""
    with job_transaction(engine, one.job, ()) as connection:
        note_foreign(connection, one.job, one.app_ids)


def _put_back_again(engine: Engine, job: str, by: Manifest, now: datetime, fences: Sequence[Fence]) -> None:
    back = _rewinds(by)[job]
    rewind(engine, Rewind(job, back["start"], back["end"], {"recovered": True}), by, now, fences=fences)


def _generation(manifest: Manifest) -> int:
    """From the application id, such as 2 of `ingest-engagements@2.77ab03c1`."""
    return int(manifest.app_id.rpartition("@")[2].partition(".")[0])

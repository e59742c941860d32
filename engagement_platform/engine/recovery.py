"""Brings stores that are older than the tables, or new, up to the batches and manifests in the tables' commits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import Fence
from engagement_platform.engine.model import BatchRecord, JobState, Manifest
from engagement_platform.engine.table_logs import CROSSING, Held, Note
from engagement_platform.errors import PlatformError

REWINDS = "rewinds"
"""In `Manifest.source` of a batch that puts other jobs back: job -> start and end offsets from then on."""

_TAKEN_OVER = "taken over from the tables by `engagement-platform recover`; the next run finishes it"


@dataclass(frozen=True)
class Recovered:
    """What the tables hold of one job, and what becomes of it in the stores."""

    job: str
    manifest: Manifest | None = None
    """Of the last batch that the tables hold; None where only a reset goes on."""
    state: JobState | None = None
    """What the batch is recorded as; None: the stores know as much."""
    rewound_by: Manifest | None = None
    """The restore that has put the job back since."""
    app_ids: frozenset[str] = frozenset()
    """All that tables hold of the job."""
    lost: str = ""
    """Why only a reset goes on."""
    batches: tuple[Manifest, ...] = field(default=(), repr=False)
    """Those before the last that the logs still have, oldest first."""

    def __str__(self) -> str:
        if self.manifest is None:
            return (
                f"{self.job}: {self.lost}; begin the job anew, what is already there counts as duplicate: "
                f"engagement-platform reset {self.job}"
            )
        batch = f"{self.manifest} of {self.manifest.app_id}"
        if self.state is None:
            return f"{batch}, as the stores have it"
        ended = "finished" if self.state is JobState.SUCCEEDED else "unfinished, the next run finishes it"
        back = f", put back since by {self.rewound_by}" if self.rewound_by else ""
        return f"{batch} is recorded as {ended}{back}"


def recover(stores: Stores, *, dry_run: bool = False) -> list[Recovered]:
    """Compare every job with the tables and record what the stores lack; by job.

    Only the stores are changed, a job in a transaction; a second call changes nothing. dry_run: nothing is.
    Cost: reads every entry that the tables' logs have. Raises LeaseUnavailable while a job runs, PlatformError
    where commits of one batch carry different manifests.
    """
    with ExitStack() as leases:
        jobs = sorted({each.job for each in stores.tables.held()})
        fences = {job: leases.enter_context(stores.leases.acquire(f"job/{job}", purpose="recover")) for job in jobs}
        # Under the leases, so that nothing moves between the look and the change.
        found = planned(stores, stores.tables.held(), list(stores.tables.notes()))
        if not dry_run:
            for one in found:
                if one.manifest is None and one.job in CROSSING:
                    # So long ago that no log has more of it than its name.
                    stores.checkpoints.know(one.job, one.app_ids)
                elif one.manifest is not None and one.state is not None:
                    _record(stores, one.manifest, one.state, one, [fences[one.job].fence])
    return found


def planned(stores: Stores, held: Iterable[Held], notes: Sequence[Note]) -> list[Recovered]:
    """What the tables hold of each job, against the stores. Changes nothing. Raises as `recover`."""
    by_job: dict[str, list[Held]] = defaultdict(list)
    for each in held:
        by_job[each.job].append(each)
    return [_planned(stores, job, by_job[job], notes) for job in sorted(by_job)]


def _planned(stores: Stores, job: str, held: Sequence[Held], everything: Sequence[Note]) -> Recovered:
    app_ids = frozenset(each.app_id for each in held)
    known = {note.manifest.name: note.manifest for note in everything if note.manifest.app_id in app_ids}
    newest = max(known.values(), key=lambda manifest: manifest.sequence, default=None)
    last = max((each.batch_id for each in held if newest and each.app_id == newest.app_id), default=None)
    notes = [note for note in everything if newest and _key(note.manifest) == (newest.app_id, last)]
    if not notes:
        return Recovered(job, app_ids=app_ids, lost="no log has its commits any more, so how far it was is unknown")
    manifest = notes[0].manifest
    if len({note.digest for note in notes}) > 1:
        tables = ", ".join(sorted(f"{note.table} ({note.digest})" for note in notes))
        raise PlatformError(
            f"{manifest} of {manifest.app_id} was written by two manifests: {tables}. Nothing was changed. Restore the "
            "tables to a batch before it, or begin the job anew, what is already there counts as duplicate: "
            f"engagement-platform reset {job} --abandon"
        )
    if _was_reset(stores, job, app_ids):
        return Recovered(job, manifest, app_ids=app_ids)
    if any(note.abandoned for note in notes):
        lost = "its last batch was given up by a reset that the stores have lost, so it cannot be finished"
        return Recovered(job, app_ids=app_ids, lost=lost)
    # A job is not put back while its batch is unfinished.
    later = [note for note in everything if note.manifest.sequence > manifest.sequence]
    restores = [note.manifest for note in later if job in rewinds_of(note.manifest)]
    back = max((one for one in restores if _puts_back(stores, one, later)), key=lambda one: one.sequence, default=None)
    stored = stores.checkpoints.latest(job)
    is_known = stored is not None and _knows(stored, manifest, stores.checkpoints.applications(job)[0])
    if is_known and (back is None or stored is None or stored.manifest.sequence >= back.sequence):
        return Recovered(job, manifest, app_ids=app_ids)
    # Until a restore or an erasure has ended, no batch begins on the tables it pinned.
    crossed = job in CROSSING and any(note.table in manifest.table_versions for note in later)
    finished = bool(restores) or crossed or any(note.final for note in notes)
    before = sorted((one for name, one in known.items() if name != manifest.name), key=lambda one: one.sequence)
    state = JobState.SUCCEEDED if finished else JobState.FAILED
    return Recovered(job, manifest, state, back, app_ids, batches=tuple(before))


def _key(manifest: Manifest) -> tuple[str, int]:
    return manifest.app_id, manifest.batch_id


def _was_reset(stores: Stores, job: str, app_ids: frozenset[str]) -> bool:
    """Whether the job begins anew with its next batch: all that tables hold of it was known, and given up."""
    known, current = stores.checkpoints.applications(job)
    is_new = current is not None and current not in app_ids
    return is_new and app_ids <= known and stores.checkpoints.latest(job) is None


def _puts_back(stores: Stores, restore: Manifest, notes: Iterable[Note]) -> bool:
    """Whether the jobs of a restore go back, which is the last thing that it does.

    Not where it was given up: a commit that is its last says that. Nor, yet, where the stores have it as unfinished.
    """
    if any(note.final and note.manifest.name == restore.name for note in notes):
        return False
    last = stores.checkpoints.latest(restore.job)
    return last is None or last.manifest.name != restore.name or last.state is JobState.SUCCEEDED


def _knows(stored: BatchRecord, manifest: Manifest, app_ids: frozenset[str]) -> bool:
    """Whether the stores are at this batch or after it."""
    if stored.manifest.app_id != manifest.app_id:
        return manifest.app_id in app_ids and stored.manifest.sequence > manifest.sequence
    if stored.manifest.batch_id == manifest.batch_id:
        return stored.manifest.digest == manifest.digest
    return stored.manifest.batch_id > manifest.batch_id


def rewinds_of(manifest: Manifest) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    """The jobs that a batch puts back: start and end offsets from then on."""
    found = manifest.source.get(REWINDS)
    return found if isinstance(found, Mapping) else {}


def _record(stores: Stores, last: Manifest, state: JobState, one: Recovered, fences: Sequence[Fence]) -> None:
    """One transaction, and one more for a job that was put back."""
    stores.checkpoints.adopt(
        last, state, one.batches,
        reason=_TAKEN_OVER, foreign=one.app_ids, sequence=stores.tables.last_sequence(), fences=fences,
    )  # fmt: skip
    if one.rewound_by is not None:
        back, details = rewinds_of(one.rewound_by)[one.job], {"recovered": True}
        stores.checkpoints.rewind(
            one.job, back["start"], back["end"], one.rewound_by, utc_now(), details=details, fences=fences
        )

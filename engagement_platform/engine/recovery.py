"""Brings stores that are older than the tables, or new, up to what the tables' commits say.

What is in the tables counts: a batch that they hold was begun, with the manifest that its commits carry.
Noticing that stores are older is `table_logs`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from engagement_platform.engine.database import utc_now
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import Fence
from engagement_platform.engine.model import BatchRecord, JobState, Manifest
from engagement_platform.engine.table_logs import CROSSING, Held, Note
from engagement_platform.errors import PlatformError

REWINDS = "rewinds"
"""In `Manifest.source` of a batch that puts other jobs back: job -> start and end offsets from then on."""

_TAKEN_OVER = "taken over from the tables by `engagement-platform recover`; the next run finishes it"


class TablesDisagree(PlatformError):
    """Commits of one batch carry different manifests."""

    def __init__(self, notes: Sequence[Note]) -> None:
        digests = ", ".join(sorted(f"{note.table} ({note.digest})" for note in notes))
        super().__init__(
            f"{notes[0].manifest} of {notes[0].manifest.app_id} was written by two manifests: {digests}. So the "
            "tables are not at one batch, and nobody can say at which offsets the job goes on. Nothing was changed. "
            "Restore the tables to a batch before it, or begin the job anew, what is already there counts as "
            f"duplicate: engagement-platform reset {notes[0].manifest.job} --abandon"
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
                f"{self.job}: its commits are no longer in the logs, so how far it was is unknown; begin it anew, "
                f"what is already there counts as duplicate: engagement-platform reset {self.job}"
            )
        batch = f"{self.job}: batch {self.manifest.batch_id} of {self.manifest.app_id}"
        if self.state is None:
            return f"{batch}, as the stores have it"
        ended = "finished" if self.state is JobState.SUCCEEDED else "unfinished, the next run finishes it"
        back = f", put back since by {self.rewound_by}" if self.rewound_by else ""
        return f"{batch} is recorded as {ended}{back}"


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
                    # So long ago that no log has more of it than that it was.
                    stores.checkpoints.know(one.job, one.app_ids)
                elif one.manifest is not None and one.state is not None:
                    _record(stores, one.manifest, one.state, one, [fences[one.job].fence])
    return found


def planned(stores: Stores, held: Iterable[Held], notes: Iterable[Note]) -> list[Recovered]:
    """What each job's tables say, against the stores. Changes nothing. Raises TablesDisagree."""
    by_job: dict[str, list[Held]] = defaultdict(list)
    for each in held:
        by_job[each.job].append(each)
    everything = list(notes)
    return [_planned(stores, job, by_job[job], everything) for job in sorted(by_job)]


def _planned(stores: Stores, job: str, held: Sequence[Held], everything: Sequence[Note]) -> Recovered:
    app_ids = frozenset(each.app_id for each in held)
    known = {note.manifest.name: note.manifest for note in everything if note.manifest.app_id in app_ids}
    lost = Recovered(job, None, None, app_ids=app_ids)
    if not known:
        return lost
    newest = max(known.values(), key=lambda manifest: manifest.sequence).app_id
    last = max(each.batch_id for each in held if each.app_id == newest)
    notes = [note for note in everything if (note.manifest.app_id, note.manifest.batch_id) == (newest, last)]
    if not notes:
        return lost
    if len({note.digest for note in notes}) > 1:
        raise TablesDisagree(notes)
    if any(note.abandoned for note in notes):
        return replace(lost, given_up=True)
    manifest = notes[0].manifest
    back = _put_back(manifest, everything)
    stored = stores.checkpoints.latest(job)
    is_known = stored is not None and _knows(stored, manifest, stores.checkpoints.applications(job)[0])
    if is_known and not (back is not None and stored is not None and stored.manifest.sequence < back.sequence):
        return Recovered(job, manifest, None, app_ids=app_ids)
    finished = back is not None or any(note.final for note in notes) or _gone_on(manifest, everything)
    before = sorted((one for name, one in known.items() if name != manifest.name), key=lambda one: one.sequence)
    state = JobState.SUCCEEDED if finished else JobState.FAILED
    return Recovered(job, manifest, state, back, app_ids, batches=tuple(before))


def _knows(stored: BatchRecord, manifest: Manifest, app_ids: frozenset[str]) -> bool:
    """Whether the stores are at this batch or after it."""
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


def _record(stores: Stores, last: Manifest, state: JobState, one: Recovered, fences: Sequence[Fence]) -> None:
    """One transaction, and one more for a job that was put back."""
    stores.checkpoints.adopt(
        last, state, one.batches,
        reason=_TAKEN_OVER, foreign=one.app_ids, sequence=stores.tables.last_sequence(), fences=fences,
    )  # fmt: skip
    if one.rewound_by is not None:
        back, details = _rewinds(one.rewound_by)[one.job], {"recovered": True}
        stores.checkpoints.rewind(
            one.job, back["start"], back["end"], one.rewound_by, utc_now(), details=details, fences=fences
        )

"""Erases a person from the tables of engagements and profiles: one batch an erasure, under the leases of all of them.

Tombstones first, so that nothing comes in again; the Data Table before the notifications, so that readers never hear of
a row that is still there. A process that dies leaves a batch that the next call finishes; until then no other job
begins one on these tables. Whom it is about is kept encrypted until it is done. What is removed is `rewrites`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Step, Stores
from engagement_platform.engine.model import Counts, JobState, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.engine.unfinished_batches import closed
from engagement_platform.erasing.rewrites import Rewrite, rewrites
from engagement_platform.erasing.rules import follow
from engagement_platform.erasing.subject_lookup import SubjectIds, SubjectLookup
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.audit_columns import stamped
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    CHANGESET,
    MAPPING,
    MUTATION_REQUEST,
    NOTIFICATION,
    QUARANTINE,
    data_table,
)
from engagement_platform.lake.erased import ERASE_SUBJECTS, rewrite
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import spark_session
from engagement_platform.pii.erasure import nobody_writes
from engagement_platform.pii.sealing import SealBroken
from engagement_platform.pii.tombstones import ENGAGEMENT, StoredTombstones
from engagement_platform.pipelines.engagements.job import ANNOUNCED
from engagement_platform.pipelines.mutations.identity import Identities
from engagement_platform.pipelines.parts import announced
from engagement_platform.pipelines.profiles.entity import profile
from engagement_platform.pipelines.redrive import turn_of
from engagement_platform.settings import Settings

_REMEMBERED = 100
AT_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta.max)


def tables(settings: Settings) -> Sequence[Table]:
    """Every table that an erasure looks into."""
    return tuple(rewrites(settings))


def versions(settings: Settings) -> dict[str, int]:
    """The versions that these tables have now; tables that are not there are absent."""
    found = {table.name: log.version(table.uri(settings.lake)) for table in tables(settings)}
    return {name: version for name, version in found.items() if version is not None}


@dataclass
class Erasing:
    """One erasure: whom, and what the tables had when it began."""

    lake: Lake
    manifest: Manifest
    found: SubjectLookup
    """At the pinned versions, so that every attempt finds the same."""


def _put_up_tombstones(work: Erasing, commit: Committer) -> Counts:  # noqa: ARG001
    """From here on nothing about the person, its engagements and its profile comes in. Counts: new tombstones."""
    engagements = {(row["organization_id"], row["engagement_id"]) for row in work.found.rows}
    keys = {**work.found.subject_ids.keys, ENGAGEMENT: engagements}
    return {"tombstones": sum(work.found.tombstones.put_up(kind, of_kind) for kind, of_kind in keys.items())}


def _rewrite(table: Table, decide: Callable[[SubjectLookup], Rewrite], work: Erasing, commit: Committer) -> Counts:
    """Rows of one table that name the person go, or lose what they say of it. Counts: its rows, by the table's name.

    In one commit: bounds of what an earlier one left would stand in the log.
    """
    on, gone, changed, where = decide(work.found)
    # Also without a row: then it closes a table that a crash left open.
    with commit("rewrite") as txn:
        rewrite(work.lake, table, txn, on=on, gone=gone, changed=changed, where=where)
    # Also when the commit was made before a crash.
    made = work.lake.commit_of(table, txn)
    count = 0 if made is None else made.rows_deleted + made.rows_updated
    return {table.name: count} if count else {}


def _announce(work: Erasing, commit: Committer) -> Counts:
    """A notification for each row that is gone, so that readers drop it. Counts: notifications."""
    gone = list(_gone(work))
    if gone:
        rows = stamped(work.lake.frame(table_of(gone, NOTIFICATION, *gone[0])), work.manifest)
        with commit("append") as txn:
            work.lake.append(rows, NOTIFICATION, txn, rows=len(gone))
    return {"notifications": len(gone)}


def _gone(work: Erasing) -> Iterator[dict[str, Any]]:
    """Of rows that were announced: under the requests that `apply-mutations` has announced."""
    begin = f"{work.manifest.app_id}/{work.manifest.batch_id}"
    announced = int(str(work.manifest.source[ANNOUNCED]))
    found, persons = work.found, work.found.subject_ids.persons
    # A request may have deleted a row by its engagement's id alone.
    edges = found.edges_of(row["organization_id"] for row in found.rows)
    known = Identities(edge for sequence, edge in edges if sequence <= announced)
    for row in found.rows:
        if (before := follow(known, row)) is None:
            continue
        organization, engagement = row["organization_id"], row["engagement_id"]
        yield {
            # The length says where the organization ends: ids may hold any character.
            "notification_id": f"{begin}/{len(organization)}/{organization}/{engagement}",
            "organization_id": organization,
            "change_type": "DELETE",
            "engagement_id": engagement,
            "engagement_date": row["engagement_date"],
            "person_id": None,
            "previous_person_id": found.tombstones.pseudonym(before) if before in persons else before,
        }


@dataclass(frozen=True)
class AskedSource(NoIdentity):
    """One batch for each erasure that was asked for. Offsets: {"erasure": its number}."""

    tombstones: StoredTombstones

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:  # noqa: ARG002
        """The next one; None when none waits."""
        after = (start or {"erasure": 0})["erasure"]
        number = self.tombstones.next_asked(after)
        return None if number is None else ({"erasure": after}, {"erasure": number})


def erase_job(lake: Lake, stores: Stores, callbacks: Callbacks) -> MicroBatchJob[Erasing]:
    """Every erasure that was asked for and is not finished, one batch each."""
    settings, tombstones = lake.settings, StoredTombstones(lake.settings)

    def prepare(manifest: Manifest) -> Erasing:
        asked = tombstones.asked(number := manifest.end["erasure"])
        if asked is None:
            raise SealBroken(f"What {ERASE_SUBJECTS} number {number} was asked to erase")
        subject_ids = SubjectIds(**{name: tuple(ids) for name, ids in asked[1].items()})
        return Erasing(lake, manifest, SubjectLookup(settings, subject_ids, tombstones, manifest.table_versions))

    # `profile/changeset` has a name of its own.
    decided = {table.name.removeprefix("engagement/").replace("/", "-"): table for table in tables(settings)}
    steps = [
        Step(name, partial(_rewrite, table, rewrites(settings)[table]), ("rewrite",)) for name, table in decided.items()
    ]
    written = {f"{name}/rewrite": table for name, table in decided.items()}
    return MicroBatchJob(
        name=ERASE_SUBJECTS,
        source=AskedSource(tombstones),
        prepare=prepare,
        processes=(Step("tombstones", _put_up_tombstones), *steps, Step("announce", _announce, ("append",))),
        stores=stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        # Batches that only append would begin between a crash and the resume, and commit after it.
        pin=lambda: {**versions(settings), closed(QUARANTINE.name): 0},
        about=lambda: {ANNOUNCED: announced(stores)},
        leased=_leased(settings),
        lease_wait=settings.stores.lease_wait,
        fencing=LakeFencing(lake, targets({**written, "announce/append": NOTIFICATION})),
        clock=lambda: datetime.now(UTC),
        callbacks=callbacks,
    )


def _leased(settings: Settings) -> tuple[str, ...]:
    """Of all jobs that write these tables; one that only appends begins no batch while quarantine's is held."""
    profiles = profile(settings)
    engagements = (data_table(settings.layout.scheme), CHANGESET, MAPPING, MUTATION_REQUEST)
    others = (turn_of(MUTATION_REQUEST), QUARANTINE.name, profiles.base.name, profiles.changeset.name)
    return (*(table.name for table in engagements), *others)


@dataclass
class Eraser:
    """Runs erasures of these tables. Opens a session of Spark where there is a table."""

    settings: Settings
    stores: Stores
    callbacks: Callbacks = field(default_factory=Callbacks)

    def run(self, subject_ref: str, subject_ids: SubjectIds) -> dict[str, int]:
        """Erase; rows of each table. The same call does the rest after a crash. Raises what the job raises."""
        tombstones = StoredTombstones(self.settings)
        if not versions(self.settings):
            # Tombstones are all there is to do, unless a batch that was under way makes a table meanwhile.
            with nobody_writes(self.settings, _leased(self.settings)):
                if not versions(self.settings):
                    for kind, keys in subject_ids.keys.items():
                        tombstones.put_up(kind, keys)
                    return {}
        last = self.stores.checkpoints.latest(ERASE_SUBJECTS)
        after = 0 if last is None else last.manifest.end["erasure"]
        number = tombstones.ask(subject_ref, asdict(subject_ids), after)
        for _ in self.finish():
            pass
        for record in self.stores.checkpoints.history(ERASE_SUBJECTS, limit=_REMEMBERED):
            if record.manifest.end["erasure"] == number:
                return {name: count for name, count in record.counts.items() if "/" in name}
        return {}

    def finish(self) -> Iterator[BatchReport]:
        """Every erasure that is not finished; afterwards nothing of whom they were about is kept."""
        # First, since what is asked for meanwhile is asked before its batch begins.
        last, tombstones = self.stores.checkpoints.latest(ERASE_SUBJECTS), StoredTombstones(self.settings)
        if tombstones.next_asked(0) is None:
            if last is None or last.state is JobState.SUCCEEDED:
                return
            raise PlatformError(
                f"{last.manifest} is unfinished, and the stores no longer have whom it is about. Nothing was changed. "
                f"Give it up by `engagement-platform reset {ERASE_SUBJECTS} --abandon`, then erase again."
            )
        with spark_session(self.settings, ERASE_SUBJECTS) as spark:
            yield from drain(erase_job(Lake(spark, self.settings), self.stores, self.callbacks), AT_ONCE)
        last = self.stores.checkpoints.latest(ERASE_SUBJECTS)
        if last is not None and last.state is JobState.SUCCEEDED:
            tombstones.forget_asked(last.manifest.end["erasure"])

"""Puts the erasure of the engagement and profile tables together: what is asked for, leases, processes. A batch each.

Whoever dies in the middle leaves a batch that is finished by the next call, and until then no other job begins one on
these tables. Whom it is about is kept encrypted until it is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast

from pyspark.sql import SparkSession

from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Stores
from engagement_platform.engine.model import JobState, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.engine.unfinished_batches import closed
from engagement_platform.erasing.processes import (
    AnnounceProcess,
    EntityProcess,
    Erasing,
    RewriteProcess,
    TombstoneProcess,
)
from engagement_platform.erasing.rewrites import rewrites
from engagement_platform.erasing.whom import Whom
from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import (
    CHANGESET,
    MAPPING,
    MUTATION_REQUEST,
    NOTIFICATION,
    QUARANTINE,
    data_table,
)
from engagement_platform.lake.erased import ERASE_SUBJECTS
from engagement_platform.lake.fencing import LakeFencing, targets
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import spark_session
from engagement_platform.pii.sealing import SealBroken
from engagement_platform.pii.tombstones import StoredTombstones
from engagement_platform.pipelines.engagements.job import ANNOUNCED
from engagement_platform.pipelines.parts import announced
from engagement_platform.pipelines.profiles.entity import profile
from engagement_platform.pipelines.redrive import turn_of
from engagement_platform.settings import Settings

_REMEMBERED = 100
AT_ONCE = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta.max)


def tables(settings: Settings) -> tuple[Table, ...]:
    """Every table that an erasure looks into."""
    entity = profile(settings)
    return (*rewrites(settings), entity.changeset, entity.base)


def versions(settings: Settings) -> dict[str, int]:
    """The versions that these tables have now; tables that are not there are absent."""
    found = {table.name: log.version(table.uri(settings.lake)) for table in tables(settings)}
    return {name: version for name, version in found.items() if version is not None}


@dataclass(frozen=True)
class AskedSource(NoIdentity):
    """One batch for each erasure that was asked for. Offsets: {"erasure": its number}."""

    tombstones: StoredTombstones

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:  # noqa: ARG002
        """The next one; None when none waits."""
        after = (start or {"erasure": 0})["erasure"]
        number = self.tombstones.next_asked(after)
        return None if number is None else ({"erasure": after}, {"erasure": number})

    def check(self, start: Offsets, end: Offsets) -> None:
        """Looked at when the work is prepared."""

    def size(self, start: Offsets, end: Offsets) -> None:
        """No records are read."""


def erase_job(
    lake: Lake, stores: Stores, settings: Settings, callbacks: Callbacks | None = None
) -> MicroBatchJob[Erasing]:
    """Every erasure that was asked for and is not finished, one batch each."""
    callbacks, entity, tombstones = callbacks or Callbacks(), profile(settings), StoredTombstones(settings)

    def prepare(manifest: Manifest) -> Erasing:
        asked = tombstones.asked(number := manifest.end["erasure"])
        if asked is None:
            raise SealBroken(f"What {ERASE_SUBJECTS} number {number} was asked to erase")
        return Erasing(lake, manifest, Whom.of_json(asked[1]), tombstones, entity)

    steps = [RewriteProcess(table, decide) for table, decide in rewrites(settings).items()]
    profiles = [EntityProcess(table, entity.key) for table in (entity.changeset, entity.base)]
    written = {f"{one.name}/rewrite": one.table for one in steps}
    written |= {f"{one.name}/remove": one.table for one in profiles}
    return MicroBatchJob(
        name=ERASE_SUBJECTS,
        source=AskedSource(tombstones),
        prepare=prepare,
        processes=(TombstoneProcess(), *steps, AnnounceProcess(), *profiles),
        stores=stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        # Batches that only append would begin between a crash and the resume, and commit after it.
        pin=lambda: {**versions(settings), closed(QUARANTINE.name): 0},
        about=lambda: {ANNOUNCED: announced(stores)},
        # Of all who write these tables; whoever only appends begins no batch while quarantine's is held.
        leased=(
            data_table(settings.layout.scheme).name, CHANGESET.name, MAPPING.name, MUTATION_REQUEST.name,
            turn_of(MUTATION_REQUEST), QUARANTINE.name, entity.base.name, entity.changeset.name,
        ),
        lease_wait=settings.stores.lease_wait,
        fencing=LakeFencing(lake, targets({**written, "announce/append": NOTIFICATION})),
        clock=lambda: datetime.now(UTC),
        callbacks=callbacks,
    )  # fmt: skip


@dataclass
class Eraser:
    """Runs erasures of these tables, and what came of the last: table -> rows that were removed or changed.

    spark: a session that is open already; None: one is opened where there is a table.
    """

    settings: Settings
    stores: Stores
    callbacks: Callbacks = field(default_factory=Callbacks)
    spark: SparkSession | None = None

    def run(self, subject_ref: str, whom: Whom) -> dict[str, int]:
        """Erase; rows of each table. The same call does the rest after a crash. Raises what the job raises."""
        number = StoredTombstones(self.settings).ask(subject_ref, whom.as_json())
        for _ in self.finish():
            pass
        for record in self.stores.checkpoints.history(ERASE_SUBJECTS, limit=_REMEMBERED):
            if record.manifest.end["erasure"] == number:
                return {name: count for name, count in record.counts.items() if "/" in name}
        return {}

    def finish(self) -> Iterator[BatchReport]:
        """Every erasure that is not finished, and then nothing of whom they were about is kept any more."""
        with self.lake() as lake:
            yield from drain(erase_job(lake, self.stores, self.settings, self.callbacks), AT_ONCE)
        last = self.stores.checkpoints.latest(ERASE_SUBJECTS)
        if last is not None and last.state is JobState.SUCCEEDED:
            StoredTombstones(self.settings).forget_asked(last.manifest.end["erasure"])

    @contextmanager
    def lake(self) -> Iterator[Lake]:
        """The lake, with a session where there is a table."""
        if self.spark is not None:
            yield Lake(self.spark, self.settings)
        elif versions(self.settings):
            with spark_session(self.settings, ERASE_SUBJECTS) as spark:
                yield Lake(spark, self.settings)
        else:
            # Nothing asks it for its session then.
            yield Lake(cast(SparkSession, None), self.settings)

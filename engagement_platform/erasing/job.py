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
from engagement_platform.engine.job import BatchReport, MicroBatchJob, Stores, Told
from engagement_platform.engine.model import JobState, Limits, Manifest, NoIdentity, Offsets
from engagement_platform.engine.unfinished_batches import closed
from engagement_platform.erasing.found import Found
from engagement_platform.erasing.processes import (
    AnnounceProcess,
    DataProcess,
    EdgeProcess,
    EntityProcess,
    Erasing,
    NameProcess,
    RefusedProcess,
    SideProcess,
    TombstoneProcess,
)
from engagement_platform.erasing.whom import SIDE_TABLES, Whom
from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, MAPPING, NOTIFICATION, PENDING, QUARANTINE, data_table
from engagement_platform.lake.erased import ERASE_SUBJECTS, needs_spark
from engagement_platform.lake.fencing import LakeFencing
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import spark_session
from engagement_platform.merge_on_read.entity import profile
from engagement_platform.pii.sealing import SealBroken
from engagement_platform.pii.tombstones import StoredTombstones
from engagement_platform.settings import Settings

_REMEMBERED = 100
AT_ONCE = DrainPolicy(linger=timedelta(0), max_duration=timedelta.max)


def tables(settings: Settings) -> tuple[Table, ...]:
    """Every table that an erasure looks into."""
    entity = profile(settings)
    return (
        data_table(settings.layout.scheme), *SIDE_TABLES, ALIAS, NOTIFICATION, QUARANTINE, entity.changeset,
        entity.base,
    )  # fmt: skip


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


def erase_job(lake: Lake, stores: Stores, settings: Settings, told: Told | None = None) -> MicroBatchJob[Erasing]:
    """Every erasure that was asked for and is not finished, one batch each. Raises AliasesNotMoved."""
    told, entity, tombstones = told or Told(), profile(settings), StoredTombstones(settings)
    data = data_table(settings.layout.scheme)

    def asked(number: int) -> tuple[str, Whom]:
        found = tombstones.asked(number)
        if found is None:
            raise SealBroken(f"What {ERASE_SUBJECTS} number {number} was asked to erase")
        return found[0], Whom.of_json(found[1])

    def versions() -> dict[str, int]:
        found = {table.name: log.version(table.uri(settings.lake)) for table in (*tables(settings), PENDING)}
        return {name: version for name, version in found.items() if version is not None}

    def pinned() -> dict[str, int]:
        """Raises AliasesNotMoved: once an erasure is begun, others wait until it is finished.

        Asked when the batch begins and not when it is planned: it may have waited since for a batch that left aliases.
        """
        last, found = stores.checkpoints.latest(ERASE_SUBJECTS), versions()
        number = tombstones.next_asked(last.manifest.end["erasure"] if last is not None else 0)
        assert number is not None, "a batch is planned for it"
        Found(lake, asked(number)[1], tombstones, found).refuse_waiting()
        # Batches that only append would begin between a crash and the resume, and commit after it.
        return {**found, closed(QUARANTINE.name): 0}

    def prepare(manifest: Manifest) -> Erasing:
        ref, whom = asked(manifest.end["erasure"])
        return Erasing(lake, manifest, whom, ref, tombstones, entity)

    sides = [SideProcess(table, side) for table, side in SIDE_TABLES.items()]
    return MicroBatchJob(
        name=ERASE_SUBJECTS,
        source=AskedSource(tombstones),
        prepare=prepare,
        processes=(
            TombstoneProcess(),
            DataProcess(data),
            *sides,
            EdgeProcess(),
            NameProcess(),
            AnnounceProcess(),
            RefusedProcess(),
            EntityProcess(entity.changeset, entity.key),
            EntityProcess(entity.base, entity.key),
        ),
        stores=stores,
        limits=Limits(settings.batch.max_records, settings.batch.max_bytes),
        pin=pinned,
        # Of all who write these tables; whoever only appends begins no batch while quarantine's is held.
        leased=(data.name, MAPPING.name, QUARANTINE.name, entity.base.name, entity.changeset.name),
        lease_wait=settings.stores.lease_wait,
        fencing=LakeFencing(lake),
        clock=lambda: datetime.now(UTC),
        observe=told.observe,
        on_wait=told.on_wait,
        on_blocked=told.on_blocked,
    )


@dataclass
class Eraser:
    """Runs erasures of these tables, and what came of the last: table -> rows that were removed or changed.

    spark: a session that is open already; None: one is opened where delta-rs cannot write a table.
    """

    settings: Settings
    stores: Stores
    told: Told = field(default_factory=Told)
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
            yield from drain(erase_job(lake, self.stores, self.settings, self.told), AT_ONCE)
        last = self.stores.checkpoints.latest(ERASE_SUBJECTS)
        if last is not None and last.state is JobState.SUCCEEDED:
            StoredTombstones(self.settings).forget_asked(last.manifest.end["erasure"])

    @contextmanager
    def lake(self) -> Iterator[Lake]:
        """The lake, with a session only where one is needed."""
        root = self.settings.lake
        if self.spark is not None:
            yield Lake(self.spark, self.settings)
        elif any(needs_spark(root, table) for table in tables(self.settings)):
            with spark_session(self.settings, ERASE_SUBJECTS) as spark:
                yield Lake(spark, self.settings)
        else:
            # Nothing asks it for its session then.
            yield Lake(cast(SparkSession, None), self.settings)

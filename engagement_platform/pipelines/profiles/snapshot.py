"""Which versions of base and changeset belong together, and what waits between them. Reads logs, no data, no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import log
from engagement_platform.pipelines.profiles import insert_guarantee
from engagement_platform.pipelines.profiles.entity import Entity

NO_BATCH = -1
"""Before the first batch, whose number is 0."""


@dataclass(frozen=True)
class Batch:
    """One batch in the changeset."""

    rows: int
    bytes: int
    files: int
    oldest: int | None
    """Least version of a change; None where a file's log entry does not say."""


@dataclass(frozen=True)
class Snapshot:
    """A state of an entity: a version of its base, one of its changeset, and up to which batch the base has it all."""

    changeset_version: int
    base_version: int
    watermark: int
    """Batches up to this are in the base; NO_BATCH: none is."""
    batches: Mapping[int, Batch]
    """Every batch that the changeset holds, also those the base has already."""
    through: int | None = None
    """Later batches do not count; None: all do."""
    promised: str = insert_guarantee.NO
    """What the changeset says of its inserts; see `insert_guarantee`."""

    @property
    def pending(self) -> dict[int, Batch]:
        """Batches that are in the changeset only."""
        return {number: batch for number, batch in self.batches.items() if self.watermark < number <= self.latest}

    @property
    def orphans(self) -> list[int]:
        """Batches that both have: a rematerialization ended between its two commits, or is just there."""
        return sorted(number for number in self.batches if number <= self.watermark)

    @property
    def pending_rows(self) -> int:
        """Changes that wait; at least as many as there are folded ones."""
        return sum(batch.rows for batch in self.pending.values())

    @property
    def oldest(self) -> int | None:
        """Least version of a change that waits; None when that is not known, or none waits."""
        found = [batch.oldest for batch in self.pending.values()]
        return min((one for one in found if one is not None), default=None) if None not in found else None

    @property
    def latest(self) -> int:
        """The greatest batch that counts and is anywhere; NO_BATCH when there is none."""
        newest = max(self.batches, default=NO_BATCH) if self.through is None else self.through
        return max(newest, self.watermark)


def transaction(entity: Entity, latest: int) -> Transaction:
    """What a commit of the base carries that has all changes up to a batch: its watermark, as Delta's txn action.

    So base and watermark change in one commit, every snapshot of the base knows its own, and a second commit of the
    same watermark is skipped.
    """
    return Transaction(entity.watermark, latest)


def watermark_of(base: DeltaTable, entity: Entity) -> int:
    """Up to which batch this version of the base has all changes."""
    found = base.transaction_version(entity.watermark)
    return NO_BATCH if found is None else int(found)


def snapshot(
    root: str, entity: Entity, *, changeset_version: int | None = None, base_version: int | None = None
) -> Snapshot:
    """The newest state under a lake's root, or that of given versions. Both tables must exist.

    The changeset is opened first: a batch that leaves it meanwhile is in the base that is opened after it. The other
    way round a rematerialization in between would take batches away that the base of before does not have.
    """
    changeset = DeltaTable(log.storage_uri(entity.changeset.uri(root)), version=changeset_version)
    base = DeltaTable(log.storage_uri(entity.base.uri(root)), version=base_version)
    batches = batches_of(changeset, entity)
    return Snapshot(
        changeset.version(),
        base.version(),
        watermark_of(base, entity),
        batches,
        promised=insert_guarantee.noted(changeset),
    )


def pending_rows(root: str, entity: Entity) -> int:
    """How many changes wait to be moved; 0 where the tables are not made yet."""
    if log.version(entity.base.uri(root)) is None or log.version(entity.changeset.uri(root)) is None:
        return 0
    return snapshot(root, entity).pending_rows


def are_newer(root: str, entity: Entity, taken: Snapshot) -> bool:
    """Whether all changes that wait have greater versions than any row of the base, as logs say; False if they do not.

    So it is where versions grow over all keys, such as times or positions in a log, and nothing comes late.
    """
    if taken.oldest is None:
        return False
    base = DeltaTable(log.storage_uri(entity.base.uri(root)), version=taken.base_version)
    files = pa.table(base.get_add_actions(flatten=True))
    if not files.num_rows:
        return True
    newest = _bounds(files, "max", entity)
    return newest.null_count == 0 and bool(pc.max(newest).as_py() < taken.oldest)


def batches_of(changeset: DeltaTable, entity: Entity) -> dict[int, Batch]:
    """What each batch has in this version of the changeset."""
    files = pa.table(changeset.get_add_actions(flatten=True))
    oldest = _bounds(files, "min", entity)
    files = files.append_column("oldest", oldest).append_column("is_known", pc.is_valid(oldest))
    summed = files.group_by("partition.batch_id").aggregate(
        [
            *(("num_records", "sum"), ("size_bytes", "sum"), ([], "count_all")),
            *(("oldest", "min"), ("is_known", "all")),
        ]
    )
    return {
        int(row["partition.batch_id"]): Batch(
            rows=int(row["num_records_sum"] or 0),
            bytes=int(row["size_bytes_sum"]),
            files=row["count_all"],
            oldest=row["oldest_min"] if row["is_known_all"] else None,
        )
        for row in summed.to_pylist()
    }


def _bounds(files: pa.Table, which: Literal["min", "max"], entity: Entity) -> pa.ChunkedArray:
    """Of each file, the bound of its versions that its log entry has, or null."""
    name = f"{which}.{entity.version}"
    if name in files.column_names:
        return files.column(name).cast(pa.int64())
    return pa.chunked_array([pa.nulls(files.num_rows, pa.int64())])

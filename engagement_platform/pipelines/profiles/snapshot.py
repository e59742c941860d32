"""Which versions of base and changeset belong together, and what waits between them. Reads logs, no data, no Spark.

`left_join_union_inserts` needs inserts that were checked to be new as they landed, and no UPDATE that makes a row. What
counts is the policy under which a change landed, not the one it is read under, so the changeset has it in a property:
the policy, and the first batch that landed under it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import live_files, log
from engagement_platform.pipelines.profiles.entity import Entity

NO_BATCH = -1
"""Before the first batch, whose number is 0."""
INSERTS_ARE_NEW = "engagement_platform.insertsAreNew"
"""Property of a changeset."""
_NOT_CHECKED = "no"
_SINCE = " since batch "


@dataclass(frozen=True)
class Batch:
    """One batch in the changeset."""

    rows: int
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
    inserts_are_new: str = _NOT_CHECKED
    """The property of the changeset."""

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
    changeset = log.open_version(entity.changeset.uri(root), changeset_version)
    base = log.open_version(entity.base.uri(root), base_version)
    batches = batches_of(changeset, entity)
    return Snapshot(
        changeset.version(),
        base.version(),
        watermark_of(base, entity),
        batches,
        inserts_are_new=_inserts_are_new(changeset),
    )


def _inserts_are_new(changeset: DeltaTable) -> str:
    return str(changeset.metadata().configuration.get(INSERTS_ARE_NEW) or _NOT_CHECKED)


def checked_since(entity: Entity, batch: int) -> str:
    """The property of a changeset in which all batches from this one on landed under the entity's policies."""
    checks = entity.inserts_are_new and entity.unknown_update != "upsert"
    return f"{entity.unknown_update}{_SINCE}{batch}" if checks else _NOT_CHECKED


def to_note(root: str, entity: Entity, batch: int) -> str | None:
    """The property that the changeset has to have before a batch lands; None: it has it.

    A batch that is there already, and is only finished now, may have landed under another policy.
    """
    changeset = log.open_version(entity.changeset.uri(root))
    if _inserts_are_new(changeset).partition(_SINCE)[0] == checked_since(entity, batch).partition(_SINCE)[0]:
        return None
    return checked_since(entity, batch + any(part["batch_id"] == str(batch) for part in changeset.partitions()))


def were_checked(entity: Entity, taken: Snapshot) -> bool:
    """Whether all changes that wait landed under the policies that the entity has now."""
    policy, _, since = taken.inserts_are_new.partition(_SINCE)
    if not taken.pending:
        return True
    return bool(since) and policy == entity.unknown_update and int(since) <= min(taken.pending)


def pending_rows(root: str, entity: Entity) -> int:
    """How many changes wait to be moved; 0 where the tables are not made yet."""
    if log.version(entity.base.uri(root)) is None or log.version(entity.changeset.uri(root)) is None:
        return 0
    return snapshot(root, entity).pending_rows


def are_newer(root: str, entity: Entity, taken: Snapshot) -> bool:
    """Whether all changes that wait have greater versions than any row of the base, as logs say; False if they do not.

    So it is where versions grow over all keys, such as times or positions in a log, and nothing comes late.
    """
    oldest = [batch.oldest for batch in taken.pending.values()]
    known = [version for version in oldest if version is not None]
    if not known or len(known) < len(oldest):
        return False
    base = log.open_version(entity.base.uri(root), taken.base_version)
    files = pa.table(base.get_add_actions(flatten=True))
    if not files.num_rows:
        return True
    newest = live_files.of_files(files, f"max.{entity.version}", pa.int64())
    return newest.null_count == 0 and bool(pc.max(newest).as_py() < min(known))


def batches_of(changeset: DeltaTable, entity: Entity) -> dict[int, Batch]:
    """What each batch has in this version of the changeset."""
    files = pa.table(changeset.get_add_actions(flatten=True))
    oldest = live_files.of_files(files, f"min.{entity.version}", pa.int64())
    files = files.append_column("oldest", oldest).append_column("is_known", pc.is_valid(oldest))
    summed = files.group_by("partition.batch_id").aggregate(
        [("num_records", "sum"), ("oldest", "min"), ("is_known", "all")]
    )
    return {
        int(row["partition.batch_id"]): Batch(
            rows=int(row["num_records_sum"] or 0), oldest=row["oldest_min"] if row["is_known_all"] else None
        )
        for row in summed.to_pylist()
    }

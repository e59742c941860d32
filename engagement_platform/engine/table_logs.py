"""Compares the stores with what the tables say of a job's batches, so that stores older than the tables are noticed.

How logs are read is `lake.batch_logs`; bringing the stores up to what the tables say is `recovery`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engagement_platform.engine.model import RULES_VERSION, JobState, Manifest
from engagement_platform.errors import PlatformError

if TYPE_CHECKING:
    from engagement_platform.engine.stores import CheckpointStore


CROSSING = frozenset({"erase-subjects", "restore-tables"})
"""Jobs that change what other jobs have written, or put those back."""


@dataclass(frozen=True)
class Held:
    """A transaction of a job that a table holds: the last batch for which one of the job's commits was made there."""

    table: str
    job: str
    app_id: str
    """Of the job, such as `ingest-engagements@1.5f0c9a2e`."""
    commit: str
    """Process and commit, such as `data/insert`."""
    batch_id: int


@dataclass(frozen=True)
class Note:
    """The note that one commit of a table carries of its batch."""

    table: str
    digest: str
    final: bool
    """The batch makes no commit after this one."""
    manifest: Manifest
    abandoned: bool = False
    """The commit keeps late writes of a batch out that a reset gave up."""


class TableLogs:
    """What the logs of a lake's tables say of batches. This one is of stores without a lake: nothing was committed."""

    def held(self, job: str | None = None) -> Sequence[Held]:  # noqa: ARG002
        """Transactions of a job, of None of all jobs, that tables hold, under any application id."""
        return ()

    def note(self, held: Held) -> Note | None:  # noqa: ARG002
        """The note of a transaction's commit; None where its entry is no longer in the log."""
        return None

    def notes(self) -> Iterable[Note]:
        """What all commits say that are still in the logs, in any order."""
        return ()

    def last_sequence(self) -> int:
        """The greatest sequence that a commit carries; 0 where none does."""
        return 0

    def ids(self, tables: Iterable[str]) -> Mapping[str, str]:  # noqa: ARG002
        """Delta's ids of those of these tables that are there."""
        return {}


class StoresBehind(PlatformError):
    """A table holds a batch that the stores do not know: they are from a backup, or new."""

    def __init__(self, held: Held, stands: str) -> None:
        self.job, self.table, self.app_id, self.batch_id = held.job, held.table, held.app_id, held.batch_id
        super().__init__(
            f"The table {held.table} holds batch {held.batch_id} of {held.app_id}, but {stands}: the stores are older "
            "than the tables, such as after a restore from a backup. Nothing was written. Bring the stores up to what "
            f"the tables say: engagement-platform recover. Or begin {held.job} anew, what is already there counts as "
            f"duplicate: engagement-platform reset {held.job}"
        )


class OtherManifest(PlatformError):
    """A table holds a commit of this very batch that was made from another manifest."""

    def __init__(self, table: str, marker: str) -> None:
        self.table, self.marker = table, marker
        super().__init__(
            f"The table {table} holds the transaction {marker} already, and the batch that wrote it had another "
            "manifest (other offsets, versions or settings): the stores are older than the table. Nothing was written, "
            "and nothing was taken for written. Bring the stores up to what the tables say: engagement-platform recover"
        )


class TableRecreated(PlatformError):
    """A table that an unfinished batch pinned was removed and created again."""

    def __init__(self, manifest: Manifest, table: str, found: str | None) -> None:
        self.table, self.pinned, self.found = table, manifest.table_ids[table], found
        there = "there is none" if found is None else f"the table there now is {found}"
        super().__init__(
            f"{manifest} goes by version {manifest.table_versions.get(table)} of {table} with id {self.pinned}, and "
            f"{there}: it was removed and created again. No table was changed. Begin the job anew, what is already "
            f"there counts as duplicate: engagement-platform reset {manifest.job} --abandon"
        )


class RulesChanged(PlatformError):
    """An unfinished batch was begun by a version of the platform with other rules."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(
            f"{manifest} was begun under rules of version {manifest.rules_version}, and these are {RULES_VERSION}: "
            "resumed here, it could write other rows than those it has written. Nothing was written. Finish it with "
            "the version of the platform that began it, then run this one; or give it up: engagement-platform reset "
            f"{manifest.job} --abandon"
        )


def refuse_stores_behind(job: str, checkpoints: CheckpointStore, logs: TableLogs) -> None:
    """Raise StoresBehind or OtherManifest when a table holds a batch of the job that the stores do not know.

    Or one of CROSSING, which changed what the job has written. The logs are read before the stores: these know of a
    batch before a table does. Cost: the names in each table's log, the newest checkpoint's transactions and the
    entries after it; no data.
    """
    by_job = defaultdict[str, list[Held]](list)
    for each in logs.held():
        by_job[each.job].append(each)
    for one in (job, *sorted(CROSSING - {job})):
        if by_job[one]:
            _refuse_behind(one, by_job[one], checkpoints, logs)


def _refuse_behind(job: str, held: Sequence[Held], checkpoints: CheckpointStore, logs: TableLogs) -> None:
    last, (known, current) = checkpoints.latest(job), checkpoints.applications(job)
    for each in sorted(held, key=lambda one: (-one.batch_id, one.table)):
        if each.app_id not in known:
            raise StoresBehind(each, "the stores do not know that application id")
        if last is None:
            if each.app_id == current:
                raise StoresBehind(each, "the stores know of no batch of it")
            continue
        if each.app_id != last.manifest.app_id:
            continue
        if each.batch_id > last.manifest.batch_id:
            raise StoresBehind(each, f"the stores stand at batch {last.manifest.batch_id}")
        if each.batch_id == last.manifest.batch_id and last.state is not JobState.SUCCEEDED:
            note = logs.note(each)
            if note is not None and note.digest != last.manifest.digest:
                raise OtherManifest(each.table, f"{each.app_id}/{each.commit}#{each.batch_id}")


def refuse_changed(manifest: Manifest, logs: TableLogs) -> None:
    """Raise TableRecreated or RulesChanged when the rest of a batch would be other work than its beginning."""
    if manifest.rules_version != RULES_VERSION:
        raise RulesChanged(manifest)
    now = logs.ids(manifest.table_ids)
    for table, pinned in manifest.table_ids.items():
        if now.get(table) != pinned:
            raise TableRecreated(manifest, table, now.get(table))

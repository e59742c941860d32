"""Compares the stores with the batches in the tables' logs, so that stores older than the tables are noticed.

`lake.batch_logs` reads the logs; `recovery` brings the stores up to date.
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
    """The tables hold other batches than the stores know of: the stores are from a backup, or new."""

    def __init__(self, found: str, job: str | None = None) -> None:
        anew = f" Or begin {job} anew, what is already there counts as duplicate: engagement-platform reset {job}"
        super().__init__(
            f"{found}: the stores are older than the tables. Nothing was written. Bring the stores up to what the "
            f"tables say: engagement-platform recover.{anew if job else ''}"
        )


class NotResumable(PlatformError):
    """The rest of an unfinished batch would be other work than its beginning."""

    def __init__(self, manifest: Manifest, because: str) -> None:
        super().__init__(
            f"{manifest} is unfinished and cannot be resumed: {because}. Nothing was written. Begin the job anew, what "
            f"is already there counts as duplicate: engagement-platform reset {manifest.job} --abandon"
        )


def other_manifest(table: str, marker: str) -> StoresBehind:
    """Of a table that holds a commit of this very batch, made from another manifest."""
    return StoresBehind(f"The table {table} holds the transaction {marker} already, of a batch with another manifest")


def refuse_stores_behind(job: str, checkpoints: CheckpointStore, logs: TableLogs) -> None:
    """Raise StoresBehind when a table holds a batch that the stores do not know, of the job or one of CROSSING.

    One of another job keeps this one from nothing; but what that batch has moved or announced by its sequence must not
    cover what comes now, so the next sequence is greater than any that the tables hold.

    The logs are read before the stores: these know of a batch before a table does. Cost: the names in each table's
    log, the newest checkpoint's transactions and the entries after it; no data.
    """
    by_job = defaultdict[str, list[Held]](list)
    for each in logs.held():
        by_job[each.job].append(each)
    for one in (job, *sorted(CROSSING - {job})):
        if by_job[one]:
            _refuse_behind(one, by_job[one], checkpoints, logs)
    for other in sorted(by_job.keys() - {job} - CROSSING):
        try:
            _refuse_behind(other, by_job[other], checkpoints, logs)
        except StoresBehind:
            checkpoints.draw_after(logs.last_sequence())
            break


def _refuse_behind(job: str, held: Sequence[Held], checkpoints: CheckpointStore, logs: TableLogs) -> None:
    last, (known, current) = checkpoints.latest(job), checkpoints.applications(job)
    for each in sorted(held, key=lambda one: (-one.batch_id, one.table)):
        batch = f"The table {each.table} holds batch {each.batch_id} of {each.app_id}, but the stores"
        if each.app_id not in known:
            raise StoresBehind(f"{batch} do not know that application id", job)
        if last is None:
            if each.app_id == current:
                raise StoresBehind(f"{batch} know of no batch of it", job)
        elif each.app_id == last.manifest.app_id:
            if each.batch_id > last.manifest.batch_id:
                raise StoresBehind(f"{batch} are at batch {last.manifest.batch_id}", job)
            if each.batch_id == last.manifest.batch_id and last.state is not JobState.SUCCEEDED:
                note = logs.note(each)
                if note is not None and note.digest != last.manifest.digest:
                    raise other_manifest(each.table, f"{each.app_id}/{each.commit}#{each.batch_id}")


def refuse_changed(manifest: Manifest, logs: TableLogs) -> None:
    """Raise NotResumable when the rules changed since the batch began, or a table that it pinned was recreated."""
    if manifest.rules_version != RULES_VERSION:
        was = f"it began under rules of version {manifest.rules_version}, and these are {RULES_VERSION}"
        raise NotResumable(manifest, f"{was} (the version of the platform that began it can finish it)")
    found = logs.ids(manifest.table_ids)
    for table, pinned in manifest.table_ids.items():
        if found.get(table) != pinned:
            was = f"it pins version {manifest.table_versions.get(table)} of {table} with id {pinned}"
            there = f"the table there now is {found[table]}" if table in found else "there is none"
            raise NotResumable(manifest, f"{was}, and {there}: it was removed and created again")

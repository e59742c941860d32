"""Who keeps a job from beginning a batch: other jobs in the middle of one on the same tables, and how to finish those.

Waiting for them is `job`; keeping those apart who are at work is `lease`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence

from engagement_platform.engine.model import BatchRecord, Manifest
from engagement_platform.errors import PlatformError

# Room for a sentence; the whole text of a failure is in the stores.
_REASON_CHARS = 300
_REPLAY = re.compile(r"replay-(?P<group>\w+)-events")


_CLOSED = ", closed"


def closed(table: str) -> str:
    """What a batch pins that lets no batch begin which enters this table, until it is finished: `MicroBatchJob.enters`.

    The lease alone does that only while the process lives.
    """
    return f"{table}{_CLOSED}"


def kept_by(leased: Iterable[str], enters: Iterable[str]) -> tuple[str, ...]:
    """What keeps a job with these tables from beginning a batch while another's unfinished one has pinned it."""
    return (*leased, *map(closed, enters))


def looked_up(table: str) -> str:
    """What a batch pins the version of a table as that it only looks ids up in: others may begin batches on it."""
    return f"looked up: {table}"


def versions_read(manifest: Manifest, table: str) -> set[int]:
    """Every version of a table that a batch reads until it is finished: pinned, restored to, or redriven."""
    pinned = manifest.table_versions
    found = {pinned[name] for name in (table, looked_up(table)) if name in pinned}
    # A restore ends at versions of tables; the ends of other batches go by other names.
    found |= {manifest.end[table]} if table in manifest.end else set()
    if manifest.job.startswith("redrive-quarantine:") and table in pinned and table.endswith("quarantine"):
        found.add(manifest.end["version"])
    return found


class OthersBatchUnfinished(PlatformError):
    """Another job stopped in the middle of a batch on tables that this one would write.

    Its replay writes against the versions it pinned, so a new batch in between would be overlooked by it.
    """

    def __init__(self, job: str, leased: Collection[str], batches: Sequence[BatchRecord]) -> None:
        self.job, self.batches = job, tuple(batches)
        self.waits_for = "; ".join(_described(batch, leased) for batch in batches)
        """Job, batch, state, reason and tables of each batch that is in the way."""
        how = "; ".join(how_to_finish(batch.manifest.job) for batch in batches)
        super().__init__(
            f"{job} begins no new batch before another job has finished its own on the same tables: {self.waits_for}. "
            f"Nothing was changed. To finish: {how}. Then run {job} again."
        )


def blocking_batches(job: str, leased: Collection[str], unfinished: Iterable[BatchRecord]) -> tuple[BatchRecord, ...]:
    """The unfinished batches of other jobs that pinned one of these names: tables that `job` leases, see `kept_by`."""
    return tuple(
        batch
        for batch in unfinished
        if batch.manifest.job != job and not batch.manifest.table_versions.keys().isdisjoint(leased)
    )


def how_to_finish(job: str) -> str:
    """What a person does about an unfinished batch of this job.

    Jobs that go over old records again are launched by hand, each with its argument, and finish their batch first.
    """
    name, _, argument = job.partition(":")
    if name == "restore-tables":
        return "`engagement-platform restore --finish`, or `engagement-platform restore --abandon`"
    if name == "erase-subjects":
        return "`engagement-platform erase --finish`"
    if (replay := _REPLAY.fullmatch(name)) is not None:
        of = "" if replay["group"] == "game" else f" --tables {replay['group']}"
        again = f"`engagement-platform replay{of} --finish`"
    elif argument:
        reason = shlex.quote(argument.partition(":")[2] or argument)
        again = f"launch it again, `engagement-platform run {name} --reason {reason} --until-idle`"
    elif name.startswith("reread-"):
        again = f"launch {name} again, for any day"
    else:
        again = f"`engagement-platform run {job} --until-idle`"
    return f"{again}, or, when its source is gone, `engagement-platform reset {shlex.quote(job)} --abandon`"


def _described(batch: BatchRecord, leased: Collection[str]) -> str:
    # A table may be pinned under several names: its own, and with what for after a comma.
    tables = ", ".join(sorted({name.partition(", ")[0] for name in batch.manifest.table_versions if name in leased}))
    reason = next((line.strip() for line in (batch.reason or "").splitlines() if line.strip()), "")
    because = f", {reason[:_REASON_CHARS].rstrip('.')}" if reason else ""
    return f"{batch.manifest} on {tables} ({batch.state} since {batch.updated_ts:%Y-%m-%d %H:%M:%S} UTC{because})"

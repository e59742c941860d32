"""Which batches wrote a group of tables, in their order, and which version each table had at the end of one.

Values only. Reading logs and stores is `plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise

from engagement_platform.microbatch.model import JobState, Offsets
from engagement_platform.microbatch.rewind import rewound_by
from engagement_platform.microbatch.stores import BatchRecord

Commit = tuple[int, str | None]
"""Version of a table, and the user metadata of the commit that made it."""


@dataclass(frozen=True)
class Boundary:
    """The end of a batch: of the step with this number, -1: before the first one."""

    step: int
    version: int | None
    """What the table that was asked for goes to, where any version of the batch's end will not do; None: the last."""
    within: int | None = None
    """The step in whose middle the version lies that was asked for; None: in no one's."""


@dataclass(frozen=True)
class Timeline:
    """Batches of several jobs on one group of tables, oldest first; the tables' leases let no two overlap."""

    steps: Sequence[BatchRecord]
    rewinds: Sequence[BatchRecord] = ()
    """Records by which one of the steps has put a job back."""

    @classmethod
    def of(cls, records: Iterable[BatchRecord], table: str) -> Timeline:
        """Of the batches that pinned `table`, as far back as its versions only grow: before that it was another one."""
        everything = list(records)
        found = sorted((r for r in everything if table in r.manifest.table_versions), key=_began)
        first = 0
        for number, (before, after) in enumerate(pairwise(found), 1):
            if after.manifest.table_versions[table] < before.manifest.table_versions[table]:
                first = number
        return cls(found[first:], [r for r in everything if rewound_by(r) is not None])

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {f"{r.manifest.app_id}#{r.manifest.batch_id}": number for number, r in enumerate(self.steps)}

    def owner(self, marker: str | None) -> int | None:
        """The step that made a commit; -1: a batch from before the steps. None: no batch, such as a compaction."""
        application, _, batch_id = (marker or "").rpartition("#")
        parts = application.rsplit("/", 2)
        if len(parts) != 3 or not batch_id.isdecimal():
            return None
        return self._numbers.get(f"{parts[0]}#{batch_id}", -1)

    def at_version(self, version: int, commits: Iterable[Commit]) -> Boundary:
        """The end of the last batch by which a table has this version. commits: of that table, newest first."""
        above: int | None = None
        below = -1
        for number, marker in commits:
            owner = self.owner(marker)
            if owner is None:
                continue
            if number <= version:
                below = owner
                break
            above = owner
        step = self._finished((len(self.steps) if above is None else above) - 1)
        if above is not None and above == below and above >= 0:
            return Boundary(step, None, above)
        return Boundary(step, version) if step >= below else Boundary(step, None, below)

    def at(self, moment: datetime) -> Boundary | None:
        """The end of the last batch that had finished by then; None where that is before the first."""
        done = [
            n for n, r in enumerate(self.steps) if _done(r) and r.finished_ts is not None and r.finished_ts <= moment
        ]
        return Boundary(done[-1], None) if done else None

    def _finished(self, step: int) -> int:
        """The last step up to this one that finished; -1: none."""
        return next((number for number in range(step, -1, -1) if _done(self.steps[number])), -1)

    def version_at(self, step: int, commits: Iterable[Commit]) -> int | None:
        """The version of a table at the end of a step, what tidied up before the next one included; None: it still is.

        commits: of that table, newest first, as far back as its log goes.
        """
        first: int | None = None
        for number, marker in commits:
            owner = self.owner(marker)
            if owner is None:
                continue
            if owner <= step:
                break
            first = number
        return None if first is None else first - 1

    def offsets_at(self, job: str, step: int) -> Offsets | None:
        """Where the next batch of a job would have begun at the end of a step; None where it never had one.

        A job that had no batch by then begins where its first one did.
        """
        own = [(n, 0, r) for n, r in enumerate(self.steps) if r.manifest.job == job]
        own += [(self._numbers.get(rewound_by(r) or "", -1), 1, r) for r in self.rewinds if r.manifest.job == job]
        own.sort(key=lambda found: found[:2])
        before = [r for n, _, r in own if n <= step and _done(r)]
        if before:
            return before[-1].manifest.end
        return own[0][2].manifest.start if own else None

    def undone(self, step: int) -> Sequence[BatchRecord]:
        """The batches after a step."""
        return self.steps[step + 1 :]

    def name(self, step: int) -> str:
        """For people."""
        if step >= 0:
            return f"the end of {named(self.steps[step])}"
        return f"before {named(self.steps[0])}" if self.steps else "before the first batch"


def named(record: BatchRecord) -> str:
    """A batch, for people."""
    return str(record.manifest)


def _done(record: BatchRecord) -> bool:
    return record.state is JobState.SUCCEEDED


def _began(record: BatchRecord) -> tuple[datetime, int]:
    return record.started_ts, record.manifest.batch_id

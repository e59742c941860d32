"""Which batches wrote a group of tables, in their order, and which version each table had at the end of one.

Values only. Reading logs and stores is `plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from engagement_platform.engine.model import BatchRecord, JobState, Offsets, app_of
from engagement_platform.engine.unfinished_batches import looked_up
from engagement_platform.lake.contract import Table

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
class Reached:
    """Up to where a job has read its source."""

    offsets: Offsets
    identity: Mapping[str, str]
    """Of the source that the offsets are of, as `Manifest.identity`."""

    def is_of(self, identity: Mapping[str, str]) -> bool:
        """Whether the source with this identity may be the same one: no id that both have differs."""
        return all(identity.get(name, own) == own for name, own in self.identity.items())


@dataclass(frozen=True)
class Moving:
    """A job that moves landed batches from one table of a group into another while others land.

    Readers see no difference, so its batches are no steps: what it commits belongs to the batches that it moves.
    """

    job: str
    source: Table
    target: Table
    application: str
    """Application id of its commits into the target: their version is the number of the last batch in it."""
    number: str
    """What a batch that lands pins its number as."""

    @property
    def into(self) -> tuple[str, str]:
        """What batches pin the version of the target as; the first that is there counts."""
        return looked_up(self.target.name), self.target.name


class Timeline:
    """Batches of several jobs on one group of tables, oldest first. On one table no two overlap: jobs lease what they
    write."""

    def __init__(self, records: Iterable[BatchRecord], *names: str, moving: Moving | None = None) -> None:
        """Take the batches that pinned a table, in the order in which they began, which only the stores know: clocks
        are set back, and `recover` writes down many batches at one moment. As far back as its versions only grow:
        before that it was another table.

        names: what they pin a version as; of several the first that is there counts.
        """
        everything = sorted(records, key=lambda record: record.manifest.sequence)
        mover = None if moving is None else moving.job
        steps = [r for r in everything if r.manifest.job != mover and _pinned(r, names) is not None]
        first, last = 0, dict[str, int]()
        pins = [next(name for name in names if name in record.manifest.table_versions) for record in steps]
        for number, (name, record) in enumerate(zip(pins, steps, strict=True)):
            table, version = name.rpartition(": ")[2], record.manifest.table_versions[name]
            if version < last.get(table, 0):
                first, last = number, {}
            last[table] = version
        self.moving, self.steps = moving, steps[first:]
        self._ends = _ends(self.steps, pins[first:])
        # Batches of the job that moves, and records by which one of the steps has put a job back.
        self._moves = [r for r in everything if r.manifest.job == mover]
        self._rewinds = [r for r in everything if r.rewound_by is not None]
        self._numbers = {f"{r.manifest.app_id}#{r.manifest.batch_id}": number for number, r in enumerate(self.steps)}

    def owner(self, marker: str | None, version: int | None = None) -> int | None:
        """The step that made a commit; -1: a batch from before the steps. None: no batch, such as a compaction.

        version: of the commit. One that moved batches is the last one's of these.
        """
        application, _, number = (marker or "").rpartition("#")
        if self.moving is not None and application == self.moving.application and number.isdecimal():
            return self._landed(int(number), version)
        app_id = app_of(marker)
        if app_id is None or (self.moving is not None and app_id.rpartition("@")[0] == self.moving.job):
            return None
        return self._numbers.get(f"{app_id}#{number}", -1)

    def _owned(self, commits: Iterable[Commit]) -> Iterator[tuple[int, int]]:
        """Version and step of each commit that a batch made."""
        for version, marker in commits:
            if (owner := self.owner(marker, version)) is not None:
                yield version, owner

    def _landed(self, number: int, version: int | None) -> int:
        """The last step that landed a batch up to this number before a version of the table that it was moved into.

        After a restore numbers may come once more.
        """
        assert self.moving is not None, "nothing is moved"
        for step in range(len(self.steps) - 1, -1, -1):
            pinned = self.steps[step].manifest.table_versions
            into = _pinned(self.steps[step], self.moving.into)
            early = version is None or into is None or into < version
            if self.moving.number in pinned and pinned[self.moving.number] <= number and early:
                return step
        return -1

    def after(self, version: int, commits: Iterable[Commit]) -> BatchRecord | None:
        """The batch, or the one that moved batches, that wrote a table next after a version; None: none is known.

        commits: of that table, newest first.
        """
        found: BatchRecord | None = None
        for number, marker in commits:
            if number <= version:
                break
            if (owner := self.owner(marker, number)) is not None:
                found = self._mover(marker, number) or (self.steps[owner] if owner >= 0 else None)
        return found

    def _mover(self, marker: str | None, version: int) -> BatchRecord | None:
        application, _, number = (marker or "").rpartition("#")
        if self.moving is None or application != self.moving.application:
            return None
        own = [r for r in self._moves if r.rewound_by is None and str(r.manifest.end.get("batch")) == number]
        began = [(into, r) for r in own if (into := _pinned(r, self.moving.into)) is not None and into < version]
        return max(began, key=lambda one: one[0])[1] if began else None

    def at_version(self, version: int, commits: Iterable[Commit]) -> Boundary:
        """The end of the last batch by which a table has this version. commits: of that table, newest first."""
        above: int | None = None
        below = -1
        for number, owner in self._owned(commits):
            if number <= version:
                below = owner
                break
            above = owner
        step = self._finished((len(self.steps) if above is None else above) - 1)
        if above is not None and above == below and above >= 0:
            return Boundary(step, None, above)
        return Boundary(step, version) if step >= below else Boundary(step, None, below)

    def at(self, moment: datetime) -> Boundary | None:
        """The end of the last batch that had finished by then, with all that began before it; None: there is none."""
        done = None
        for number, step in enumerate(self.steps):
            if _done(step):
                if (end := self._ends[number]) is None or end > moment:
                    break
                done = number
        return None if done is None else Boundary(done, None)

    def _finished(self, step: int) -> int:
        """The last step up to this one that finished; -1: none."""
        return next((number for number in range(step, -1, -1) if _done(self.steps[number])), -1)

    def version_at(self, step: int, commits: Iterable[Commit]) -> int | None:
        """The version of a table at the end of a step, what tidied up before the next one included; None: it still is.

        commits: of that table, newest first, as far back as its log goes.
        """
        first: int | None = None
        for number, owner in self._owned(commits):
            if owner <= step:
                break
            first = number
        return None if first is None else first - 1

    def reached(self, job: str, step: int) -> Reached | None:
        """Where the next batch of a job would have begun at the end of a step; None where it never had one.

        A job that had no batch by then begins where its first one did.
        """
        own = [(n, 0, r) for n, r in enumerate(self.steps) if r.manifest.job == job]
        own += [(self._numbers.get(r.rewound_by or "", -1), 1, r) for r in self._rewinds if r.manifest.job == job]
        own.sort(key=lambda found: found[:2])
        if before := [r.manifest for n, _, r in own if n <= step and _done(r)]:
            return Reached(before[-1].end, before[-1].identity)
        first = own[0][2].manifest if own else None
        return None if first is None else Reached(first.start, first.identity)

    def ends_after(self, moment: datetime, step: int) -> bool:
        """Whether a step is there and had ended after a time.

        Of steps up to the end of the last one that is forgotten some are left: the last of each application id,
        restores and erasures. What was between them is not known, nor where jobs had read by then.
        """
        end = self._ends[step] if step >= 0 else None
        return end is not None and end > moment

    def name(self, step: int) -> str:
        """For people."""
        if step >= 0:
            return f"the end of {self.steps[step].manifest}"
        return f"before {self.steps[0].manifest}" if self.steps else "before the first batch"


def _pinned(record: BatchRecord, names: Sequence[str]) -> int | None:
    versions = record.manifest.table_versions
    return next((versions[name] for name in names if name in versions), None)


def _ends(steps: Sequence[BatchRecord], pins: Sequence[str]) -> list[datetime | None]:
    """When each step had ended, at the latest: one that shows a later time than the next on its table, which began
    after that, ended by a clock that was ahead. pins: what each pinned a version as."""
    ends, least = list[datetime | None](), dict[str, datetime]()
    for step, pin in zip(reversed(steps), reversed(pins), strict=True):
        end = step.finished_ts
        if end is not None and pin in least:
            end = min(end, least[pin])
        if end is not None and _done(step):
            least[pin] = end
        ends.append(end)
    return ends[::-1]


def _done(record: BatchRecord) -> bool:
    return record.state is JobState.SUCCEEDED

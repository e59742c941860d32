"""The words of the micro-batch engine: offsets, manifest, counts, checkpoint, and what sources and processes promise.

Values and protocols only. Keeping them is `stores`, running them is `job`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

Offsets = Mapping[str, int]
"""Partition -> next offset to read. Kafka: partition number as text; a table as source: {"version": n}."""

Counts = Mapping[str, int]
"""What a process or a batch did: rows_in, landed, duplicates, quarantined, files, bytes, … (names in `docs`)."""


ENDS = ("landed", "duplicates", "quarantined", "erased")
"""What becomes of a record that a batch received. erased: its subject is erased, so nothing of it is kept."""


def accounted(counts: Counts) -> int:
    """How many records these counts account for."""
    return sum(counts.get(name, 0) for name in ENDS)


RULES_VERSION = 3
"""Goes up with every change of a rule by which the same messages and settings would make other rows: a batch that was
begun under another version is not resumed."""


class JobState(StrEnum):
    """State of a batch."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


UNFINISHED = (JobState.RUNNING, JobState.FAILED)
"""States of a batch that the next run of its job takes up again."""


@dataclass(frozen=True)
class Manifest:
    """All that a batch may depend on, written before any work, so that a replay is the same work."""

    job: str
    app_id: str
    """First part of every txnAppId; changes when the job is reset, so that Delta does not skip the re-read."""
    batch_id: int
    start: Offsets
    end: Offsets
    ingestion_ts: datetime
    """The only clock a process may look at. UTC, microseconds."""
    table_versions: Mapping[str, int] = field(default_factory=dict)
    """Delta version of every table a process reads, by table name such as `engagement/data`."""
    table_ids: Mapping[str, str] = field(default_factory=dict)
    """Delta's id of each of those tables: a version identifies nothing once a table was recreated."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """Which source the offsets are of: topic id and cluster id, or the table's id. Empty: the source has none."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Every setting that decides what becomes of a record, as the batch goes by it to its end. JSON-able."""
    source: Mapping[str, object] = field(default_factory=dict)
    """What else is kept of the source, such as a restore's plan. JSON-able."""
    rules_version: int = RULES_VERSION
    sequence: int = field(default=0, compare=False)
    """Orders the batches of all jobs of these stores. Drawn by the stores when the batch begins, so two manifests
    are compared without it; 0 before."""

    def __str__(self) -> str:
        return f"{self.job} batch {self.batch_id}"

    @property
    def name(self) -> str:
        """Names the batch among those of all jobs and application ids."""
        return f"{self.app_id}#{self.batch_id}"

    @property
    def generation(self) -> int:
        """How often the job has begun anew, such as 2 of `ingest-engagements@2.77ab03c1`."""
        return int(self.app_id.rpartition("@")[2].partition(".")[0])

    def as_json(self) -> dict[str, object]:
        """All of it, as the stores and the tables' commits keep it; `manifest_from` reads it."""
        return {**vars(self), "ingestion_ts": self.ingestion_ts.isoformat(timespec="microseconds")}

    @property
    def digest(self) -> str:
        """Of all that is in it. Two batches with one digest are the same work."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def transaction(self, process: str, commit: str, *, final: bool = False, abandoned: bool = False) -> Transaction:
        """Under which a process makes one of its commits: `<app id>/<process>/<commit>` at the batch id.

        final: no other commit of the batch comes after this one. abandoned: the commit only keeps late writes of the
        batch out, which nobody finishes.
        """
        note = {"digest": self.digest, "final": final, "manifest": self.as_json()}
        if abandoned:
            note["abandoned"] = True
        text = json.dumps(note, sort_keys=True, separators=(",", ":"))
        return Transaction(f"{self.app_id}/{process}/{commit}", self.batch_id, text)

    @property
    def is_replay(self) -> bool:
        """The records may have been seen before this application id: after a reset, and in jobs that re-read."""
        return not self.app_id.startswith(f"{self.job}@1.") or not self.job.startswith("ingest-")


def manifest_from(stored: Mapping[str, Any]) -> Manifest:
    """The inverse of `Manifest.as_json`. Raises KeyError, ValueError or TypeError where it is none."""
    return Manifest(**{**stored, "ingestion_ts": datetime.fromisoformat(stored["ingestion_ts"])})


REWOUND_BY, REWOUND_FROM = "rewound_by", "rewound_from"
"""In `Manifest.source` of a record that puts a job back: name of the batch that does it, and the former app id."""


@dataclass(frozen=True)
class BatchRecord:
    """One batch in the history of a job; the last one is the job's checkpoint."""

    manifest: Manifest
    state: JobState
    started_ts: datetime
    """First attempt."""
    finished_ts: datetime | None = None
    """When it succeeded or last failed; None while it runs."""
    attempts: int = 1
    counts: Counts = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    reason: str | None = None

    @property
    def updated_ts(self) -> datetime:
        """When it ended, or, while it runs, when it was first begun."""
        return self.finished_ts or self.started_ts

    @property
    def rows(self) -> int:
        """Rows that it received; of a move, changes that it took up."""
        return self.counts.get("rows_in", self.counts.get("changes", 0))

    @property
    def unread_from(self) -> Offsets:
        """Where what no finished batch has read begins."""
        return self.manifest.end if self.state is JobState.SUCCEEDED else self.manifest.start

    @property
    def rewound_by(self) -> str | None:
        """`Manifest.name` of the batch that put the job back with this record; None for a batch that was read."""
        name = self.manifest.source.get(REWOUND_BY)
        return name if isinstance(name, str) else None


def lineage(records: Iterable[BatchRecord], app_id: str) -> set[str]:
    """The application ids under which a job has read the source that it reads now: `app_id`, and those it was put
    back from. A reset begins anew. records: the job's history, in any order."""
    rewound = [record.manifest for record in records if record.rewound_by is not None]
    former = {manifest.app_id: str(manifest.source[REWOUND_FROM]) for manifest in rewound}
    found = {app_id}
    while (app_id := former.get(app_id, "")) and app_id not in found:
        found.add(app_id)
    return found


def first_start(records: Iterable[BatchRecord], app_id: str) -> Offsets | None:
    """Where the oldest record of an application id begins; None where there is none."""
    own = [record.manifest for record in records if record.manifest.app_id == app_id]
    return min(own, key=lambda manifest: manifest.batch_id).start if own else None


@dataclass(frozen=True)
class ProcessState:
    """One row of the Batch Metadata Store: the last batch that a process finished, and what it did."""

    job: str
    process: str
    batch_id: int
    modified_ts: datetime
    counts: Counts = field(default_factory=dict)


def _unguarded() -> None:
    """For writers that hold no lease."""


@dataclass(frozen=True)
class Transaction:
    """Names one commit of one batch: Delta keeps (app_id, version) and skips a second write under the same."""

    app_id: str
    version: int
    note: str = field(default="", compare=False)
    """Digest and manifest of the batch, as one line of JSON in the commit. Empty: the commit is of no batch."""
    guard: Callable[[], None] = field(default=_unguarded, compare=False, repr=False)
    """Raises when its writer may not commit any more. Called by the writer immediately before the write."""
    of: str = field(default="", compare=False)
    """Marker of the batch's commit that writes under another application's id, such as a watermark; empty: its own."""

    @property
    def marker(self) -> str:
        """Begins the commit's user metadata; by it the commit is found again in the table's history."""
        return self.of or f"{self.app_id}#{self.version}"

    @property
    def metadata(self) -> str:
        """User metadata of the commit: the marker, and on a line of its own the note."""
        return f"{self.marker}\n{self.note}" if self.note else self.marker

    @property
    def digest(self) -> str | None:
        """Of the manifest of its batch; None where it is of no batch."""
        return None if not self.note else str(json.loads(self.note)["digest"])


_OF_BATCH = re.compile(r"(.+@\d+\.[^/@]+)/[^/]+/[^/]+#\d+", re.DOTALL)
"""`Transaction.marker` of a batch's commit: job@generation.token/process/commit#batch."""


def app_of(marker: str | None) -> str | None:
    """The application id of the job whose batch made a commit with this marker; None: it is no batch's, such as a
    compaction or the fence of a lease."""
    found = _OF_BATCH.fullmatch(marker or "")
    return None if found is None else found[1]


@dataclass(frozen=True)
class Limits:
    """How much one batch may take."""

    max_records: int
    max_bytes: int
    counted_by: str = "rows_in"
    """Count of a batch that max_records limits."""

    def is_full(self, counts: Mapping[str, int]) -> bool:
        """Whether a batch took as much as it may, so that more may be waiting. Bytes are limited by an estimate."""
        return counts.get(self.counted_by, 0) >= self.max_records or 2 * counts.get("bytes_in", 0) >= self.max_bytes


class NoIdentity:
    """Of a source of which there is one only, such as a queue of work or what was asked for: nothing to compare.

    What is gone fails when it is read, and how many records there are is not known before.
    """

    def identify(self, pinned: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002
        """No ids."""
        return {}

    def check(self, start: Offsets, end: Offsets) -> None:
        """Nothing to look at."""

    def read_otherwise(self, start: Offsets, end: Offsets) -> bool:  # noqa: ARG002
        """There is one way."""
        return False

    def size(self, start: Offsets, end: Offsets) -> int | None:  # noqa: ARG002
        """Not known."""
        return None


class Source(Protocol):
    """Where batches come from. `plan` decides what a new batch reads; the manifest pins it from then on."""

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> tuple[Offsets, Offsets] | None:
        """The next range (start, end) at or after `start`, or None when nothing is waiting.

        start None: the job's first batch, begin where the source is configured to begin.
        mean_bytes: bytes per record of the batch before, None when unknown.
        Raises a PlatformError when data between `start` and what the source still has is lost.
        """
        ...

    def check(self, start: Offsets, end: Offsets) -> None:
        """Raise a PlatformError when the pinned range can no longer be read whole."""
        ...

    def read_otherwise(self, start: Offsets, end: Offsets) -> bool:
        """Asked once Spark has failed on a range: whether the source reads it in another way from now on.

        Then the batch is tried again at once.
        """
        ...

    def identify(self, pinned: Mapping[str, str]) -> Mapping[str, str]:
        """Which source this is now, by ids that another one of the same name does not have; empty where it has none.

        pinned: what the job's last batch was read from. Raises a PlatformError when that was another one.
        """
        ...

    def size(self, start: Offsets, end: Offsets) -> int | None:
        """At most how many records a range has; None when that is not known before it is read."""
        ...

"""The words of the micro-batch engine: offsets, manifest, counts, checkpoint, and what sources and processes promise.

Values and protocols only. Keeping them is `stores`, running them is `job`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

Offsets = Mapping[str, int]
"""Partition -> next offset to read. Kafka: partition number as text; a table as source: {"version": n}."""

Counts = Mapping[str, int]
"""What a process or a batch did: rows_in, landed, duplicates, quarantined, files, bytes, … (names in `docs`)."""


class JobState(StrEnum):
    """Where the batch in the Checkpoint Store stands ."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


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

    def __str__(self) -> str:
        return f"{self.job} batch {self.batch_id}"

    def transaction(self, process: str, commit: str) -> Transaction:
        """Under which a process makes one of its commits: `<app id>/<process>/<commit>` at the batch id."""
        return Transaction(f"{self.app_id}/{process}/{commit}", self.batch_id)

    @property
    def goes_over_again(self) -> bool:
        """The records may have been seen before this application id: after a reset, and in jobs that re-read."""
        return not self.app_id.startswith(f"{self.job}@1.") or not self.job.startswith("ingest-")


@dataclass(frozen=True)
class Checkpoint:
    """The last batch of a job."""

    manifest: Manifest
    state: JobState
    updated_ts: datetime
    counts: Counts = field(default_factory=dict)
    reason: str | None = None

    @property
    def unread_from(self) -> Offsets:
        """Where what no finished batch has read begins."""
        return self.manifest.end if self.state is JobState.SUCCEEDED else self.manifest.start


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
    guard: Callable[[], None] = field(default=_unguarded, compare=False, repr=False)
    """Raises when its writer may not commit any more. Called by whoever writes, immediately before the write."""

    @property
    def marker(self) -> str:
        """User metadata of the commit, by which it is found again in the table's history."""
        return f"{self.app_id}#{self.version}"


@dataclass(frozen=True)
class Limits:
    """How much one batch may take."""

    max_records: int
    max_bytes: int


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

    def size(self, start: Offsets, end: Offsets) -> int | None:
        """At most how many records a range has; None when that is not known before it is read."""
        ...

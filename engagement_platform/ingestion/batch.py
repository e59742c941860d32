"""One batch of engagements, decoded once and settled against the pinned tables: what every batch can tell and give.

The rows that processes write are made by `many` (in Spark) and by `few` (in this process).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from pyspark.sql import DataFrame

from engagement_platform.engine.model import Manifest
from engagement_platform.ingestion.settle import REASONS, Verdict
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake, Rows

QUANTILES = tuple(i / 20 for i in range(21))
"""Of the production times of a batch's messages: 0, 5, … 100 percent."""


@dataclass(frozen=True)
class Summary:
    """What one pass over the decoded batch tells: counts, and the values that prune what is read next."""

    rows_in: int
    bytes_in: int
    rejected: Mapping[str, int]
    unknown_fields: int
    named: int
    organizations: Sequence[str]
    dates: Sequence[date]
    produced_quantiles_ms: Sequence[int]

    @property
    def accepted(self) -> int:
        """Records that decoding let through."""
        return self.rows_in - sum(self.rejected.values())


@dataclass(frozen=True)
class NameChanges:
    """Rows for the mapping and what they do."""

    rows: Rows
    new: int
    changed: int


@dataclass
class EngagementBatch(ABC):
    """Figures of one batch, and the rows that it writes."""

    lake: Lake
    data: Table
    manifest: Manifest
    raw: DataFrame
    summary: Summary
    settled: Mapping[str, int]
    """Verdict or reason code -> copies, of those that needed a second look; the others are new and alone."""

    @property
    def inserted(self) -> int:
        """Engagements that were not in the table."""
        return self.summary.accepted - sum(self.settled.values()) + self.settled.get(Verdict.INSERT, 0)

    @property
    def updated(self) -> int:
        """Engagements of which a newer version came."""
        return self.settled.get(Verdict.UPDATE, 0)

    @property
    def duplicates(self) -> int:
        """Copies that change nothing: the same again, or an older version."""
        return self.settled.get(Verdict.DUPLICATE, 0) + self.settled.get(Verdict.SUPERSEDED, 0)

    @property
    def superseded(self) -> int:
        """Versions that landed and do not stand, of which the contents are kept: at most so many rows."""
        return self.updated + self.settled.get(Verdict.SUPERSEDED, 0)

    @property
    def contradictions(self) -> int:
        """Copies that decoding accepted and the table refutes."""
        return sum(self.settled.get(reason, 0) for reason in REASONS)

    @property
    @abstractmethod
    def originals(self) -> int:
        """How many rows `original_rows` has."""

    @property
    @abstractmethod
    def unseen(self) -> int:
        """Copies that land and nobody sees: their person was deleted before they came."""

    @abstractmethod
    def rejected_rows(self) -> Rows:
        """Rows for quarantine; those that it may hold from an earlier reading are left out."""

    @abstractmethod
    def said_names(self) -> Rows:
        """Rows for the log of names."""

    @abstractmethod
    def name_changes(self) -> NameChanges:
        """Rows for the mapping, from all copies whose word about names counts: not the refuted ones, now or earlier."""

    @abstractmethod
    def data_rows(self, verdict: Verdict) -> Rows:
        """Rows for the Data Table of the copies with this verdict."""

    @abstractmethod
    def original_rows(self) -> Rows:
        """What patched engagements said, before any patch."""

    @abstractmethod
    def superseded_rows(self) -> Rows:
        """What versions said that landed and do not stand: the replaced ones, and lower ones that came."""

    @abstractmethod
    def notification_rows(self) -> Rows:
        """One row for each copy that lands and changes what readers see."""

    @abstractmethod
    def touched(self) -> dict[str, Sequence[object]]:
        """Organizations and days of the updates; what literal pruning of a MERGE needs."""

"""What one batch of mutations came to: figures, choices, and the rows that its processes write.

Nothing is written here. Few requests are resolved in this process by `few`, many in Spark by `many`; both make a
`MutationBatch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Manifest
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import MAPPING, ORIGINAL
from engagement_platform.lake.lake import Lake, Rows
from engagement_platform.mutation.strategy import Choice

KEY = ("organization_id", "engagement_date", "engagement_id")
"""By which a changed row is found: the leading ones prune."""


@dataclass(frozen=True)
class Figures:
    """What the requests came to."""

    rows_in: int
    accepted: int
    duplicates: int
    rejected: Mapping[str, int]
    """Reason code -> requests."""
    by_operation: Mapping[str, int]
    """CONVERT, DELETE, RENAME, UPDATE -> accepted requests."""

    @property
    def quarantined(self) -> int:
        """Requests that were rejected."""
        return sum(self.rejected.values())


class Cascades(NamedTuple):
    """How requests run into each other, and what they come to."""

    chains: int
    """Groups of requests that run into each other."""
    longest_chain: int
    """Most requests that one row follows."""
    operations: int
    """Changes of an id's rows as a whole, and requests whose rows are walked one by one; never more than requests."""


@dataclass(frozen=True)
class Changes:
    """Rows of the Data Table that this batch changes, and how."""

    operations: Rows
    """Columns of `engagement/operation` without stamps: what happens to the rows of ids as a whole."""
    operation_rows: int
    rows: Rows
    """KEY, person_id, batch_id and engagement (null: stays) of each row that is written; with `by_operation` only
    those that no operation settles."""
    rows_count: int
    within: Mapping[str, Sequence[Any]]
    """Organizations and days of `rows`; what literal pruning needs."""
    changed_rows: int
    by_operation: bool
    """Most rows are moved by `operations`, and only the others by `rows`."""
    notifications: Rows
    inserted: int
    updated: int
    deleted: int

    @property
    def announced(self) -> int:
        """Rows that look different to readers."""
        return self.inserted + self.updated + self.deleted


class Names(NamedTuple):
    """Rows for the mapping, how many, and of which organizations."""

    rows: Rows
    rows_count: int
    organizations: Sequence[str]


class Settled(Protocol):
    """What a batch comes to, found out when it is asked for: what readers wait for first, what takes longest last."""

    @property
    def choices(self) -> Mapping[str, Choice]:
        """Of the organizations whose identities change or wait; known with the changes."""
        ...

    @property
    def originals(self) -> Sequence[Mapping[str, Any]]:
        """Rows for `engagement/original`: what rows said before their first patch; known with the changes."""
        ...

    @property
    def cascades(self) -> Cascades:
        """Of the batch's own requests."""
        ...

    def names(self) -> Sequence[Mapping[str, Any]] | DataFrame:
        """Rows for the mapping that differ from what stands: in this process, or its columns in Spark."""
        ...

    def changes(self) -> Changes:
        """Rows of the Data Table that change."""
        ...


@dataclass
class MutationBatch:
    """One batch of requests: sorted out at once, settled as its processes go on."""

    lake: Lake
    data: Table
    manifest: Manifest
    organizations: Sequence[str]
    figures: Figures
    settled: Settled
    rejected: Rows
    aliases: Rows
    aliases_count: int
    amendments: Rows
    amendments_count: int
    moving: Sequence[str]
    """Organizations whose identities the batch's own requests may move, where it is cheap to mark them as pending."""
    was_pending: Mapping[str, int] = field(default_factory=dict)
    """Organization -> first batch that the Data Table does not show."""

    @cached_property
    def changes(self) -> Changes:
        """Rows of the Data Table that change, and how."""
        return self.settled.changes()

    @cached_property
    def names(self) -> Names:
        """Rows for the mapping."""
        found = self.settled.names()
        if isinstance(found, DataFrame):
            rows = found.localCheckpoint()
            summed = rows.agg(F.count("*"), F.collect_set("organization_id")).collect()[0]
            return Names(rows, summed[0], sorted(summed[1]))
        here = table_of(found, MAPPING)
        return Names(here, here.num_rows, sorted(pc.unique(here.column("organization_id")).to_pylist()))

    @cached_property
    def originals(self) -> pa.Table:
        """Rows for `engagement/original`."""
        assert self.changes is not None
        return table_of(self.settled.originals, ORIGINAL)

    @property
    def choices(self) -> Mapping[str, Choice]:
        """How each organization's changes reach the Data Table."""
        assert self.changes is not None
        return self.settled.choices

    @property
    def marked(self) -> Sequence[str]:
        """Organizations to mark as pending before the batch's edges are committed, so that the view shows them."""
        return sorted({*(self.moving or [*self.left_pending, *self._moved_in_two])} - self.was_pending.keys())

    @property
    def _moved_in_two(self) -> Sequence[str]:
        """Organizations whose rows change in two commits: in between, the view goes by their edges."""
        changes = self.changes
        return self.moved if changes.by_operation and changes.operation_rows and changes.rows_count else ()

    @property
    def moved(self) -> Sequence[str]:
        """Organizations whose bytes are moved now."""
        return sorted(name for name, choice in self.choices.items() if choice.strategy != "alias")

    @property
    def left_pending(self) -> Sequence[str]:
        """Organizations whose bytes are moved later."""
        return sorted(name for name, choice in self.choices.items() if choice.strategy == "alias")

    @property
    def bytes_changed(self) -> int:
        """Bytes of the rows that are moved, by the mean of their organization; what was patched is left out."""
        moved = (choice for choice in self.choices.values() if choice.strategy != "alias" and choice.stored.rows)
        return sum(choice.changed_rows * choice.stored.bytes // choice.stored.rows for choice in moved)

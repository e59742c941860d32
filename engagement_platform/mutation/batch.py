"""What one batch of mutations came to: figures, choices, and the rows that its processes write.

Nothing is written here. Few requests are resolved in this process by `few`, many in Spark by `many`; both make a
`MutationBatch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from engagement_platform.microbatch.model import Manifest
from engagement_platform.mutation.strategy import Choice
from engagement_platform.tables.contract import Table
from engagement_platform.tables.lake import Lake, Rows

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
    chains: int = 0
    """Groups of requests that run into each other."""
    longest_chain: int = 0
    """Most requests that one row follows."""
    operations: int = 0
    """Changes of an id's rows as a whole, and requests whose rows are walked one by one; never more than requests."""

    @property
    def quarantined(self) -> int:
        """Requests that were rejected."""
        return sum(self.rejected.values())


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


@dataclass(frozen=True)
class MutationBatch:
    """One batch of requests, resolved."""

    lake: Lake
    data: Table
    manifest: Manifest
    organizations: Sequence[str]
    figures: Figures
    changes: Changes
    rejected: Rows
    aliases: Rows
    aliases_count: int
    amendments: Rows
    amendments_count: int
    originals: Rows
    originals_count: int
    names: pa.Table
    """Rows for the mapping."""
    names_count: int
    choices: Mapping[str, Choice]
    """Of the organizations whose identities change."""
    was_pending: Mapping[str, int] = field(default_factory=dict)
    """Organization -> first batch that the Data Table does not show."""

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

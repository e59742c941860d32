"""What moves of pending changes into a base have in common: the strategy, and one commit for rows and watermark.

Which rows change is decided by each pipeline: `mutations.move` for engagements, `profiles.rematerialize` for entities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engagement_platform.engine.fencing import Committer
from engagement_platform.engine.model import Counts, Transaction
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake

Strategy = Literal["merge", "deletion_vectors", "overwrite", "replace_where"]
OVERWRITE_SHARE = 0.5
"""`auto`: from this share of rows on the whole table is written anew, which looks for no row (a guess)."""


@dataclass(frozen=True)
class Choice:
    """How the base is written, and why."""

    strategy: Strategy
    why: str


def choose(asked: Strategy | Literal["auto"], setting: str, changed_rows: int, rows: int) -> Choice:
    """What a setting asks for, or what `auto` makes of it. rows: of the base."""
    if asked != "auto":
        return Choice(asked, f"set by {setting}")
    overwrites = rows > 0 and changed_rows >= OVERWRITE_SHARE * rows
    return Choice("overwrite" if overwrites else "merge", f"{changed_rows:,} of {rows:,} rows change")


def commit_base(
    lake: Lake,
    table: Table,
    commit: Committer,
    name: str,
    watermark: Callable[[Transaction], Transaction],
    write: Callable[[Transaction], None],
) -> Counts:
    """Write rows and watermark in one commit, so that readers see the same before and after it.

    watermark: from the batch's transaction, the one that the commit carries: by it readers and replays go.
    Counts: files, bytes, commits, files_rewritten, bytes_rewritten.
    """
    with commit(name) as batch:
        txn = watermark(batch)
        write(txn)
    return {**lake.written(table, txn), **lake.rewritten(table, txn)}

"""How a move of pending changes writes its base: the strategy, by a setting or by how much changes.

Which rows change is decided by each pipeline: `mutations.move` for engagements, `profiles.rematerialize` for entities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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

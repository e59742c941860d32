"""Chooses for each organization how its changes reach the Data Table, from what its files say. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engagement_platform.settings import MutationSettings
from engagement_platform.tables.log import Stored

Strategy = Literal["merge", "deletion_vectors", "overwrite", "alias"]


@dataclass(frozen=True)
class Choice:
    """What was chosen for an organization, and why."""

    strategy: Strategy
    changed_rows: int
    stored: Stored
    why: str

    @property
    def expected_bytes(self) -> int:
        """Bytes that are rewritten if all files of the organization are."""
        return 0 if self.strategy == "alias" else self.stored.bytes

    @property
    def amplification(self) -> float:
        """Bytes rewritten for each byte of a changed row, if all files of the organization are rewritten."""
        return self.stored.rows / self.changed_rows if self.changed_rows else 0.0


def choose(changed_rows: int, stored: Stored, settings: MutationSettings, *, partitioned: bool) -> Choice:
    """How the changes of one organization are applied.

    changed_rows: rows that differ from what the table holds, those that waited before included. partitioned: the
    table has partitions of its organizations. `auto` moves the bytes, unless that would rewrite much for little: then
    the view shows the change at once and the bytes wait until more has gathered.
    """
    if not changed_rows:
        return Choice("merge", changed_rows, stored, "no row changes")
    if settings.apply == "overwrite" and not partitioned:
        return Choice("merge", changed_rows, stored, "the table has no partitions that could be overwritten")
    if settings.apply != "auto":
        return Choice(settings.apply, changed_rows, stored, "set by mutation.apply")
    amplification = stored.rows / changed_rows if changed_rows else 0.0
    if stored.bytes < settings.pending_bytes:
        return Choice("merge", changed_rows, stored, "its files are small")
    if amplification > settings.max_amplification:
        why = f"moving now would write {amplification:,.0f} times the bytes that change"
        return Choice("alias", changed_rows, stored, why)
    return Choice("merge", changed_rows, stored, f"{amplification:,.1f} times the bytes that change are written")


def summarized(choices: Mapping[str, Choice]) -> dict[str, object]:
    """What was chosen, for people: strategy -> organizations, changed rows, bytes expected; and one reason each."""
    found: dict[str, dict[str, object]] = {}
    for choice in choices.values():
        of = found.setdefault(
            choice.strategy, {"organizations": 0, "changed_rows": 0, "expected_bytes": 0, "why": choice.why}
        )
        for name, value in (("organizations", 1), ("changed_rows", choice.changed_rows)):
            of[name] = int(str(of[name])) + value
        of["expected_bytes"] = int(str(of["expected_bytes"])) + choice.expected_bytes
    return dict(found)

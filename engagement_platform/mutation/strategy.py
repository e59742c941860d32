"""Chooses for each organization how its changes reach the Data Table, from what its files say. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engagement_platform.lake.log import Stored
from engagement_platform.settings import MutationSettings

Strategy = Literal["merge", "deletion_vectors", "overwrite", "alias"]


@dataclass(frozen=True)
class Choice:
    """What was chosen for an organization, and why."""

    strategy: Strategy
    changed_rows: int
    stored: Stored
    """All files of the organization."""
    touched: Stored
    """Those of them that may hold a row that changes, by the bounds of their days."""
    why: str

    @property
    def expected_bytes(self) -> int:
        """Bytes of the files that are replaced. None are by `deletion_vectors`: rows of theirs are marked."""
        if self.strategy in {"alias", "deletion_vectors"}:
            return 0
        return self.stored.bytes if self.strategy == "overwrite" else self.touched.bytes


def choose(
    changed_rows: int, stored: Stored, touched: Stored, settings: MutationSettings, *, partitioned: bool
) -> Choice:
    """How the changes of one organization are applied.

    changed_rows: rows that differ from what the table holds, those that waited before included. stored, touched: all
    files of the organization, and those that may hold such rows. partitioned: the table has partitions of its
    organizations. `auto` moves the bytes, unless that would rewrite much for little: then the view shows the change at
    once and the bytes wait until more has gathered. Exactly `max_amplification` is still moved.
    """
    if not changed_rows:
        return Choice("merge", changed_rows, stored, touched, "no row changes")
    if settings.apply == "overwrite" and not partitioned:
        why = "the table has no partitions that could be overwritten"
        return Choice("merge", changed_rows, stored, touched, why)
    if settings.apply != "auto":
        return Choice(settings.apply, changed_rows, stored, touched, "set by mutation.apply")
    files = f"{touched.files:,} of {stored.files:,} files"
    if touched.bytes < settings.pending_bytes:
        return Choice("merge", changed_rows, stored, touched, f"little is touched: {files}")
    amplification = touched.rows / changed_rows
    if amplification > settings.max_amplification:
        why = f"moving now would write {amplification:,.0f} times the bytes that change: {files}"
        return Choice("alias", changed_rows, stored, touched, why)
    why = f"{amplification:,.1f} times the bytes that change are written: {files}"
    return Choice("merge", changed_rows, stored, touched, why)


FIGURES = ("organizations", "changed_rows", "touched_files", "touched_bytes", "expected_bytes", "measured_bytes")


def summarized(choices: Mapping[str, Choice], measured: Mapping[str | None, int]) -> dict[str, dict[str, object]]:
    """What was chosen, expected and measured, for people: strategy -> FIGURES and `why`, one of the reasons.

    measured: organization -> bytes of its files that were replaced; under None those of which the table's partitions do
    not say whose they were. These go to the strategy that changed most rows.
    """
    found: dict[str, Counter[str]] = {}
    reasons: dict[str, str] = {}
    for organization, choice in choices.items():
        reasons.setdefault(choice.strategy, choice.why)
        touched = choice.touched
        said = (1, choice.changed_rows, touched.files, touched.bytes, choice.expected_bytes, measured.get(organization))
        of = found.setdefault(choice.strategy, Counter())
        of.update({name: value or 0 for name, value in zip(FIGURES, said, strict=True)})
    if moved := [name for name in found if name != "alias"]:
        most = max(moved, key=lambda name: found[name]["changed_rows"])
        found[most]["measured_bytes"] += measured.get(None, 0)
    return {name: {**{figure: of[figure] for figure in FIGURES}, "why": reasons[name]} for name, of in found.items()}

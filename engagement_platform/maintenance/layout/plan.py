"""Which slices of tables are worth rewriting, in which order: most files saved for a second of work first.

Pure arithmetic over surveys. What a rewrite would leave is `remedies`, doing it is `optimize`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from engagement_platform.lake.log import Value
from engagement_platform.maintenance.layout import remedies
from engagement_platform.maintenance.layout.remedies import Action, Prediction, readable
from engagement_platform.maintenance.layout.survey import Survey, Target, fingerprint
from engagement_platform.settings import Settings

# Seconds of a slice whatever it holds: 20 files of 200 rows took 2.08 s in a warm Spark, nearly all of it the jobs that
# read and sort (`make bench-optimize`, 2 cores, docs/layout.md). Seconds a file and bytes a second are guesses.
FIXED_S, FILE_S, BYTES_PER_S = 1.9, 0.01, 25e6

TOGETHER_S = 60.0
"""Seconds after which what a statement does is committed, and not lost when the run ends."""

FILES_A_SECOND = 10
"""Files that a rewrite by day has to save for each of its seconds (a guess)."""


@dataclass(frozen=True)
class Slice:
    """One partition of a table, or a table without partitions, to be rewritten."""

    table: Target
    partition: str
    where: tuple[Value, ...]
    order_by: str | None
    target_file_bytes: int
    gain: Prediction
    seconds: float
    """Estimated from its files and bytes."""
    why: str
    append_only: bool
    paths: frozenset[str]
    """Its files when it was planned."""

    @property
    def action(self) -> Action:
        """Merge small files, or order all."""
        return self.gain.action

    @property
    def worth(self) -> float:
        """Files saved per second of work."""
        return self.gain.saved / self.seconds

    def __str__(self) -> str:
        return f"{self.table.name} {self.partition or '(all of it)'}"

    def as_json(self) -> dict[str, object]:
        """Everything that JSON can say."""
        return {
            "table": self.table.name,
            "partition": self.partition,
            "action": self.action,
            "target_file_bytes": self.target_file_bytes,
            "seconds": round(self.seconds, 3),
            "worth": round(self.worth, 2),
            "why": self.why,
            "gain": self.gain.as_json(),
        }


@dataclass(frozen=True)
class Left:
    """A slice that was not done, and why.

    failed: something is wrong with the table, which the next run will meet again.
    """

    slice: Slice
    why: str
    failed: bool = False

    def as_json(self) -> dict[str, object]:
        """The slice, with the reason."""
        return {**self.slice.as_json(), "left": self.why, "failed": self.failed}


def slices(survey: Survey, settings: Settings, last: Mapping[str, str]) -> Iterator[Slice]:
    """Slices of one table that gain something, in any order.

    last: fingerprints of the files that the last rewrite of each partition left; one that still has them is left out.
    """
    for row in range(survey.partitions.num_rows):
        one = survey.partitions.slice(row, 1)
        figures = one.to_pylist()[0]
        deep = (figures["depth"] or 0) > settings.health.max_overlap_depth
        if figures["mergeable_files"] < 2 and not deep:
            continue
        name = figures["partition"]
        if name in last and last[name] == fingerprint(survey.paths(name)):
            continue
        if (found := _best(survey, one, settings.maintenance.max_rewrite_share, deep=deep)) is not None:
            yield found


def _best(survey: Survey, one: pa.Table, max_rewrite_share: float, *, deep: bool) -> Slice | None:
    """What gains most for one partition. deep: its ranges lie too deep on each other."""

    def pays(found: Slice) -> bool:
        """Whether it saves files, and enough for the bytes it writes. Exactly the limit pays."""
        files = max(found.gain.files_before - found.gain.files_after, found.gain.read_files_saved)
        return files > 0 and found.gain.bytes_to_rewrite <= files * max_rewrite_share * found.target_file_bytes

    merged = _slice(survey, one, "optimize", deep=deep)
    if survey.order_by is None:
        return merged if pays(merged) else None
    ordered = _slice(survey, one, "zorder", deep=deep)
    gain = ordered.gain
    if deep and (gain.read_files_after or 0.0) * 2 <= (gain.read_files_before or 0.0):
        return ordered
    # What fits into one file becomes one either way, at the same cost; then its rows may as well be in order.
    return max(filter(pays, (ordered, merged)), key=lambda found: found.worth, default=None)


def _slice(survey: Survey, one: pa.Table, action: Action, *, deep: bool) -> Slice:
    figures, target = one.to_pylist()[0], survey.target_file_bytes
    # Of a liquid table OPTIMIZE clusters all files anew.
    whole = action == "zorder" or survey.liquid
    gain = replace((remedies.zorder if whole else remedies.optimize)(one, target), action=action)
    rewritten = figures["files" if whole else "mergeable_files"]
    return Slice(
        table=survey.target,
        partition=figures["partition"],
        where=survey.where[figures["partition"]],
        order_by=survey.order_by if action == "zorder" else None,
        target_file_bytes=target,
        gain=gain,
        seconds=FIXED_S + FILE_S * rewritten + gain.bytes_to_rewrite / BYTES_PER_S,
        why=_why(survey, figures, action, deep=deep),
        append_only=survey.append_only,
        paths=survey.paths(figures["partition"]),
    )


def _why(survey: Survey, figures: Mapping[str, Any], action: Action, *, deep: bool) -> str:
    files = figures["files"]
    small = f"{figures['mergeable_files']:,} of {files:,} files are below {readable(survey.target_file_bytes)}"
    if survey.liquid:
        return f"{small}; a liquid table is clustered as a whole"
    if survey.order_by is None:
        return small
    if action == "optimize":
        return f"{small}, {readable(figures['bytes'])} in all; merging those is enough"
    if deep:
        return f"up to {figures['depth']:,} of {files:,} files may hold one same {survey.order_by}; {small}"
    return f"{small}; ordered by {survey.order_by} at the same cost"


def presses(one: Slice, files: int) -> bool:
    """Whether a slice is not left for the night: it saves so many files, and enough for the time that writers wait."""
    saved = one.gain.files_before - one.gain.files_after
    return saved >= max(files, FILES_A_SECOND * one.seconds)


def ordered(found: Iterable[Slice]) -> list[Slice]:
    """Most files saved per second first; of equals by name, so that two runs plan alike."""
    return sorted(found, key=lambda one: (-one.worth, one.table.name, one.partition))


def together(chosen: Iterable[Slice]) -> list[tuple[Slice, ...]]:
    """Slices that one commit rewrites, in the order of the first of each.

    A statement costs FIXED_S whatever it merges, so days of an append-only table, which nobody waits for, are merged by
    one, as long as their files are rewritten in TOGETHER_S.
    """
    parts, last = list[list[Slice]](), dict[tuple[Target, int], list[Slice]]()
    for one in chosen:
        if not one.append_only or one.order_by is not None or len(one.where) != 1:
            parts.append([one])
            continue
        key = one.table, one.target_file_bytes
        some = last.get(key)
        if some is None or sum(each.seconds - FIXED_S for each in (*some, one)) > TOGETHER_S:
            some = last[key] = []
            parts.append(some)
        some.append(one)
    return [tuple(some) for some in parts]


def within(found: Iterable[Slice], budget_s: float) -> tuple[list[Slice], list[Left]]:
    """The longest beginning whose estimated seconds fit into the budget, at least one slice; and the others."""
    chosen, left, spent = list[Slice](), list[Left](), 0.0
    for one in found:
        spent += one.seconds
        if left or (chosen and spent > budget_s):
            left.append(Left(one, f"does not fit into the {budget_s:,.0f} s of a run; the next one goes on"))
        else:
            chosen.append(one)
    return chosen, left

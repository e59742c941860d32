"""Which slices of tables are worth rewriting, in which order: most files saved for a second of work first.

Pure arithmetic over a survey. What a rewrite would leave is `remedies`, doing it is `optimize`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from engagement_platform.lake.optimize import Place
from engagement_platform.layout import remedies
from engagement_platform.layout.finding import readable
from engagement_platform.layout.remedies import Prediction
from engagement_platform.layout.survey import Survey, Where

Action = Literal["optimize", "zorder"]


@dataclass(frozen=True)
class Cost:
    """What a slice takes: seconds whatever it holds, seconds a file, and bytes a second."""

    fixed_s: float
    file_s: float
    bytes_per_s: float


# Of 20 files of 200 rows: 2.08 s in a warm Spark, nearly all of it the jobs that read and sort (`make bench-optimize`,
# 2 cores, docs/layout.md). Seconds a file and bytes a second are guesses.
COST = Cost(fixed_s=1.9, file_s=0.01, bytes_per_s=25e6)


@dataclass(frozen=True)
class Limits:
    """What is worth doing. See the settings of the same names."""

    target_file_bytes: int
    max_overlap_depth: int
    max_rewrite_share: float
    max_slice_bytes: int
    """Most that a slice of a mutable table rewrites: its writers wait meanwhile."""


@dataclass(frozen=True)
class Last:
    """What the last rewrite of a partition left."""

    fingerprint: str | None
    """None: some of what it had to do was left for the next."""
    target_file_bytes: int


@dataclass(frozen=True)
class Slice:
    """One partition of a table, some of its files, or a table without partitions, to be rewritten in one commit."""

    place: Place
    partition: str
    where: Where
    action: Action
    order_by: str | None
    target_file_bytes: int
    gain: Prediction
    seconds: float
    """Estimated from its files and bytes."""
    why: str
    append_only: bool
    only_below_bytes: int | None = None
    """Of a merge: files of this size and more wait for another slice; None: all below the target are merged."""
    too_large: bool = False
    """It gains something, and would keep writers waiting for too long."""

    @property
    def saved(self) -> float:
        """Files that one change and one read of a week of the partition no longer open."""
        return files_saved(self.gain)

    @property
    def worth(self) -> float:
        """Files saved per second of work."""
        return self.saved / self.seconds

    def __str__(self) -> str:
        return f"{self.place.name} {self.partition or '(all of it)'}"

    def as_json(self) -> dict[str, object]:
        """Everything that JSON can say."""
        return {
            "table": self.place.name,
            "partition": self.partition,
            "action": self.action,
            "target_file_bytes": self.target_file_bytes,
            "only_below_bytes": self.only_below_bytes,
            "seconds": round(self.seconds, 3),
            "worth": round(self.worth, 2),
            "why": self.why,
            "gain": self.gain.as_json(),
        }


def files_saved(gain: Prediction) -> float:
    """Files that one change and one read of a week no longer open; never negative."""
    change = (gain.mutation_files_before or 0.0) - (gain.mutation_files_after or 0.0)
    read = (gain.read_files_before or 0.0) - (gain.read_files_after or 0.0)
    return max(0.0, change) + max(0.0, read)


def slices(survey: Survey, limits: Limits, last: Mapping[str, Last]) -> Iterator[Slice]:
    """Slices of one table that gain something, in any order; those that are too large too.

    last: what the last rewrite of a partition left; one that has the same files still is left out.
    """
    for row in range(survey.partitions.num_rows):
        one = survey.partitions.slice(row, 1)
        name = one.column("partition")[0].as_py()
        done = last.get(name)
        if not _may_gain(one, limits):
            continue
        if done and done.target_file_bytes >= limits.target_file_bytes and done.fingerprint == survey.fingerprint(name):
            continue
        found = _best(survey, one, limits)
        if found is not None:
            yield found


def _may_gain(one: pa.Table, limits: Limits) -> bool:
    """A cheap look before the arithmetic: most partitions of a table that is looked after need nothing."""
    depth = one.column("depth")[0].as_py() or 0
    return one.column("mergeable_files")[0].as_py() >= 2 or depth > limits.max_overlap_depth


def _best(survey: Survey, one: pa.Table, limits: Limits) -> Slice | None:
    merged = _merged(survey, one, limits)
    if survey.clustering is None:
        return merged if _pays(merged, limits) else None
    ordered = _slice(survey, one, "zorder", limits)
    deep = (one.column("depth")[0].as_py() or 0) > limits.max_overlap_depth
    if deep and _halves_reads(ordered.gain):
        if not _too_large(ordered, survey, limits):
            return ordered
        return merged if _pays(merged, limits) else replace(ordered, too_large=True)
    # What fits into one file becomes one either way, at the same cost; then its rows may as well be in order.
    better = ordered.worth >= merged.worth or not _pays(merged, limits)
    if better and _pays(ordered, limits) and not _too_large(ordered, survey, limits):
        return ordered
    return merged if _pays(merged, limits) else None


def _too_large(found: Slice, survey: Survey, limits: Limits) -> bool:
    """Whether writers would wait for too long; those of tables elsewhere do not wait for this platform.

    A liquid table can only be rewritten as its engine sees fit.
    """
    bounded = survey.place.root != survey.place.uri and not (survey.append_only or survey.liquid)
    return bounded and (found.gain.bytes_to_rewrite or 0) > limits.max_slice_bytes


def _merged(survey: Survey, one: pa.Table, limits: Limits) -> Slice:
    """Merging what is small: all of it, or as many of the smallest files as a slice may rewrite."""
    found = _slice(survey, one, "optimize", limits)
    if not _too_large(found, survey, limits):
        return found
    below, files, size = smallest(survey.sizes[found.partition], limits.max_slice_bytes)
    if not files:
        return replace(found, too_large=True)
    for name, figure in (("mergeable_files", files), ("mergeable_bytes", size)):
        one = one.set_column(one.column_names.index(name), name, pa.array([figure], one.schema.field(name).type))
    some = _slice(survey, one, "optimize", limits, only_below=below)
    waiting = (found.gain.bytes_to_rewrite or 0) - size
    return replace(
        some, why=f"the {files:,} smallest of {found.gain.files_before:,} files; {readable(waiting)} wait for the next"
    )


def smallest(sizes: Sequence[int], most_bytes: int) -> tuple[int, int, int]:
    """As many of the smallest files as hold at most so many bytes: the size that all of them are below, files, bytes.

    Of files of one size all or none are among them, since engines choose files by size.
    """
    below = files = size = 0
    for one, count in sorted(Counter(sizes).items()):
        below = one
        if size + one * count > most_bytes:
            return below, files, size
        files, size = files + count, size + one * count
    return below + 1, files, size


def _halves_reads(gain: Prediction) -> bool:
    return (gain.read_files_after or 0.0) * 2 <= (gain.read_files_before or 0.0)


def _pays(found: Slice, limits: Limits) -> bool:
    """Whether it saves files, and enough for the bytes it writes. Exactly the limit pays."""
    gain = found.gain
    fewer = (gain.files_before or 0) - (gain.files_after or 0)
    files = max(fewer, (gain.read_files_before or 0.0) - (gain.read_files_after or 0.0))
    return files > 0 and (gain.bytes_to_rewrite or 0) <= files * limits.max_rewrite_share * found.target_file_bytes


def _slice(
    survey: Survey,
    one: pa.Table,
    action: Action,
    limits: Limits,
    only_below: int | None = None,
) -> Slice:
    predict = remedies.zorder if action == "zorder" or survey.liquid else remedies.optimize
    gain = replace(predict(one, limits.target_file_bytes), action=action)
    rewritten = int(one.column("files" if action == "zorder" or survey.liquid else "mergeable_files")[0].as_py())
    return Slice(
        place=survey.place,
        partition=one.column("partition")[0].as_py(),
        where=survey.where[one.column("partition")[0].as_py()],
        action=action,
        order_by=survey.clustering if action == "zorder" else None,
        target_file_bytes=limits.target_file_bytes,
        gain=gain,
        seconds=COST.fixed_s + COST.file_s * rewritten + (gain.bytes_to_rewrite or 0) / COST.bytes_per_s,
        why=_why(one, action, survey, limits),
        append_only=survey.append_only,
        only_below_bytes=only_below,
    )


def _why(one: pa.Table, action: Action, survey: Survey, limits: Limits) -> str:
    figures = {name: one.column(name)[0].as_py() for name in ("files", "mergeable_files", "bytes", "depth")}
    small = (
        f"{figures['mergeable_files']:,} of {figures['files']:,} files are below {readable(limits.target_file_bytes)}"
    )
    if survey.liquid:
        return f"{small}; a liquid table is clustered as a whole"
    if action == "optimize":
        whole = f", {readable(figures['bytes'])} in all" if survey.clustering else ""
        return f"{small}{whole}; merging those is enough" if survey.clustering else small
    deep = figures["depth"] or 0
    if deep > limits.max_overlap_depth:
        return f"up to {deep:,} of {figures['files']:,} files may hold one same {survey.clustering}; {small}"
    return f"{small}; ordered by {survey.clustering} at the same cost"


@dataclass(frozen=True)
class Left:
    """A slice that was not done, and why."""

    slice: Slice
    why: str
    failed: bool = False
    """Something is wrong with the table, which the next run will meet again."""

    def as_json(self) -> dict[str, object]:
        """The slice, with the reason."""
        return {**self.slice.as_json(), "left": self.why, "failed": self.failed}


def ordered(found: Iterable[Slice]) -> list[Slice]:
    """Most files saved per second first; of equals by name, so that two runs plan alike."""
    return sorted(found, key=lambda one: (-one.worth, one.place.name, one.partition))


def within(found: Iterable[Slice], budget_s: float) -> tuple[list[Slice], list[Left]]:
    """The longest beginning whose estimated seconds fit into the budget, at least one slice; and the others."""
    chosen, left, spent = list[Slice](), list[Left](), 0.0
    for one in found:
        if chosen and spent + one.seconds > budget_s:
            left.append(Left(one, f"does not fit into the {budget_s:,.0f} s of a run; the next one goes on"))
            spent = float("inf")
            continue
        spent += one.seconds
        chosen.append(one)
    return chosen, left

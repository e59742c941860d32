"""What mending a layout would gain, predicted from statistics, in a form that can stand beside what came of it.

Pure arithmetic over partitions. Whether something should be mended is `findings`; nothing here does it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Action = Literal[
    "optimize",
    "zorder",
    "vacuum",
    "checkpoint",
    "set_property",
    "repartition_writer",
    "repartition_table",
    "compress",
    "raise_parallelism",
]

WEEK = 7.0
"""Days of the read whose cost is predicted: one week of one partition (of one organization, in the Data Table)."""

_Figures = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """What a remedy would do to the partitions it is for; None where it has no effect or nothing can be said.

    read_files: files opened for a random week of one partition, averaged over partitions; None when the table is
    clustered by nothing.
    mutation_files: files touched by a change that may be anywhere in one partition, averaged over partitions.
    """

    action: Action
    partitions: int
    files_before: int | None = None
    files_after: int | None = None
    bytes_to_rewrite: int | None = None
    read_files_before: float | None = None
    read_files_after: float | None = None
    mutation_files_before: float | None = None
    mutation_files_after: float | None = None
    bytes_freed: int | None = None
    files_freed: int | None = None
    commits_replayed_before: int | None = None
    commits_replayed_after: int | None = None
    files_per_commit_before: float | None = None
    files_per_commit_after: float | None = None
    task_bytes_before: int | None = None
    task_bytes_after: int | None = None

    def as_json(self) -> dict[str, object]:
        """What is known, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        """What the remedy would gain, as one sentence without a full stop."""
        replayed = self.commits_replayed_before, self.commits_replayed_after
        scattered = self.files_per_commit_before, self.files_per_commit_after
        tasks = self._size(self.task_bytes_before), self._size(self.task_bytes_after)
        pairs = (
            ("{before:,} → {after:,} files", self.files_before, self.files_after),
            ("{after} to rewrite", "", self._size(self.bytes_to_rewrite)),
            ("a week of a partition opens {before:g} → {after:g} files", self.read_files_before, self.read_files_after),
            ("a mutation looks into {before:g} → {after:g}", self.mutation_files_before, self.mutation_files_after),
            ("frees {after} in {before:,} files", self.files_freed, self._size(self.bytes_freed)),
            ("readers replay {before:,} → {after:,} commits", *replayed),
            ("{before:g} → {after:g} files per partition and commit", *scattered),
            ("{before} → {after} a task of a rewrite", *tasks),
        )
        parts = [text.format(before=a, after=b) for text, a, b in pairs if a is not None and b is not None]
        return "; ".join(parts)

    @staticmethod
    def _size(count: int | None) -> str | None:
        return None if count is None else readable(count)


def readable(count: int) -> str:
    """A size for people, in powers of 1,024.

    >>> readable(7 * 1024), readable(512_000), readable(3 * 1024**3)
    ('7 KB', '500 KB', '3 GB')
    """
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if size >= 10 or size == int(size) else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TB"


def optimize(partitions: pa.Table, target_file_bytes: int) -> Prediction:
    """Bin packing: files below the target are merged up to it, the others stay.

    In: rows of `Statistics.partitions`. Merged files are taken to span their whole partition, since bin packing goes
    by size and not by value.
    """
    files, mergeable, size = (_floats(partitions, n) for n in ("files", "mergeable_files", "mergeable_bytes"))
    merges = mergeable >= 2
    bins = np.maximum(1, np.ceil(size / target_file_bytes))
    after = np.where(merges, files - mergeable + np.minimum(bins, mergeable), files)
    return _rewrite("optimize", partitions, after, after, float(size[merges].sum()))


def zorder(partitions: pa.Table, target_file_bytes: int) -> Prediction:
    """Z-order: every partition is rewritten whole into max(1, floor(bytes / target)) files of neighbouring ranges."""
    size = _floats(partitions, "bytes")
    after = np.maximum(1, np.floor(size / target_file_bytes))
    span = days_spanned(partitions)
    opened = np.where(np.isnan(span), after, np.minimum(after, (span + after * WEEK) / (span + WEEK)))
    return _rewrite("zorder", partitions, after, opened, float(size.sum()))


def _rewrite(action: Action, partitions: pa.Table, after: _Figures, opened: _Figures, size: float) -> Prediction:
    files = _floats(partitions, "files")
    by_range = partitions.column("low").null_count < partitions.num_rows or _floats(partitions, "unbounded_files").any()
    return Prediction(
        action=action,
        partitions=partitions.num_rows,
        files_before=int(files.sum()),
        files_after=int(after.sum()),
        bytes_to_rewrite=int(size),
        read_files_before=_mean(opened_now(partitions)) if by_range else None,
        read_files_after=_mean(np.minimum(opened, after)) if by_range else None,
        mutation_files_before=_mean(files),
        mutation_files_after=_mean(after),
    )


def opened_now(partitions: pa.Table) -> _Figures:
    """Files that a random week of each partition opens as its files lie now.

    A file that spans s of the partition's r days meets a week of w days with a chance of about (s + w) / (r + w);
    files without bounds are always opened, and so are all files when the column counts no days.
    """
    files, unbounded = _floats(partitions, "files"), _floats(partitions, "unbounded_files")
    covered, span = _floats(partitions, "span_days"), days_spanned(partitions)
    chance = (covered + (files - unbounded) * WEEK) / (span + WEEK) + unbounded
    return np.where(np.isnan(chance), files, np.minimum(files, chance))


def days_spanned(partitions: pa.Table) -> _Figures:
    """Days between the lowest and the highest value of each partition; NaN when the column counts none."""
    kind = partitions.schema.field("low").type
    if pa.types.is_date32(kind):
        low, high = (_nan(partitions.column(end).cast(pa.int32())) for end in ("low", "high"))
        return high - low
    if pa.types.is_timestamp(kind):
        naive = pa.timestamp("us", tz=kind.tz)
        low, high = (_nan(partitions.column(end).cast(naive).cast(pa.int64())) for end in ("low", "high"))
        return (high - low) / 86_400e6
    return np.full(partitions.num_rows, np.nan)


def _nan(column: Any) -> _Figures:
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def _floats(partitions: pa.Table, name: str) -> _Figures:
    return _nan(partitions.column(name).combine_chunks())


def _mean(figures: _Figures) -> float:
    return round(float(figures.mean()), 2) if len(figures) else 0.0

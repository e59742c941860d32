"""What OPTIMIZE would make of partitions, predicted from their statistics.

Pure arithmetic over partitions. Whether something should be mended is `findings`; nothing here does it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Action = Literal["optimize", "zorder"]

WEEK = 7.0
"""Days of the read whose cost is predicted: one week of one partition (of one organization, in the Data Table)."""

_Figures = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """What a rewrite would do to some partitions.

    read_files: files opened for a random week of one partition, averaged over partitions; None when the table is
    clustered by nothing.
    """

    action: Action
    partitions: int
    files_before: int
    files_after: int
    bytes_to_rewrite: int
    read_files_before: float | None = None
    read_files_after: float | None = None

    @property
    def read_files_saved(self) -> float:
        """Files that a read of a week no longer opens."""
        return (self.read_files_before or 0.0) - (self.read_files_after or 0.0)

    @property
    def saved(self) -> float:
        """Files that one change anywhere in one partition and one read of a week of it no longer open."""
        change = (self.files_before - self.files_after) / max(1, self.partitions)
        return max(0.0, change) + max(0.0, self.read_files_saved)

    def as_json(self) -> dict[str, object]:
        """What is known, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        """One sentence without a full stop."""
        files = f"{self.files_before:,} → {self.files_after:,} files; {readable(self.bytes_to_rewrite)} to rewrite"
        if self.read_files_before is None or self.read_files_after is None:
            return files
        return f"{files}; a week of a partition opens {self.read_files_before:g} → {self.read_files_after:g} files"


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

    In: rows of `statistics.by_partition`. Merged files are taken to span their whole partition, since bin packing goes
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
    span = _floats(partitions, "range_days")
    opened = np.where(np.isnan(span), after, np.minimum(after, (span + after * WEEK) / (span + WEEK)))
    return _rewrite("zorder", partitions, after, opened, float(size.sum()))


def _rewrite(action: Action, partitions: pa.Table, after: _Figures, opened: _Figures, size: float) -> Prediction:
    by_range = partitions.column("low").null_count < partitions.num_rows or _floats(partitions, "unbounded_files").any()
    return Prediction(
        action=action,
        partitions=partitions.num_rows,
        files_before=int(_floats(partitions, "files").sum()),
        files_after=int(after.sum()),
        bytes_to_rewrite=int(size),
        read_files_before=_mean(opened_now(partitions)) if by_range else None,
        read_files_after=_mean(np.minimum(opened, after)) if by_range else None,
    )


def opened_now(partitions: pa.Table) -> _Figures:
    """Files that a random week of each partition opens as its files lie now.

    A file that spans s of the partition's r days meets a week of w days with a chance of about (s + w) / (r + w);
    files without bounds are always opened, and so are all files when the column counts no days.
    """
    files, unbounded = _floats(partitions, "files"), _floats(partitions, "unbounded_files")
    covered, span = _floats(partitions, "span_days"), _floats(partitions, "range_days")
    chance = (covered + (files - unbounded) * WEEK) / (span + WEEK) + unbounded
    return np.where(np.isnan(chance), files, np.minimum(files, chance))


def _floats(partitions: pa.Table, name: str) -> _Figures:
    """A column of figures; NaN for null."""
    column = partitions.column(name).combine_chunks().cast(pa.float64())
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)


def _mean(figures: _Figures) -> float:
    return round(float(figures.mean()), 2) if len(figures) else 0.0

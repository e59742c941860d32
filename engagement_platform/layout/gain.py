"""A prediction in words, for the command line and the report."""

from __future__ import annotations

from engagement_platform.layout.finding import readable
from engagement_platform.layout.remedies import Prediction


def told(gain: Prediction | None) -> str:
    """What a remedy would gain, as one sentence without a full stop; a dash when that cannot be predicted."""
    if gain is None:
        return "–"
    parts = []
    if gain.files_before is not None and gain.files_after is not None:
        parts.append(f"{gain.files_before:,} → {gain.files_after:,} files")
    if gain.bytes_to_rewrite is not None:
        parts.append(f"{readable(gain.bytes_to_rewrite)} to rewrite")
    if gain.read_files_before is not None and gain.read_files_after is not None:
        parts.append(f"a week of a partition opens {gain.read_files_before:g} → {gain.read_files_after:g} files")
    if gain.mutation_files_before is not None and gain.mutation_files_after is not None:
        parts.append(f"a mutation looks into {gain.mutation_files_before:g} → {gain.mutation_files_after:g}")
    if gain.bytes_freed is not None:
        parts.append(f"frees {readable(gain.bytes_freed)} in {gain.files_freed or 0:,} files")
    if gain.commits_replayed_before is not None:
        parts.append(f"readers replay {gain.commits_replayed_before:,} → {gain.commits_replayed_after or 0:,} commits")
    if gain.files_per_commit_before is not None:
        parts.append(
            f"{gain.files_per_commit_before:g} → {gain.files_per_commit_after or 0:g} files per partition and commit"
        )
    if gain.task_bytes_before is not None:
        parts.append(f"{readable(gain.task_bytes_before)} → {readable(gain.task_bytes_after or 0)} a task of a rewrite")
    return "; ".join(parts)

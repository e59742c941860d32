"""Totals of a table at constant cost, from the checksum that Spark writes beside each commit. No per-file figures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from engagement_platform.lake import log
from engagement_platform.layout.segment import Segment


@dataclass(frozen=True)
class Totals:
    """Files and bytes of a version."""

    version: int
    files: int
    bytes: int
    boundaries: tuple[int, ...] = ()
    """Lower ends, in bytes, of the buckets of Delta's own size histogram; empty where it is not given."""
    counts: tuple[int, ...] = ()
    """Files in each of those buckets."""


def totals(found: Segment) -> Totals | None:
    """Totals of the version of a segment when its checksum is there; None otherwise (delta-rs writes none)."""
    if found.checksum != found.version:
        return None
    told = _json(found, f"{found.version:020}.crc")
    if told is None or "numFiles" not in told or "tableSizeBytes" not in told:
        return None
    histogram = told.get("fileSizeHistogram") or {}
    return Totals(
        version=found.version,
        files=int(told["numFiles"]),
        bytes=int(told["tableSizeBytes"]),
        boundaries=tuple(histogram.get("sortedBinBoundaries", ())),
        counts=tuple(histogram.get("fileCounts", ())),
    )


def files_roughly(found: Segment) -> int | None:
    """How many files a table has: by its checksum, else as of its newest checkpoint; None when neither tells.

    Good enough to choose who sums the table up: a table does not grow tenfold between two checkpoints.
    """
    exact = totals(found)
    if exact is not None:
        return exact.files
    if found.checkpoint is None:
        return None
    told = _json(found, "_last_checkpoint") or {}
    # All actions, where the writer does not count adds: somewhat more than there are files.
    files = told.get("numOfAddFiles", told.get("size"))
    return None if files is None else int(files)


def _json(found: Segment, name: str) -> dict[str, Any] | None:
    filesystem, path = log.opened(found.place(name))
    try:
        with filesystem.open_input_file(path) as file:
            told: dict[str, Any] = json.loads(file.read())
    except (FileNotFoundError, json.JSONDecodeError):
        # A checksum is a hint: Spark may be killed between a commit and writing it whole.
        return None
    return told

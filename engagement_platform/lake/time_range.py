"""Files of a table that may hold rows between two times, from its log alone; Spark reads them in one scan.

A scan of each would cost a Spark job a table for its log (Delta 4.4.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from engagement_platform.lake import log

Span = tuple[datetime, datetime]
"""First and last time, both included."""

_ROUNDED = timedelta(milliseconds=1)
"""Spark cuts the greatest time of a file to whole milliseconds."""


def files_between(uri: str, version: int, column: str, spans: Sequence[Span]) -> list[str] | None:
    """The files of a version whose bounds of a column of times admit one of the spans, or that have no bounds.

    None where a file alone does not say what its rows are: deletion vectors, mapped columns, shallow clones.
    """
    found = DeltaTable(log.storage_uri(uri), version=version)
    features = set(found.protocol().reader_features or ())
    mapped = found.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    files = pa.table(found.get_add_actions(flatten=True)).to_pylist()
    if mapped or "deletionVectors" in features or any(":" in file["path"] for file in files):
        return None
    return [f"{uri}/{unquote(file['path'])}" for file in files if _admits(file, column, spans)]


def _admits(file: dict[str, datetime | None], column: str, spans: Sequence[Span]) -> bool:
    low, high = file.get(f"min.{column}"), file.get(f"max.{column}")
    return low is None or high is None or any(low <= last and first <= high + _ROUNDED for first, last in spans)

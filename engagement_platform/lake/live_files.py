"""Which files a version of a table consists of, and what its log says of them, without a JVM.

Files that are replaced but not deleted yet are none of them; new ones of each commit are `added_rows`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from engagement_platform.lake.log import location, open_log, open_version

FEW_FILES = 300
"""Spark gets so many files of a table one by one; each step of planning carries the list (a guess)."""


def rows_in(uri: str, version: int) -> int:
    """Rows of a version, as its log counts them; files that are not counted are left out."""
    return int(pc.sum(_rows_of_files(open_version(uri, version))).as_py() or 0)


def row_count(uri: str) -> int | None:
    """Rows of the table now, as its log counts them. None where there is no table, and where the log does not tell:
    files without a count, deletion vectors (delta-rs 1.6 does not show how many rows they delete)."""
    table = open_log(uri)
    if table is None or "deletionVectors" in (table.protocol().reader_features or []):
        return None
    rows = _rows_of_files(table)
    return None if rows.null_count else int(pc.sum(rows).as_py() or 0)


def count(uri: str) -> int:
    """Files of the table now; 0 where there is no table."""
    table = open_log(uri)
    return 0 if table is None else pa.table(table.get_add_actions()).num_rows


def _rows_of_files(table: DeltaTable) -> pa.ChunkedArray:
    return pa.table(table.get_add_actions(flatten=True)).column("num_records")


def of_files(files: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of DeltaTable.get_add_actions, such as `max.batch_sequence`; null where no entry of a file says it."""
    if name in files.column_names:
        return files.column(name).cast(kind)
    return pa.chunked_array([pa.nulls(files.num_rows, kind)])


def _files_are_rows(table: DeltaTable) -> bool:
    """Whether files alone say what the rows are: with deletion vectors, mapped columns and widened types they do not,
    and the protocol asks more of readers."""
    return table.protocol().min_reader_version == 1


def plain(uri: str, version: int) -> tuple[dict[str, Any], list[str]] | None:
    """Schema, as JSON, and the few files of a version that alone say what its rows are; None where they do not.

    Partitions by day are as good as columns where folders are called by them: a text in the name of a folder may be
    taken for a number. None of an empty table, too, since a list of files that names none means nothing to Spark, and
    of a version that is not there, of which Delta says why.
    """
    try:
        found = open_version(uri, version)
    except DeltaError:
        return None
    schema: dict[str, Any] = json.loads(found.schema().to_json())
    paths: list[str] = pa.table(found.get_add_actions()).column("path").to_pylist()
    if not _files_are_rows(found) or not 0 < len(paths) <= FEW_FILES:
        return None
    by = list(found.metadata().partition_columns)
    dates = {field["name"] for field in schema["fields"] if field["type"] == "date"}
    by_folder = all([folder.partition("=")[0] for folder in path.split("/")[:-1]] == by for path in paths)
    if by and not (dates.issuperset(by) and by_folder):
        return None
    return schema, [location(uri, path) for path in paths]


def between(uri: str, version: int, column: str, spans: Sequence[tuple[datetime, datetime]]) -> list[str] | None:
    """The files of a version whose bounds of a column of times admit one of the spans, or that have no bounds.

    spans: first and last time, both included. None where a file alone does not say what its rows are. A scan in Spark
    would cost a job a table for its log (Delta 4.4.0).
    """
    found = open_version(uri, version)
    if not _files_are_rows(found):
        return None
    files = pa.table(found.get_add_actions(flatten=True)).to_pylist()

    def admitted(file: Mapping[str, Any]) -> bool:
        low, high = file.get(f"min.{column}"), file.get(f"max.{column}")
        # Spark cuts the greatest time of a file to whole milliseconds.
        cut_off = timedelta(milliseconds=1)
        return low is None or high is None or any(low <= last and first - high <= cut_off for first, last in spans)

    return [location(uri, file["path"]) for file in files if admitted(file)]

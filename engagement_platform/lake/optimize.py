"""Rewrites files of a table without changing its rows, removes old ones, and looks after its log; works on any table.

The only place where maintenance writes. What is worth doing is decided in `layout/`; rows are written by `lake`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.log import Value
from engagement_platform.lake.turns import turn
from engagement_platform.settings import Settings

SparkGetter = Callable[[], SparkSession]
"""Opens Spark when it is first called, since most maintenance needs none."""

CONFLICT = re.compile(r"Concurrent\w+Exception|DELTA_(?:CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)")

_ENTRY = re.compile(r"\d{20}\.json")
_CHECKSUM = re.compile(r"\.?(\d{20})\.(?:.*\.)?crc")
"""Of a version, and those that Hadoop keeps of each file on a disk."""


class OptimizeConflict(PlatformError):
    """Somebody else's commit took away files that an OPTIMIZE was rewriting."""

    def __init__(self, table: str, where: str, said: str) -> None:
        self.table, self.where = table, where
        super().__init__(
            f"Files of {table}{f' in {where}' if where else ''} changed while they were rewritten ({said}). Nothing "
            "was changed by this attempt. It is repeated a few times, and then left for the next run."
        )


@dataclass(frozen=True)
class Place:
    """One table, wherever it is. root: folder whose lock its writers share, such as the lake's."""

    name: str
    uri: str
    root: str


@dataclass(frozen=True)
class Rewrite:
    """Which files to lay out anew, and how."""

    place: Place
    where: tuple[Value, ...]
    """One partition by the values of all its columns; none: the whole table."""
    order_by: str | None
    """Z-order by this column; None merges small files only (of a liquid table, clusters)."""
    target_file_bytes: int
    marker: str
    """User metadata of the commit, by which it is found again."""


@dataclass(frozen=True)
class Rewritten:
    """What the commits with a marker did. version None: there was nothing to do."""

    version: int | None = None
    removed: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each file that was replaced, by its path as the log spells it."""
    added: Mapping[str, int] = field(default_factory=dict)


def rewrite(work: Rewrite, spark: SparkSession, guard: Callable[[], None] = lambda: None) -> Rewritten:
    """OPTIMIZE, in one commit that says dataChange=false, so that streams from the table see no row twice.

    guard: raises when the caller may not write any more. Raises OptimizeConflict, TableBusy.
    """
    with turn(work.place.root, work.place.name):
        before = log.version(work.place.uri)
        assert before is not None, f"{work.place.name} is gone"
        guard()
        _rewrite_in_spark(work, spark)
    return _what_was_done(work.place.uri, before, work.marker)


def _rewrite_in_spark(work: Rewrite, spark: SparkSession) -> None:
    where = " AND ".join(map(_condition, work.where))
    order = f" ZORDER BY ({_quoted(work.order_by)})" if work.order_by is not None else ""
    statement = f"OPTIMIZE {_delta(work.place.uri)}{f' WHERE {where}' if where else ''}{order}"
    conf = {
        "spark.databricks.delta.optimize.maxFileSize": str(work.target_file_bytes),
        # Files from here on are left as they are; the default of 1 GB would look at those that have the target size.
        "spark.databricks.delta.optimize.minFileSize": str(work.target_file_bytes),
        "spark.databricks.delta.commitInfo.userMetadata": work.marker,
    }
    with configured(spark, conf):
        try:
            spark.sql(statement).collect()
        except Exception as error:
            if CONFLICT.search(str(error)) is None:
                raise
            raise OptimizeConflict(work.place.name, _said(work.where), first_line(error)) from error


def _condition(value: Value) -> str:
    """A partition as Spark's predicate. The value travels as hexadecimal digits, so nothing in it is special."""
    if value.text is None:
        return f"{_quoted(value.column)} IS NULL"
    literal = f"CAST(X'{value.text.encode().hex()}' AS STRING)"
    return f"{_quoted(value.column)} = CAST({literal} AS {log.spark_type(value.type)})"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _delta(uri: str) -> str:
    return f"delta.{_quoted(uri)}"


def _said(where: Sequence[Value]) -> str:
    return "/".join(f"{value.column}={value.text}" for value in where)


def first_line(error: Exception) -> str:
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)[
        :300
    ]


@contextmanager
def configured(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    """Some configuration for as long as it takes; what was set before is set again."""
    before = {key: spark.conf.get(key, None) for key in conf}
    try:
        for key, value in conf.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, was in before.items():
            if was is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, was)


def _what_was_done(uri: str, before: int, marker: str) -> Rewritten:
    """Sums up the commits with a marker that came after a version."""
    version, added, removed = None, dict[str, int](), dict[str, int]()
    for number in range(before + 1, (log.version(uri) or before) + 1):
        actions = log.entry(uri, number) or []
        if any(action["commitInfo"].get("userMetadata") == marker for action in actions if "commitInfo" in action):
            version = number
            added |= {a["add"]["path"]: int(a["add"]["size"]) for a in actions if "add" in a}
            removed |= {a["remove"]["path"]: int(a["remove"].get("size") or 0) for a in actions if "remove" in a}
    return Rewritten(version, removed, added)


def vacuum(place: Place, spark: SparkSession, *, dry_run: bool) -> list[str]:
    """Remove files that were taken out of the table longer ago than its own retention, the only one that Spark knows
    (Delta 4.1 and later ignore RETAIN), and older ones that its log never knew.

    Out: paths that a dry run found; nothing for a real one.
    """
    # In the log, also on object stores: the doctor knows by it which removed files are gone.
    with turn(place.root, place.name), configured(spark, {"spark.databricks.delta.vacuum.logging.enabled": "true"}):
        rows = spark.sql(f"VACUUM {_delta(place.uri)}{' DRY RUN' if dry_run else ''}").collect()
    return [str(row[0]) for row in rows] if dry_run else []


def checkpoint_log(place: Place, *, clean: bool) -> None:
    """Write a checkpoint of the table's log; clean: remove entries older than delta.logRetentionDuration.

    Nothing happens to a table whose log delta-rs cannot carry on: Spark makes and cleans those at its own checkpoints.
    """
    with turn(place.root, place.name):
        found = DeltaTable(log.storage_uri(place.uri))
        mapped = found.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
        if mapped or not {"appendOnly", "invariants"}.issuperset(found.protocol().writer_features or ()):
            return
        found.create_checkpoint()
        if clean:
            found.cleanup_metadata()
            _remove_checksums(place.uri)


def _remove_checksums(uri: str) -> None:
    """Remove what Spark wrote beside entries that are gone: the files of a version with their bounds, ids and names.

    delta-rs 1.x removes entries and checkpoints, and leaves these for ever.
    """
    filesystem, folder = log.opened(f"{uri}/_delta_log")
    names = [info.base_name for info in filesystem.get_file_info(pafs.FileSelector(folder))]
    entries = [int(name[:20]) for name in names if _ENTRY.fullmatch(name)]
    for name in names:
        told = _CHECKSUM.fullmatch(name)
        if told and entries and int(told.group(1)) < min(entries):
            filesystem.delete_file(f"{folder}/{name}")


def record(settings: Settings, table: Table, rows: pa.Table, txn: Transaction, spark: SparkSession) -> None:
    """Append rows to one of maintenance's own tables, skipped when replayed.

    The table, and columns of it that are missing, are made.
    """
    # What maintenance writes down for itself may gain columns without anybody being asked.
    grows = settings.model_copy(update={"layout": settings.layout.model_copy(update={"evolve": True})})
    lake = Lake(spark, grows)
    lake.ensure(table)
    lake.append(lake.frame(rows), table, txn, rows=rows.num_rows)

"""Runs OPTIMIZE and VACUUM on any table, and makes checkpoints of its log.

`maintenance.layout` decides what is worth doing; rows are written by `lake`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake import driver_lease, log
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.log import Value

SparkGetter = Callable[[], SparkSession]
"""Opens Spark when it is first called, since most maintenance needs none."""

_BY_MAINTENANCE = re.compile(r"optimize/.+, attempt \d+", re.DOTALL)
CONFLICT = re.compile(r"Concurrent\w+Exception|DELTA_(?:CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)")

_CHECKSUM = re.compile(r"\.?(\d{20})\.(?:.*\.)?crc")
"""Of a version, and those that Hadoop keeps of each file on a disk."""


class OptimizeConflict(PlatformError):
    """Another commit removed files that an OPTIMIZE was rewriting."""


@dataclass(frozen=True)
class Place:
    """One table, wherever it is. root: the folder that has the locks of its writers, such as the lake's."""

    name: str
    uri: str
    root: str


@dataclass(frozen=True)
class Rewritten:
    """What the commits with a marker did. version None: there was nothing to do."""

    version: int | None = None
    removed: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each file that was replaced, by its path as the log spells it."""
    added: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    """The partition of each of these files, by its path: the values of its columns."""

    def within(self, value: Value) -> Rewritten:
        """What became of one partition of a table that is partitioned by one column."""
        own = {path for path, values in self.values.items() if values == (value.text,)}
        removed, added = ({path: some[path] for path in some.keys() & own} for some in (self.removed, self.added))
        return Rewritten(self.version, removed, added)


def rewrite(
    place: Place,
    spark: SparkSession,
    *,
    target_file_bytes: int,
    marker: str,
    where: Sequence[Sequence[Value]] = (),
    order_by: str | None = None,
    guard: Callable[[], None] = lambda: None,
) -> Rewritten:
    """OPTIMIZE, in one commit that says dataChange=false, so that streams from the table see no row twice.

    marker: user metadata of the commit, by which it is found again. where: partitions, each by the values of all its
    columns; none: the whole table. order_by: Z-order by this column; None merges small files only (of a liquid table,
    clusters). guard: raises when the caller may not write any more. Raises OptimizeConflict, TableBusy.
    """
    condition = " OR ".join(f"({' AND '.join(map(_condition, one))})" for one in where)
    order = f" ZORDER BY ({_quoted(order_by)})" if order_by is not None else ""
    conf = {
        "spark.databricks.delta.optimize.maxFileSize": str(target_file_bytes),
        # Files from here on are left as they are; the default of 1 GB would look at those that have the target size.
        "spark.databricks.delta.optimize.minFileSize": str(target_file_bytes),
        "spark.databricks.delta.commitInfo.userMetadata": marker,
    }
    with commit_lock(place.root, place.name), configured(spark, conf):
        before = log.version(place.uri)
        assert before is not None, f"{place.name} is gone"
        guard()
        driver_lease.check(place.root)
        try:
            spark.sql(f"OPTIMIZE {_delta(place.uri)}{f' WHERE {condition}' if where else ''}{order}").collect()
        except Exception as error:
            if CONFLICT.search(str(error)) is None:
                raise
            within = "".join(f" in {value.column}={value.text}" for one in where for value in one)
            raise OptimizeConflict(
                f"Files of {place.name}{within} changed while they were rewritten ({first_line(error)}). This "
                "attempt changed nothing. It is repeated a few times, and then left for the next run."
            ) from error
    return _what_was_done(place.uri, before, marker)


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


def by_maintenance(started: datetime, partition: str, attempt: int) -> str:
    """The marker of a rewrite by the platform's maintenance; whatever a partition is called, it names no batch's
    transaction."""
    return f"optimize/{started.isoformat()}/{partition}, attempt {attempt}"


def is_by_maintenance(marker: str) -> bool:
    """Whether `by_maintenance` made a marker."""
    return _BY_MAINTENANCE.fullmatch(marker) is not None


@contextmanager
def configured(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Set some configuration meanwhile, and then set it back."""
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
    """The commits with a marker that came after a version, summed up."""
    version, added, removed, values = None, dict[str, int](), dict[str, int](), dict[str, tuple[str | None, ...]]()
    for number in range(before + 1, (log.newest_entry(uri) or before) + 1):
        actions = log.entry(uri, number) or []
        if log.marker_in(actions) == marker:
            version = number
            for action in actions:
                for kind, files in (("add", added), ("remove", removed)):
                    if (one := action.get(kind)) is not None:
                        files[one["path"]] = int(one.get("size") or 0)
                        values[one["path"]] = tuple((one.get("partitionValues") or {}).values())
    return Rewritten(version, removed, added, values)


def old_files(place: Place) -> list[str]:
    """Files that VACUUM would find old enough to go, by their paths below the table; none: it has nothing to do.

    Costs a listing, a VACUUM a Spark job over each file. Old deletion vectors are among them, used or not, since
    delta-rs knows no use for them.
    """
    found = log.open_version(place.uri).vacuum(dry_run=True, full=True)
    # Those of Hadoop's checksums are none of Spark's.
    return [path for path in found if not path.rpartition("/")[2].startswith((".", "_"))]


def tables_among(place: Place, paths: Iterable[str]) -> list[str]:
    """Folders of these files that are tables themselves, of which the log of this one knows nothing; sorted.

    Folders of partitions are not looked at.
    """
    folders = {str(folder) for path in paths for folder in PurePosixPath(path).parents if "=" not in str(folder)}
    return sorted(one for one in folders - {"."} if log.newest_entry(f"{place.uri}/{one}") is not None)


def unused_files(place: Place, spark: SparkSession) -> list[str]:
    """The paths that `vacuum` would remove."""
    with commit_lock(place.root, place.name):
        return [str(row[0]) for row in spark.sql(f"VACUUM {_delta(place.uri)} DRY RUN").collect()]


def vacuum(place: Place, spark: SparkSession) -> tuple[int, int]:
    """Remove files that were taken out of the table longer ago than its own retention, the only one that Spark knows
    (Delta 4.1 and later ignore RETAIN), and older ones that its log never knew.

    Out: how many, and their bytes, as Spark says in the log.
    """
    # In the log, also on object stores: the doctor knows by it which removed files are gone.
    with (
        commit_lock(place.root, place.name),
        configured(spark, {"spark.databricks.delta.vacuum.logging.enabled": "true"}),
    ):
        driver_lease.check(place.root)
        before = log.newest_entry(place.uri) or 0
        spark.sql(f"VACUUM {_delta(place.uri)}").collect()
        commits = range(before + 1, (log.newest_entry(place.uri) or before) + 1)
        infos = (log.commit_info(log.entry(place.uri, number) or []) for number in commits)
        [begun, *_] = [info for info in infos if info.get("operation") == "VACUUM START"]
    metrics = begun["operationMetrics"]
    return int(metrics["numFilesToDelete"]), int(metrics["sizeOfDataToDelete"])


def checkpoint_log(place: Place, *, clean: bool) -> None:
    """Write a checkpoint of the table's log; clean: remove entries older than delta.logRetentionDuration.

    Nothing happens to a table whose log delta-rs cannot carry on: Spark makes and cleans those at its own checkpoints.
    """
    with commit_lock(place.root, place.name):
        found = DeltaTable(log.storage_uri(place.uri))
        mapped = found.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
        if mapped or not {"appendOnly", "invariants"}.issuperset(found.protocol().writer_features or ()):
            return
        found.create_checkpoint()
        if clean:
            found.cleanup_metadata()
            _remove_checksums(place.uri)


def _remove_checksums(uri: str) -> None:
    """Remove Spark's checksum files of entries that are gone, which hold bounds of columns; delta-rs 1.x keeps them."""
    filesystem, folder = log.opened(f"{uri}/_delta_log")
    names = log.names(f"{uri}/_delta_log")
    oldest = min((name[:20] for name in names if log.ENTRY.fullmatch(name)), default="")
    for name in names:
        if (checksum := _CHECKSUM.fullmatch(name)) and checksum.group(1) < oldest:
            filesystem.delete_file(f"{folder}/{name}")

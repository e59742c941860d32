"""Examines the layout of tables: measures, judges, predicts. One call for a table, by its name or by any path.

Needs no JVM; for a table with more files than one process should hold, the caller hands in Spark. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from deltalake import DeltaTable

from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.layout import cheap, commits, disk, files, log_rules, statistics
from engagement_platform.layout.commits import Recent
from engagement_platform.layout.disk import Leftovers
from engagement_platform.layout.files import UNNAMED, LogNotReadable, NotADeltaTable, Shape
from engagement_platform.layout.finding import Facts, Finding
from engagement_platform.layout.findings import findings
from engagement_platform.layout.segment import Segment, segment
from engagement_platform.layout.statistics import Statistics
from engagement_platform.settings import HealthSettings, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Vectors = Mapping[str, Mapping[str, Any] | None]
SparkOpener = Callable[[], AbstractContextManager["SparkSession"]]

ORPHANS = log_rules.orphan_files.__name__

CLUSTERED_BY = {"engagement/data": "engagement_date"}
"""Columns that the platform's own tables are Z-ordered by, whether or not that has been done yet."""


class NoSuchTable(PlatformError):
    """Neither a table of the lake nor a folder."""

    def __init__(self, target: str, root: str, there: list[str]) -> None:
        self.target = target
        known = f"Tables in {root}: {', '.join(there)}" if there else f"There are no tables in {root} yet"
        super().__init__(f"There is no table {target!r}, and no such folder. {known}.")


class UnknownColumn(PlatformError):
    """A clustering column that the table does not have."""

    def __init__(self, table: str, column: str, there: list[str]) -> None:
        super().__init__(f"The table {table} has no column {column!r} to look at. It has: {', '.join(there)}.")


@dataclass(frozen=True)
class Target:
    """A table to examine: where it is, and what to call it."""

    name: str
    uri: str


@dataclass(frozen=True)
class Examination:
    """What a table's log says of its layout, and what is wrong with it; every finding carries what mending gains."""

    target: Target
    statistics: Statistics
    recent: Recent
    leftovers: Leftovers
    findings: tuple[Finding, ...]
    since_optimize: Mapping[str, int]
    """Commits since the newest OPTIMIZE of a partition, by its name; not of those for which it is too long ago."""

    @property
    def not_looked_at(self) -> Mapping[str, str]:
        """Codes that nobody can tell anything about, with the reason: no finding of them is no good sign."""
        why = self.leftovers.unlisted
        return {} if why is None else {ORPHANS: why}

    def as_json(self, worst: int = 0) -> dict[str, object]:
        """The table with the names that JSON output has; findings are listed apart. worst: at most so many partitions,
        the worst first.
        """
        z_ordered = self.recent.z_ordered
        return {
            **self.statistics.as_json(worst, self.since_optimize),
            "checkpoint_version": self.recent.checkpoint,
            "versions_since_optimize": self.recent.versions_since_optimize,
            "z_ordered_version": z_ordered.version if z_ordered else None,
            "z_ordered_at": z_ordered.at.isoformat() if z_ordered and z_ordered.at else None,
            "commits_looked_at": len(self.recent.commits),
            "removed_files_waiting": self.leftovers.waiting.files,
            "removed_files_due": self.leftovers.due.files,
            "not_looked_at": dict(self.not_looked_at),
        }


def target(settings: Settings, asked: str) -> Target:
    """The table that somebody means: a name below the lake's root first, then a path or URI.

    Raises NoSuchTable, NotADeltaTable, LogNotReadable.
    """
    named = f"{settings.lake}/{asked.strip('/')}"
    if not asked.startswith(("/", ".", "~")) and "://" not in asked and _has_log(named):
        return Target(asked.strip("/"), named)
    if "://" in asked and not asked.startswith("file://"):
        # Spelled s3:// or s3a://: the lake's tables go by their names, and Hadoop knows the second alone.
        uri, lake = log.storage_uri(asked.rstrip("/")), log.storage_uri(settings.lake)
        if uri.startswith(f"{lake}/"):
            return Target(uri.removeprefix(f"{lake}/"), settings.lake + uri.removeprefix(lake))
        uri = f"s3a{uri.removeprefix('s3')}" if uri.startswith("s3://") else uri
        return Target(uri, uri)
    path = Path(asked.removeprefix("file://")).expanduser().absolute()
    if str(path).startswith(f"{settings.lake}/") and _has_log(str(path)):
        # By its name: leases, and what maintenance remembers, go by that.
        return Target(str(path).removeprefix(f"{settings.lake}/"), str(path))
    if not path.exists():
        raise NoSuchTable(asked, settings.lake, log.tables(settings.lake))
    if not _has_log(str(path)):
        raise NotADeltaTable(asked)
    return Target(str(path), str(path))


def _has_log(uri: str) -> bool:
    try:
        found = segment(uri)
    except OSError as error:
        raise LogNotReadable(uri, files.first_line(error)) from error
    return bool(found.commits or found.checkpoint_files)


def in_lake(settings: Settings, table: Target) -> bool:
    """Whether a table is one of the platform's lake, where writers take turns and maintenance remembers."""
    return table.uri.startswith(f"{settings.lake}/")


def targets(settings: Settings, asked: str | None = None) -> Iterator[Target]:
    """One table, or all that are in the lake; one that is just being made is none yet.

    Raises NoSuchTable, NotADeltaTable.
    """
    if asked is not None:
        yield target(settings, asked)
        return
    for name in log.tables(settings.lake):
        uri = f"{settings.lake}/{name}"
        if not _is_being_made(uri):
            yield Target(name, uri)


def _is_being_made(uri: str) -> bool:
    """Whether a writer has made the log's folder and not yet its first commit."""
    try:
        return not _has_log(uri)
    except LogNotReadable:
        return False  # whoever reads the table says why it cannot be read


def examine(
    settings: Settings,
    table: Target,
    *,
    clustering: str | None = None,
    list_files: bool | None = None,
    open_spark: SparkOpener | None = None,
    now: datetime | None = None,
) -> Examination:
    """Measure and judge one table.

    clustering: the column whose ranges decide which files are skipped. Default: what the platform declares, else what
    the table is clustered by or was last Z-ordered by.
    list_files: look into the folder for orphans and removed files. Default: up to `health.listed_files`.
    open_spark: opens a session when the table has more than `health.files_in_process` files; without it they are all
    summed up here.
    Raises NotADeltaTable, LogNotReadable, UnknownColumn.
    """
    limits, now = settings.health, now or datetime.now(UTC)
    opened = files.open_table(table.uri, table.name)
    what = files.shape(opened)
    found = segment(table.uri, what.version)
    lately = commits.recent(
        found,
        most=limits.history_commits,
        small_file_bytes=limits.small_file_bytes,
        most_actions=2 * limits.files_in_process,
    )
    column = _clustering(table, what, lately, clustering)
    roughly = cheap.files_roughly(found)
    if open_spark is not None and roughly is not None and roughly > limits.files_in_process:
        from engagement_platform.layout.distributed import summed_by_spark

        with open_spark() as spark:
            summed, unnamed = summed_by_spark(spark, found, what, table.name, column, limits)
        live: list[str] | None = None
        vectors: Vectors = {}
    else:
        summed, live, unnamed, vectors = _in_process(opened, found, what, table, column, limits)
    facts = Facts(
        statistics=summed,
        shape=what,
        recent=lately,
        leftovers=_leftovers(found, what, lately, live, vectors, limits, list_files=list_files, now=now),
        footers=files.sample_footers(table.uri, unnamed, limits.footer_samples),
        shuffle_partitions=settings.spark.shuffle_partitions,
        ours=in_lake(settings, table),
        orders=column == _clustering(table, what, lately, None),
    )
    return Examination(
        table, summed, lately, facts.leftovers, tuple(findings(facts, limits)), _since_optimize(what, lately)
    )


def _since_optimize(what: Shape, lately: Recent) -> dict[str, int]:
    stored = [(name, what.leaves.get(name, name)) for name in what.partitioned_by]
    return {
        "/".join(f"{name}={dict(values).get(key) or files.NULL_PARTITION}" for name, key in stored): since
        for values, since in lately.rewritten.items()
    }


def _clustering(table: Target, what: Shape, lately: Recent, asked: str | None) -> str | None:
    """The column to measure ranges of; None when there is none, or files are in partitions by it anyway."""
    if asked is not None and asked not in what.leaves:
        raise UnknownColumn(table.name, asked, list(what.leaves))
    logical = {stored: name for name, stored in what.leaves.items()}
    z_ordered = lately.z_ordered.z_order_by if lately.z_ordered else ()
    declared = [CLUSTERED_BY[table.name]] if table.name in CLUSTERED_BY and not lately.clustered_by else []
    candidates = [asked] if asked else [*declared, *(logical.get(c, c) for c in lately.clustered_by), *z_ordered]
    return next((c for c in candidates if c in what.leaves and c not in what.partitioned_by), None)


def _in_process(
    opened: DeltaTable, found: Segment, what: Shape, table: Target, column: str | None, limits: HealthSettings
) -> tuple[Statistics, list[str], list[str], Vectors]:
    """Statistics, all live paths, those without a codec in their names, and deletion vectors."""
    vectors = files.deletion_vectors(found) if what.deletion_vectors else {}
    live = files.live_files(opened, what, column, files.deleted_rows(vectors))
    partitions = statistics.by_partition(
        live,
        small_file_bytes=limits.small_file_bytes,
        target_file_bytes=limits.target_file_bytes,
        clustered=column is not None,
    )
    summed = Statistics(
        table=table.name,
        uri=table.uri,
        version=what.version,
        partitioned_by=what.partitioned_by,
        clustering=(column,) if column else (),
        totals=statistics.totals_of(live, partitions, limits.small_file_bytes),
        partitions=partitions,
    )
    unnamed = live.column("path").filter(pc.equal(live.column("codec"), UNNAMED)).to_pylist()
    return summed, live.column("path").to_pylist(), unnamed, vectors


def _leftovers(
    found: Segment,
    what: Shape,
    lately: Recent,
    live: Sequence[str] | None,
    vectors: Vectors,
    limits: HealthSettings,
    *,
    list_files: bool | None,
    now: datetime,
) -> Leftovers:
    keep = disk.retention(what.properties)
    by_log = partial(disk.by_log, live or (), lately.tombstones, keep=keep, last_vacuum=lately.last_vacuum, now=now)
    why = _unlisted(live, lately, limits, list_files=list_files)
    if why is not None:
        return by_log(why=why)
    there = [vector for vector in vectors.values() if vector]
    look = partial(
        disk.leftovers, found.uri, live or (), vectors=there, keep=keep, orphan_age=limits.orphan_age, now=now
    )
    try:
        seen = look(lately.tombstones)
        # Whether a file was removed long ago is asked only when there is one that nobody seems to know.
        return look({**commits.forgotten(found), **lately.tombstones}) if seen.orphans.files else seen
    except OSError as error:
        # On an object store whoever may read a table need not be allowed to list it.
        return by_log(why=f"its folder cannot be listed ({files.first_line(error)})")


def _unlisted(
    live: Sequence[str] | None, lately: Recent, limits: HealthSettings, *, list_files: bool | None
) -> str | None:
    """Why the folder of a table is not to be listed; None when it is."""
    if live is None:
        return f"the table has more than {limits.files_in_process:,} files (health.files_in_process)"
    if not lately.tombstones_complete:
        most = 2 * limits.files_in_process
        return f"its checkpoint has more than {most:,} actions (twice health.files_in_process)"
    if list_files is None and len(live) > limits.listed_files:
        return f"the table has {len(live):,} files, more than {limits.listed_files:,} (health.listed_files)"
    return "nobody asked for it" if list_files is False else None

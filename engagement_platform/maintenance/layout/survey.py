"""One version of a table as its log has it: shape, newest commits, live files, partitions with their figures.

Reads the log in this process, about 1 KB a file, and nothing else. The doctor judges it, maintenance plans by it.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake import log
from engagement_platform.lake.log import Value
from engagement_platform.maintenance.layout import files, statistics
from engagement_platform.maintenance.layout.delta_log import Recent, recent
from engagement_platform.maintenance.layout.files import LogNotReadable, NotADeltaTable, Shape
from engagement_platform.settings import Settings

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
    """A table: where it is, and what to call it."""

    name: str
    uri: str


@dataclass(frozen=True)
class Survey:
    """A table. live: rows of `files.live_files`; partitions: rows of `statistics.by_partition`.

    clustering: the column whose ranges decide which files are skipped. target_file_bytes: files below it can be
    merged. where: the values of each partition by its name, such as `organization_id=org-7`: an id may hold what
    separates the parts of a name.
    """

    target: Target
    shape: Shape
    recent: Recent
    clustering: str | None
    target_file_bytes: int
    live: pa.Table
    partitions: pa.Table
    where: Mapping[str, tuple[Value, ...]]

    @property
    def liquid(self) -> bool:
        """Whether the table is clustered by Delta itself."""
        return bool(self.recent.clustered_by)

    @property
    def append_only(self) -> bool:
        """Whether rows are only ever added, so that OPTIMIZE conflicts with no writer."""
        return self.shape.properties.get("delta.appendOnly") == "true"

    @property
    def order_by(self) -> str | None:
        """The column that OPTIMIZE has to order by; None where there is none, or Delta clusters the table itself."""
        return None if self.liquid else self.clustering

    def paths(self, partition: str) -> frozenset[str]:
        """The live files of a partition, as the log spells them."""
        return frozenset(self.live.filter(pc.equal(self.live["partition"], partition))["path"].to_pylist())

    def only(self, column: str, value: str) -> Survey:
        """Only the partitions in which a column has a value; none where the table is not partitioned by it."""
        kept = [name for name, of in self.where.items() if any(v.column == column and v.text == value for v in of)]
        chosen = pc.is_in(self.partitions.column("partition"), pa.array(kept, pa.string()))
        return replace(self, partitions=self.partitions.filter(chosen))


def fingerprint(paths: Iterable[str]) -> str:
    """The same as long as a partition has the same files."""
    return hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()[:32]


def survey(
    settings: Settings, table: Target, *, target_file_bytes: int | None = None, clustering: str | None = None
) -> Survey:
    """Read a table's log. Raises NotADeltaTable, LogNotReadable, UnknownColumn.

    target_file_bytes: up to which files are merged; default: `health.target_file_bytes`. clustering: instead of the
    first column of liquid clustering, else the one that the platform declares, else the one it was last Z-ordered by.
    """
    limits = settings.health
    target_file_bytes = target_file_bytes or limits.target_file_bytes
    opened = files.open_table(table.uri, table.name)
    what = files.shape(opened)
    lately = recent(table.uri, most=limits.history_commits, small_file_bytes=limits.small_file_bytes)
    column = clustering_column(table, what, lately, clustering)
    live = files.live_files(opened, what, column)
    partitions = statistics.by_partition(
        live,
        small_file_bytes=limits.small_file_bytes,
        target_file_bytes=target_file_bytes,
        clustered=column is not None,
    )
    names = ["partition", *(f"value.{name}" for name in what.partitioned_by)]
    where = {
        row["partition"]: tuple(Value(n, row[f"value.{n}"], what.kinds[n]) for n in what.partitioned_by)
        for row in live.select(names).group_by(names).aggregate([]).to_pylist()
    }
    return Survey(table, what, lately, column, target_file_bytes, live, partitions, where)


def clustering_column(table: Target, what: Shape, lately: Recent, asked: str | None) -> str | None:
    """The column to measure ranges of; None when there is none, or files are in partitions by it anyway."""
    if asked is not None and asked not in what.leaves:
        raise UnknownColumn(table.name, asked, list(what.leaves))
    logical = {stored: name for name, stored in what.leaves.items()}
    z_ordered = lately.z_ordered.z_order_by if lately.z_ordered else ()
    declared = [CLUSTERED_BY[table.name]] if table.name in CLUSTERED_BY and not lately.clustered_by else []
    candidates = [asked] if asked else [*declared, *(logical.get(c, c) for c in lately.clustered_by), *z_ordered]
    return next((c for c in candidates if c in what.leaves and c not in what.partitioned_by), None)


def names(settings: Settings) -> list[str]:
    """Names of the tables that are in the lake, of two parts or more; sorted.

    A group that is a table itself is left out: VACUUM of it would remove the files of the tables below it.
    """
    return [name for name in log.tables_anywhere(settings.lake, hidden=False) if "/" in name]


def in_lake(settings: Settings, table: Target) -> bool:
    """Whether a table is one of the platform's lake, where writers take its commit lock and maintenance remembers."""
    return table.uri.startswith(f"{settings.lake}/")


def targets(settings: Settings, asked: str | None = None) -> Iterator[Target]:
    """One table, or all that are in the lake; one whose writer has not made the first commit yet is left out.

    Raises NoSuchTable, NotADeltaTable.
    """
    if asked is not None:
        yield target(settings, asked)
        return
    for name in names(settings):
        uri = f"{settings.lake}/{name}"
        try:
            there = _has_log(uri)
        except LogNotReadable:
            there = True  # reading the table says why it cannot be read
        if there:
            yield Target(name, uri)


def target(settings: Settings, asked: str) -> Target:
    """The table of a name below the lake's root, or of a path or URI.

    A table of the lake goes by its name, however the path to it is spelled: leases, commit locks, what unfinished
    batches read and what maintenance remembers are kept under that. Others go by their path without symbolic links.
    Raises NoSuchTable, NotADeltaTable, LogNotReadable.
    """
    name = posixpath.normpath(asked.strip("/"))
    named = f"{settings.lake}/{name}"
    is_name = not asked.startswith(("/", ".", "~")) and "://" not in asked and name[0] != "."
    if is_name and _has_log(named):
        return Target(name, named)
    if "://" in asked and not asked.startswith("file://"):
        # Spelled s3:// or s3a://: Hadoop knows the second alone.
        uri, lake = _without_dots(asked), _without_dots(settings.lake)
        if uri.startswith(f"{lake}/"):
            return Target(uri.removeprefix(f"{lake}/"), settings.lake + uri.removeprefix(lake))
        uri = f"s3a{uri.removeprefix('s3')}" if uri.startswith("s3://") else uri
        return Target(uri, uri)
    path = Path(asked.removeprefix("file://")).expanduser().absolute()
    if not path.exists():
        raise NoSuchTable(asked, settings.lake, names(settings))
    if not _has_log(str(path)):
        raise NotADeltaTable(asked)
    folder = os.path.realpath(path)
    own = _name_of(folder, settings)
    return Target(folder, folder) if own is None else Target(own, f"{settings.lake}/{own}")


def _without_dots(uri: str) -> str:
    """A URI in delta-rs's spelling, without a slash at its end, `.` and `..`, which its readers resolve as well."""
    scheme, _, rest = log.storage_uri(uri).partition("://")
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}{posixpath.normpath('/' + path.lstrip('/'))}".rstrip("/")


def _name_of(folder: str, settings: Settings) -> str | None:
    """The name of the lake's table that is in a folder; None: it is none of the lake's.

    folder: without symbolic links. A group or a table of the lake may be one.
    """
    if "://" in settings.lake:
        return None
    if folder.startswith(f"{settings.lake}/"):
        return folder.removeprefix(f"{settings.lake}/")
    return next((name for name in names(settings) if os.path.realpath(f"{settings.lake}/{name}") == folder), None)


def _has_log(uri: str) -> bool:
    try:
        return log.newest_entry(uri) is not None
    except Exception as error:
        # Of an object store this opens the table, and what delta-rs raises then has no common base.
        raise LogNotReadable(uri, first_line(error)) from error

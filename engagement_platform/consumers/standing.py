"""Engagements as they stand now, without a JVM: rows by their keys, or all, with pending aliases resolved.

The same view that `mutation.current` builds in Spark. Which rows are wanted is for others to say.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from engagement_platform.mutation.accepted import edges_of
from engagement_platform.mutation.identity import identities_of
from engagement_platform.mutation.resolver import Identities
from engagement_platform.tables import light, log
from engagement_platform.tables.arrow import schema_of
from engagement_platform.tables.contract import Table
from engagement_platform.tables.engagement import ALIAS, PENDING, data_table
from engagement_platform.tables.growth import location

DATA = data_table("organization")
"""The Data Table's columns; how it is partitioned is told by its log."""

_KEY = ("organization_id", "engagement_id")
_IDENTITY = ("organization_id", "engagement_date", "engagement_ts", "engagement_id", "person_id", "source_person_id")


@dataclass(frozen=True)
class File:
    """One file of the Data Table, with the bounds that the log has; None where it has none."""

    path: str
    size: int
    partition: Mapping[str, Any]
    low: Mapping[str, Any]
    high: Mapping[str, Any]

    def may_hold(self, column: str, values: Sequence[Any]) -> bool:
        """Whether one of these values, sorted, can be in this column."""
        if column in self.partition:
            value = self.partition[column]
            place = bisect_left(values, value)
            return place < len(values) and values[place] == value
        low, high = self.low.get(column), self.high.get(column)
        # Bounds of long strings are cut: the lower to a beginning, the upper to something greater. Both still bound.
        place = 0 if low is None else bisect_left(values, low)
        return place < len(values) and (high is None or values[place] <= high)


@dataclass
class Opened:
    """What was opened to find rows: how many files, and their bytes on disk, of which the wanted columns were read."""

    files: int = 0
    bytes: int = 0


@dataclass
class Standing:
    """The view at one moment."""

    files: Sequence[File]
    uri: str
    kept: Mapping[str, Any]
    """File name -> which of its rows are there, for files with deletion vectors."""
    identities: Identities | None
    waiting: Collection[str]
    """Organizations whose aliases the Data Table does not show."""
    opened: Opened = field(default_factory=Opened)

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Rows of these engagements with these columns of the Data Table; those that are gone are absent.

        keys: organization_id, engagement_id, engagement_date. Opens only files whose bounds admit one of the keys of
        their organization; of those, the columns in question only where an id was found.
        """
        parts = [schema_of(DATA, *columns).empty_table()]
        for wanted, files in self._candidates(keys):
            for file in files:
                parts.append(self._shown(file, wanted, columns))
        return pa.concat_tables(parts)

    def every(self, columns: Sequence[str], organizations: Collection[str] | None) -> Iterator[pa.Table]:
        """All rows, file by file. organizations: only theirs."""
        for file in self.files:
            if organizations is None or file.may_hold("organization_id", sorted(organizations)):
                rows = self._shown(file, None, columns)
                if organizations is not None and "organization_id" not in file.partition:
                    rows = rows.filter(pc.is_in(rows["organization_id"], pa.array(sorted(organizations), pa.string())))
                if rows.num_rows:
                    yield rows

    def _candidates(self, keys: pa.Table) -> Iterator[tuple[dict[str, pa.Array], list[File]]]:
        by_organization: dict[str, list[tuple[str, Any]]] = {}
        columns = (keys[name].to_pylist() for name in ("organization_id", "engagement_id", "engagement_date"))
        for organization, engagement, day in zip(*columns, strict=True):
            by_organization.setdefault(organization, []).append((engagement, day))
        for organization, of in by_organization.items():
            bounds = {
                "organization_id": [organization],
                "engagement_id": sorted({engagement for engagement, _ in of}),
                "engagement_date": sorted({day for _, day in of}),
            }
            files = [f for f in self.files if all(f.may_hold(column, values) for column, values in bounds.items())]
            wanted = {name: pa.array(bounds[name], pa.string()) for name in _KEY}
            yield wanted, files

    def _shown(self, file: File, wanted: Mapping[str, pa.Array] | None, columns: Sequence[str]) -> pa.Table:
        """The rows that readers see of a file, and of these only the wanted ones."""
        read = list(dict.fromkeys([*_IDENTITY, *columns]))
        self.opened.files += 1
        self.opened.bytes += file.size
        rows = _read(self.uri, file, wanted, read, self.kept.get(_name(file.path)))
        if rows.num_rows and self.identities is not None:
            mine = pc.is_in(rows["organization_id"], pa.array(sorted(self.waiting), pa.string()))
            now = pc.if_else(mine, identities_of(rows, self.identities), rows["person_id"])
            rows = rows.set_column(rows.column_names.index("person_id"), rows.schema.field("person_id"), now)
        return rows.filter(pc.is_valid(rows["person_id"])).select(list(columns))


class View:
    """`engagement/current` of one lake. Each look is one consistent moment, not older than when it was taken."""

    def __init__(self, root: str) -> None:
        self._uris = {table.name: table.uri(root) for table in (DATA, PENDING, ALIAS)}
        self._tables: dict[str, DeltaTable] = {}
        self._seen: tuple[int, list[File], dict[str, Any]] | None = None
        self._edges: tuple[int, tuple[str, ...], Identities] | None = None

    def now(self) -> Standing | None:
        """The view as it is; None while there is no Data Table. Reads the ends of three logs, and no data."""
        while True:
            pending = self._version(PENDING)
            data, _ = self._version(DATA), self._version(ALIAS)
            # Organizations are marked before their aliases land and unmarked after their rows moved.
            if pending == self._version(PENDING):
                break
        if data is None:
            return None
        waiting = self._waiting() if pending is not None else ()
        identities = self._identities(waiting) if waiting else None
        if self._seen is None or self._seen[0] != data:
            self._seen = (data, files_of(self._tables[DATA.name]), _kept(self._tables[DATA.name]))
        return Standing(self._seen[1], self._uris[DATA.name], self._seen[2], identities, waiting)

    def _version(self, table: Table) -> int | None:
        found = self._tables.get(table.name) or log.open_log(self._uris[table.name])
        if found is None:
            return None
        if table.name in self._tables:
            found.update_incremental()
        self._tables[table.name] = found
        return int(found.version())

    def _waiting(self) -> tuple[str, ...]:
        rows = light.find(self._tables[PENDING.name], ("organization_id", "pending_from"), {}).to_pylist()
        return tuple(sorted(row["organization_id"] for row in rows if row["pending_from"] is not None))

    def _identities(self, waiting: tuple[str, ...]) -> Identities:
        aliases = self._tables[ALIAS.name]
        moment = (int(aliases.version()), waiting)
        if self._edges is None or self._edges[:2] != moment:
            rows = light.find(aliases, ALIAS.column_names, {"organization_id": waiting})
            self._edges = (*moment, Identities(edges_of(rows)))
        return self._edges[2]


def files_of(table: DeltaTable) -> list[File]:
    """The files of a Data Table with what their log says of them."""
    actions = pa.table(table.get_add_actions(flatten=True))
    partitions = list(table.metadata().partition_columns)
    bounded = [name for name in ("organization_id", "engagement_date", "engagement_id") if name not in partitions]
    there = set(actions.column_names)
    wanted = ["path", "size_bytes", *(f"partition.{name}" for name in partitions)]
    wanted += [f"{end}.{name}" for end in ("min", "max") for name in bounded if f"{end}.{name}" in there]
    return [
        File(
            row["path"],
            int(row["size_bytes"]),
            {name: row[f"partition.{name}"] for name in partitions},
            {name: row.get(f"min.{name}") for name in bounded},
            {name: row.get(f"max.{name}") for name in bounded},
        )
        for row in actions.select(wanted).to_pylist()
    ]


def _kept(table: DeltaTable) -> dict[str, Any]:
    """Of files with deletion vectors, which rows are there."""
    found = pa.table(table.deletion_vectors())
    return {
        _name(path): kept.values
        for path, kept in zip(found["filepath"].to_pylist(), found["selection_vector"], strict=True)
    }


def _name(path: str) -> str:
    """The last part of a path; unique in a table, however the rest is spelled."""
    return path.rsplit("/", 1)[-1]


def _read(
    uri: str, file: File, wanted: Mapping[str, pa.Array] | None, columns: Sequence[str], kept: Any | None
) -> pa.Table:
    """Rows of one file, row group by row group; the columns other than ids only of groups in which an id was found."""
    schema = schema_of(DATA, *columns)
    filesystem, path = log.opened(location(uri, file.path))
    parts = [schema.empty_table()]
    with filesystem.open_input_file(path) as opened:
        # Spark writes INT96, which Arrow else takes for nanoseconds, and those end in 2262.
        parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        there = set(parquet.schema_arrow.names).difference(file.partition)
        begin = 0
        for group in range(parquet.num_row_groups):
            count = parquet.metadata.row_group(group).num_rows
            mask = None if kept is None else _padded(kept, begin, count)
            begin += count
            if wanted is not None:
                ids = parquet.read_row_group(group, [name for name in _KEY if name in there])
                for name in ids.column_names:
                    found = pc.is_in(ids[name].cast(pa.string()), wanted[name]).combine_chunks()
                    mask = found if mask is None else pc.and_(mask, found)
                if mask is not None and not pc.any(mask).as_py():
                    continue
            rows = parquet.read_row_group(group, [name for name in columns if name in there])
            table = pa.table([_column(rows, field, file, count) for field in schema], schema=schema)
            parts.append(table if mask is None else table.filter(mask))
    return pa.concat_tables(parts)


def _padded(kept: Any, begin: int, count: int) -> pa.Array:
    """Which rows of a group are there; a vector may end at the last row that it says something about."""
    part = kept.slice(begin, count)
    return pa.concat_arrays([part, pa.repeat(pa.scalar(True), count - len(part))]) if len(part) < count else part


def _column(rows: pa.Table, wanted: pa.Field, file: File, count: int) -> pa.Array | pa.ChunkedArray:
    if wanted.name in file.partition:
        value = file.partition[wanted.name]
        scalar = pa.scalar(value, wanted.type)
        return pa.nulls(count, wanted.type) if value is None else pa.repeat(scalar, count)
    if wanted.name in rows.column_names:
        return rows[wanted.name].cast(wanted.type)
    # A file older than the column.
    return pa.nulls(count, wanted.type)

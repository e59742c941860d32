"""What maintenance has to know of a table before it plans: its partitions with their figures, values and fingerprints.

Reads the log in this process, about 1 KB a file, and nothing else; what is worth doing is `plan`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from engagement_platform.lake.optimize import Place, Value
from engagement_platform.layout import commits, files, statistics
from engagement_platform.layout.doctor import CLUSTERED_BY, Target, in_lake
from engagement_platform.layout.segment import segment
from engagement_platform.settings import Settings

Where = tuple[Value, ...]


@dataclass(frozen=True)
class Survey:
    """One table as its log has it.

    partitions: rows of `Statistics.partitions`. where: values of each partition by its name, such as
    `organization_id=org-7`. paths: live files of each partition, sorted. sizes: bytes of those that would be merged.
    """

    place: Place
    version: int
    append_only: bool
    clustering: str | None
    """Column that its partitions are ordered by; None: they are not, or the table clusters itself."""
    liquid: bool
    properties: Mapping[str, str]
    partitions: pa.Table
    where: Mapping[str, Where]
    paths: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, tuple[int, ...]]

    def fingerprint(self, partition: str) -> str:
        """The same as long as a partition has the same files."""
        return fingerprint(self.paths.get(partition, ()))


def fingerprint(paths: Sequence[str]) -> str:
    """Of sorted paths; two different lists have different ones."""
    return hashlib.sha256("\n".join(paths).encode()).hexdigest()[:32]


def place_of(settings: Settings, table: Target) -> Place:
    """Where a table is, and the folder in which its writers take turns: the lake's, or the table's own."""
    return Place(table.name, table.uri, settings.lake if in_lake(settings, table) else table.uri)


def survey(settings: Settings, table: Target, target_file_bytes: int) -> Survey:
    """Look at a table. Raises NotADeltaTable, LogNotReadable."""
    opened = files.open_table(table.uri, table.name)
    what = files.shape(opened)
    found = segment(table.uri, what.version)
    lately = commits.recent(found, most=settings.health.history_commits, small_file_bytes=target_file_bytes)
    liquid = bool(lately.clustered_by)
    column = _ordered_by(table.name, what, lately)
    vectors = files.deletion_vectors(found) if what.deletion_vectors else {}
    live = files.live_files(opened, what, column, files.deleted_rows(vectors))
    return Survey(
        place=place_of(settings, table),
        version=what.version,
        append_only=what.properties.get("delta.appendOnly") == "true",
        clustering=None if liquid else column,
        liquid=liquid,
        properties=what.properties,
        partitions=statistics.by_partition(
            live,
            small_file_bytes=settings.health.small_file_bytes,
            target_file_bytes=target_file_bytes,
            clustered=column is not None,
        ),
        where=_values(opened, what, live),
        paths=_paths(live),
        sizes=_sizes(live, target_file_bytes),
    )


def _ordered_by(name: str, what: files.Shape, lately: commits.Recent) -> str | None:
    """What the platform declares, or what somebody has Z-ordered the table by; of a liquid one its clustering."""
    logical = {stored: column for column, stored in what.leaves.items()}
    z_ordered = lately.z_ordered.z_order_by if lately.z_ordered else ()
    declared = [CLUSTERED_BY[name]] if name in CLUSTERED_BY and not lately.clustered_by else []
    candidates = [*declared, *(logical.get(c, c) for c in lately.clustered_by), *z_ordered]
    return next((c for c in candidates if c in what.leaves and c not in what.partitioned_by), None)


def _values(opened: DeltaTable, what: files.Shape, live: pa.Table) -> dict[str, Where]:
    """The values behind each partition's name, from the log: an id may hold what separates the parts of a name."""
    if not what.partitioned_by:
        return {"": ()}
    actions = pa.table(opened.get_add_actions(flatten=True))
    columns = {name: actions.column(f"partition.{name}").cast(pa.string()) for name in what.partitioned_by}
    # Both tables come from one snapshot, file by file in the same order.
    told = pa.table({"partition": live.column("partition"), **columns})
    distinct = told.group_by(told.column_names).aggregate([]).to_pylist()
    return {
        row["partition"]: tuple(Value(name, row[name], what.kinds[name]) for name in what.partitioned_by)
        for row in distinct
    }


def _paths(live: pa.Table) -> dict[str, tuple[str, ...]]:
    grouped = live.select(["partition", "path"]).group_by("partition").aggregate([("path", "list")])
    return {row["partition"]: tuple(sorted(row["path_list"])) for row in grouped.to_pylist()}


def _sizes(live: pa.Table, target_file_bytes: int) -> dict[str, tuple[int, ...]]:
    small = live.select(["partition", "bytes"]).filter(pc.less(live.column("bytes"), target_file_bytes))
    grouped = small.group_by("partition").aggregate([("bytes", "list")])
    return {row["partition"]: tuple(row["bytes_list"]) for row in grouped.to_pylist()}


def of_one(survey: Survey, column: str, value: str) -> Survey:
    """Only the partitions in which a column has a value; none where the table is not partitioned by it."""
    kept = [name for name, where in survey.where.items() if any(v.column == column and v.text == value for v in where)]
    chosen = pc.is_in(survey.partitions.column("partition"), pa.array(kept, pa.string()))
    return Survey(**{**vars(survey), "partitions": survey.partitions.filter(chosen)})


def partition_values(table: Target, column: str) -> set[str]:
    """What a partition column of a table holds, null left out; nothing where it is not partitioned by it.

    Raises NotADeltaTable, LogNotReadable.
    """
    opened = files.open_table(table.uri, table.name)
    if column not in opened.metadata().partition_columns:
        return set()
    values = pa.table(opened.get_add_actions(flatten=True)).column(f"partition.{column}").cast(pa.string())
    return {value for value in pc.unique(values).to_pylist() if value is not None}

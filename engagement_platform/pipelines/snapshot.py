"""Which versions of the engagement tables belong together, and the views `engagement/current` and the names at them.

Readers see whole batches only. A batch that writes several tables commits the one that publishes it last: the Data
Table publishes the images in the changeset, `engagement/mutation_request` the edges in the alias table. Reads logs to
find a snapshot; starts no Spark job before a frame is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Transaction
from engagement_platform.lake import live_files, log
from engagement_platform.lake.batch_logs import newest_batch_commit
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MAPPING, MUTATION_REQUEST, data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.engagements.schema import ROW
from engagement_platform.pipelines.mutations import names, view
from engagement_platform.pipelines.mutations.view import Pending

CURRENT = "engagement/current"
"""Name of the view of engagements; that of the names is the mapping's."""
WATERMARK = "rematerialize-aliases/watermark"
"""Application id under which the Data Table and the mapping keep, in the commit that moves them, up to which sequence
they have everything."""
SEQUENCES = 1 << 40
"""More than there will be. Delta keeps the greatest version of a transaction, also over a RESTORE (4.4.0), so a restore
that takes a watermark back adds this to the version; the watermark is the rest."""
DATA = data_table("liquid")
"""The Data Table; a reader need not know its layout."""

_PUBLISHED_BY: Mapping[str, tuple[Table, str]] = {
    CHANGESET.name: (DATA, "tables/data"),
    ALIAS.name: (MUTATION_REQUEST, "tables/mutation_request"),
}
"""Table -> the table whose commit makes its rows of a batch count, and that commit."""


@dataclass(frozen=True)
class Snapshot:
    """Versions of the engagement tables between two batches, or of one that has only begun to write."""

    versions: Mapping[str, int]
    """By table name; tables that are not there are absent."""
    watermark: int
    """The Data Table has every image, edge and patch up to this sequence; -1: none."""
    names_watermark: int
    """The mapping has every name up to this sequence folded; -1: none."""
    unpublished: Mapping[str, int]
    """Table -> the sequence of its last batch, where that is not published yet: its rows do not count."""
    newest: Mapping[str, int | None]
    """Table -> the greatest sequence in it; None: its files do not say, absent: it has no rows."""
    has_patches: bool
    """Whether an UPDATE may be newer than the watermark."""
    has_updates: bool
    """Whether there may be an UPDATE at all."""
    edges: int | None
    """Rows of the alias table; None: its files do not say."""

    def is_pending(self, table: Table, watermark: int) -> bool:
        """Whether a table may have rows above a watermark."""
        newest = self.newest.get(table.name, -1)
        return newest is None or newest > watermark

    @property
    def moved_up_to(self) -> int:
        """The sequence up to which both the Data Table and the mapping have everything."""
        return min(self.watermark, self.names_watermark)

    @property
    def newest_sequence(self) -> int:
        """The greatest sequence of changeset, aliases, requests and names; -1: there is nothing in them."""
        return max((newest for newest in self.newest.values() if newest is not None), default=-1)

    @property
    def pends(self) -> bool:
        """Whether anything waits to be moved."""
        return (
            self.is_pending(CHANGESET, self.watermark)
            or self.is_pending(ALIAS, self.watermark)
            or self.is_pending(MUTATION_REQUEST, self.moved_up_to)
            or self.is_pending(MAPPING, self.names_watermark)
        )


def snapshot(root: str) -> Snapshot:
    """The newest snapshot of the lake under a root.

    Looks until nothing was committed between two looks at the tables that are written first: what is published by then
    is in them. Batches take seconds and a look milliseconds.
    """
    first = _versions(root, (CHANGESET, ALIAS))
    while True:
        rest = _versions(root, (DATA, MUTATION_REQUEST, MAPPING))
        again = _versions(root, (CHANGESET, ALIAS))
        if again == first:
            return snapshot_of(root, {**first, **rest})
        first = again


def snapshot_of(root: str, versions: Mapping[str, int]) -> Snapshot:
    """The snapshot of given versions, such as those that a manifest pins. Versions of other tables are left out."""
    tables = (CHANGESET, ALIAS, DATA, MUTATION_REQUEST, MAPPING)
    opened = {
        table.name: log.open_version(table.uri(root), versions[table.name])
        for table in tables
        if table.name in versions
    }
    of_data = watermark(opened.get(DATA.name))
    files = {
        table.name: _sequences(opened[table.name])
        for table in (CHANGESET, ALIAS, MUTATION_REQUEST, MAPPING)
        if table.name in opened
    }
    return Snapshot(
        versions={name: int(table.version()) for name, table in opened.items()},
        watermark=of_data,
        names_watermark=watermark(opened.get(MAPPING.name)),
        unpublished=dict(_unpublished(root, opened)),
        newest={
            name: None if found.column("newest").null_count else pc.max(found.column("newest")).as_py()
            for name, found in files.items()
            if found.num_rows
        },
        has_patches=_has_patches(files.get(MUTATION_REQUEST.name), of_data),
        has_updates=_has_patches(files.get(MUTATION_REQUEST.name), -1),
        edges=_rows_in(files.get(ALIAS.name)),
    )


def current(lake: Lake, at: Snapshot) -> DataFrame:
    """`engagement/current`: engagements as readers see them, with the columns of ROW. The Data Table must exist."""
    return view.current(data(lake, at), pending(lake, at))


def shown(lake: Lake, at: Snapshot) -> DataFrame:
    """As `current`, with deleted rows: their person_id is null."""
    return view.shown(data(lake, at), pending(lake, at))


def current_names(lake: Lake, at: Snapshot) -> DataFrame:
    """The view of `engagement/mapping`: one row per id that has a name. The mapping must exist."""
    mapping = lake.read(MAPPING, at.versions[MAPPING.name])
    return names.current(mapping, renames(lake, at), _rows(lake, at, ALIAS))


def renames(lake: Lake, at: Snapshot) -> DataFrame | None:
    """Accepted RENAMEs that are not folded into the mapping; None where there is none."""
    requests = _rows(lake, at, MUTATION_REQUEST)
    if requests is None or not at.is_pending(MUTATION_REQUEST, at.names_watermark):
        return None
    return requests.where((F.col("operation") == "RENAME") & (F.col("sequence") > at.names_watermark))


def data(lake: Lake, at: Snapshot) -> DataFrame:
    """The Data Table, with the columns of ROW."""
    return lake.read(DATA, at.versions[DATA.name]).select(*ROW.names)


def pending(lake: Lake, at: Snapshot) -> Pending:
    """What the Data Table does not show yet, and the logs that decide it."""
    requests = _rows(lake, at, MUTATION_REQUEST)
    max_edges = lake.settings.mutation.max_edges_per_group
    return Pending(
        watermark=at.watermark,
        changeset=_rows(lake, at, CHANGESET) if at.is_pending(CHANGESET, at.watermark) else None,
        alias=_rows(lake, at, ALIAS),
        updates=None if requests is None or not at.has_updates else requests.where(F.col("operation") == "UPDATE"),
        moves_identity=at.is_pending(ALIAS, at.watermark),
        has_patches=at.has_patches,
        max_edges=None if at.edges is not None and at.edges <= max_edges else max_edges,
    )


def _rows(lake: Lake, at: Snapshot, table: Table) -> DataFrame | None:
    """The rows of a table that count, with `sequence`; None where it has none."""
    if table.name not in at.newest:
        return None
    rows = lake.read(table, at.versions[table.name]).withColumnRenamed("batch_sequence", "sequence")
    unpublished = at.unpublished.get(table.name)
    return rows if unpublished is None else rows.where(F.col("sequence") != unpublished)


def _versions(root: str, tables: Iterable[Table]) -> dict[str, int]:
    found = {table.name: log.newest_entry(table.uri(root)) for table in tables}
    return {name: version for name, version in found.items() if version is not None}


def watermark(table: DeltaTable | None) -> int:
    """The sequence up to which this version of the Data Table or the mapping has everything; -1: it has nothing."""
    found = None if table is None else table.transaction_version(WATERMARK)
    return -1 if found is None else int(found) % SEQUENCES


def moved_through(table: DeltaTable, sequence: int) -> Transaction:
    """What the commit after this version carries so that its watermark is a sequence, also a lower one than before."""
    held = table.transaction_version(WATERMARK) or 0
    puts_back = sequence < held % SEQUENCES
    return Transaction(WATERMARK, held - held % SEQUENCES + puts_back * SEQUENCES + sequence)


def _sequences(table: DeltaTable) -> pa.Table:
    """Of each file: newest, its greatest sequence, operation, the greatest in it, and rows; null where it is silent."""
    files = pa.table(table.get_add_actions(flatten=True))
    return pa.table(
        {
            "newest": live_files.of_files(files, "max.batch_sequence", pa.int64()),
            "operation": live_files.of_files(files, "max.operation", pa.string()),
            "rows": live_files.of_files(files, "num_records", pa.int64()),
        }
    )


def _rows_in(files: pa.Table | None) -> int | None:
    if files is None:
        return 0
    return None if files.column("rows").null_count else int(pc.sum(files.column("rows"), min_count=0).as_py())


def _has_patches(requests: pa.Table | None, watermark: int) -> bool:
    """UPDATE is the last of the operations by name, so the bounds of a file tell whether it may have one."""
    if requests is None:
        return False
    late = pc.fill_null(pc.greater(requests.column("newest"), watermark), True)
    patches = pc.fill_null(pc.equal(requests.column("operation"), "UPDATE"), True)
    return bool(pc.any(pc.and_(late, patches)).as_py())


def _unpublished(root: str, opened: Mapping[str, DeltaTable]) -> Iterable[tuple[str, int]]:
    """Batches that have written the first of their tables only. Leases let at most one do so at a time."""
    for name, (publisher, commit) in _PUBLISHED_BY.items():
        if name not in opened:
            continue
        last = newest_batch_commit(f"{root}/{name}", int(opened[name].version()))
        if last is None or not last[0].endswith(f"/tables/{name.rpartition('/')[2]}"):
            # A move's, an erasure's, or a compaction's; they begin when every batch before them is published.
            continue
        manifest = last[1]
        by = opened.get(publisher.name)
        done = None if by is None else by.transaction_version(f"{manifest.app_id}/{commit}")
        if done is None or done < manifest.batch_id:
            yield name, manifest.sequence

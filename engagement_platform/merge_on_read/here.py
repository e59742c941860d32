"""The view in this process, without a JVM: delta-rs reads, DuckDB folds and joins.

For small readers, for rematerializing small bases, and for folding few changes, which Spark is then given. Row for row
what `view` gives; the rules are told there and in `fold`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from engagement_platform.merge_on_read.entity import Entity, version_of
from engagement_platform.merge_on_read.fold_here import fold_here, text
from engagement_platform.merge_on_read.snapshot import Snapshot, snapshot
from engagement_platform.tables import log
from engagement_platform.tables.arrow import schema_of
from engagement_platform.tables.checksums import in_memory, quoted
from engagement_platform.tables.contract import Table


def current_here(
    root: str, entity: Entity, *, keys: Sequence[str] | None = None, at: Snapshot | None = None
) -> pa.Table:
    """What readers see now, or saw at a snapshot, under a lake's root: key, version, attributes.

    keys: only these; files of base and changeset that cannot have them are skipped.
    """
    state = state_here(root, entity, keys=keys, at=at)
    return state.filter(state.column("present")).select(list(entity.view_columns))


def state_here(root: str, entity: Entity, *, keys: Sequence[str] | None = None, at: Snapshot | None = None) -> pa.Table:
    """The rows of the base with all pending changes in them, with those that nobody sees. Columns of the base."""
    taken = at or snapshot(root, entity)
    base = _read(root, entity.base, taken.base_version, _wanted(entity, keys))
    if not taken.pending:
        return base
    folded = folded_here(root, entity, taken, keys=keys)
    with in_memory() as connection:
        connection.register("b", base)
        connection.register("f", folded)
        found = connection.query(_merged(entity)).to_arrow_table()
    return found.cast(schema_of(entity.base))


def folded_here(root: str, entity: Entity, taken: Snapshot, *, keys: Sequence[str] | None = None) -> pa.Table:
    """What the changes that wait at a snapshot say last, as of `fold`. keys: only these."""
    waiting = f"batch_id > {taken.watermark} AND batch_id <= {taken.latest} AND {_wanted(entity, keys)}"
    return fold_here(_read(root, entity.changeset, taken.changeset_version, waiting), entity)


def _read(root: str, table: Table, version: int, where: str) -> pa.Table:
    engine = QueryBuilder()
    engine.register("t", DeltaTable(log.storage_uri(table.uri(root)), version=version))
    found = pa.table(engine.execute(f"SELECT * FROM t WHERE {where}"))
    return found.select(list(table.column_names)).cast(schema_of(table))


def _wanted(entity: Entity, keys: Sequence[str] | None) -> str:
    if keys is None:
        return "TRUE"
    return f"{quoted(entity.key)} IN ({', '.join(map(text, keys))})" if keys else "FALSE"


def _merged(entity: Entity) -> str:
    """A full outer join of base and folded changes, column by column."""
    key, version = quoted(entity.key), quoted(entity.version)

    def newer(of: str, *columns: str) -> list[str]:
        wins = f"coalesce(f.{quoted(of)} > b.{quoted(of)}, f.{quoted(of)} IS NOT NULL)"
        names = map(quoted, (*columns, of))
        return [f"CASE WHEN {wins} THEN f.{name} ELSE b.{name} END AS {name}" for name in names]

    merged = [
        f"coalesce(b.{key}, f.{key}) AS {key}",
        f"greatest(b.{version}, f.{version}) AS {version}",
        *newer("present_version", "present", "present_ts"),
        *(column for name in entity.columns for column in newer(version_of(name), name)),
    ]
    columns = ", ".join(quoted(name) for name in entity.state_columns)
    return f"SELECT {columns} FROM (SELECT {', '.join(merged)} FROM b FULL OUTER JOIN f ON b.{key} = f.{key})"

"""The view in this process, without a JVM: one query of the engine that delta-rs carries (DataFusion).

For small readers, and for rematerializing small bases. Row for row what `view` gives; the rules are told there and in
`fold`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from engagement_platform.merge_on_read.entity import Entity, version_of
from engagement_platform.merge_on_read.snapshot import Snapshot, snapshot
from engagement_platform.tables import log
from engagement_platform.tables.arrow import schema_of


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
    engine = QueryBuilder()
    for name, table, version in (
        ("base", entity.base, taken.base_version),
        ("changeset", entity.changeset, taken.changeset_version),
    ):
        engine.register(name, DeltaTable(log.storage_uri(table.uri(root)), version=version))
    found = pa.table(engine.execute(_query(entity, taken, keys)))
    return found.select(list(entity.state_columns)).cast(schema_of(entity.base))


def _query(entity: Entity, taken: Snapshot, keys: Sequence[str] | None) -> str:
    """Fold and full outer join. Names come from declarations, values are a number and escaped strings."""
    key, version = _name(entity.key), _name(entity.version)
    wanted = "TRUE" if keys is None else f"{key} IN ({', '.join(map(_text, keys))})" if keys else "FALSE"
    place = f'{version} DESC, batch_id, "partition", "offset"'
    presence = "op <> 'UPDATE'" if entity.unknown_update == "ignore" else "TRUE"

    def newest(value: str, said: str, called: str) -> str:
        return f"first_value({value} ORDER BY {place}) FILTER (WHERE {said}) AS {called}"

    words = []
    for name in map(str, entity.columns):
        said = f"op = 'DELETE' OR {_name(name)} IS NOT NULL OR coalesce(array_has(set_null, {_text(name)}), FALSE)"
        words += [newest(_name(name), said, _name(name)), newest(version, said, _name(version_of(name)))]
    folded = [
        f"max({version}) AS {version}",
        newest("op <> 'DELETE'", presence, "present"),
        newest(version, presence, "present_version"),
        newest("ingestion_ts", presence, "present_ts"),
        *words,
    ]

    def newer(of: str, *columns: str) -> list[str]:
        wins = f"coalesce(f.{_name(of)} > b.{_name(of)}, f.{_name(of)} IS NOT NULL)"
        names = map(_name, (*columns, of))
        return [f"CASE WHEN {wins} THEN f.{name} ELSE b.{name} END AS {name}" for name in names]

    merged = [
        f"coalesce(b.{key}, f.{key}) AS {key}",
        f"greatest(b.{version}, f.{version}) AS {version}",
        *newer("present_version", "present", "present_ts"),
        *(column for name in entity.columns for column in newer(version_of(name), name)),
    ]
    return f"""
        WITH f AS (
            SELECT {key}, {", ".join(folded)} FROM changeset
            WHERE batch_id > {taken.watermark} AND batch_id <= {taken.latest} AND {wanted} GROUP BY {key}
        ), b AS (SELECT * FROM base WHERE {wanted})
        SELECT {", ".join(merged)} FROM b FULL OUTER JOIN f ON b.{key} = f.{key}
    """


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    """A string as DataFusion reads it: only the quote is special."""
    return "'" + value.replace("'", "''") + "'"

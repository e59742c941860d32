"""The fold of `fold` in this process: one query of DuckDB over rows in memory. What a word is is told there."""

from __future__ import annotations

import pyarrow as pa

from engagement_platform.merge_on_read.entity import Entity, version_of
from engagement_platform.tables.arrow import schema_of
from engagement_platform.tables.checksums import in_memory


def schema_of_folded(entity: Entity) -> pa.Schema:
    """Arrow schema of what is folded: that of `fold`."""
    base = schema_of(entity.base)
    names = (entity.key, entity.version, "inserted", *base.names[2:])
    return pa.schema([pa.field(name, pa.bool_() if name == "inserted" else base.field(name).type) for name in names])


def fold_here(changes: pa.Table, entity: Entity) -> pa.Table:
    """One row a key. In: columns of the changeset. Out: as of `fold`.

    100,000 changes of seven columns take 0.2 s.
    """
    with in_memory() as connection:
        connection.register("changes", changes)
        return connection.query(_query(entity)).to_arrow_table().cast(schema_of_folded(entity))


def _query(entity: Entity) -> str:
    """Names come from declarations. Of two words of one version the one that landed first has the greater place."""
    key, version = quoted(entity.key), quoted(entity.version)
    presence = "op <> 'UPDATE'" if entity.unknown_update == "ignore" else "TRUE"

    def newest(value: str, said: str, called: str) -> str:
        return f"arg_max_null({value}, place) FILTER (WHERE {said}) AS {called}"

    said = {
        name: f"op = 'DELETE' OR {quoted(name)} IS NOT NULL OR coalesce(list_contains(set_null, {text(name)}), FALSE)"
        for name in map(str, entity.columns)
    }
    folded = [
        f"max({version}) AS {version}",
        "bool_or(op = 'INSERT') AS inserted",
        newest("op <> 'DELETE'", presence, "present"),
        newest(version, presence, "present_version"),
        newest("ingestion_ts", presence, "present_ts"),
        *(newest(quoted(name), spoken, quoted(name)) for name, spoken in said.items()),
        *(newest(version, spoken, quoted(version_of(name))) for name, spoken in said.items()),
    ]
    landed = f'{version}, batch_id DESC, "partition" DESC, "offset" DESC'
    return f"""
        SELECT {key}, {", ".join(folded)}
        FROM (SELECT *, row_number() OVER (ORDER BY {landed}) AS place FROM changes)
        GROUP BY {key}
    """


def quoted(name: str) -> str:
    """A name as SQL reads it."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A string as SQL reads it: only the quote is special."""
    return "'" + value.replace("'", "''") + "'"

"""The fold of `latest_values` in this process: one query of DuckDB over rows in memory.."""

from __future__ import annotations

import pyarrow as pa

from engagement_platform.lake.arrow import schema_of
from engagement_platform.lake.checksums import in_memory, quoted
from engagement_platform.pipelines.profiles.entity import Entity, version_of


def schema_of_folded(entity: Entity) -> pa.Schema:
    """Arrow schema of what is folded: that of `latest_values`."""
    base = schema_of(entity.base)
    names = (entity.key, entity.version, "inserted", *base.names[2:])
    return pa.schema([pa.field(name, pa.bool_() if name == "inserted" else base.field(name).type) for name in names])


def fold_here(changes: pa.Table, entity: Entity) -> pa.Table:
    """One row a key. In: columns of the changeset. Out: as of `latest_values`.

    100,000 changes of ten columns take 0.2 s.
    """
    with in_memory() as connection:
        connection.register("changes", changes)
        return connection.query(_query(entity)).to_arrow_table().cast(schema_of_folded(entity))


def _query(entity: Entity) -> str:
    """Names come from declarations. Of two words of one version the one that landed first has the greater place.

    Most keys have one change that waits, and its words are the newest: nothing is aggregated but the others, which
    takes 0.1 s less for 100,000 changes.
    """
    key, version = quoted(entity.key), quoted(entity.version)
    words = {
        "present": ("op <> 'DELETE'", _speaks_of_presence(entity)),
        "present_version": (version, _speaks_of_presence(entity)),
        "present_ts": ("ingestion_ts", _speaks_of_presence(entity)),
        **{name: (quoted(name), _speaks_of(name)) for name in entity.columns},
        **{version_of(name): (version, _speaks_of(name)) for name in entity.columns},
    }
    alone = [f"CASE WHEN {said} THEN {value} END AS {quoted(name)}" for name, (value, said) in words.items()]
    newest = [
        f"arg_max_null({value}, place) FILTER (WHERE {said}) AS {quoted(name)}" for name, (value, said) in words.items()
    ]
    landed = f'{version}, batch_id DESC, "partition" DESC, "offset" DESC'
    return f"""
        WITH several AS MATERIALIZED (SELECT {key} FROM changes GROUP BY {key} HAVING count(*) > 1)
        SELECT {key}, max({version}) AS {version}, bool_or(op = 'INSERT') AS inserted, {", ".join(newest)}
        FROM (SELECT *, row_number() OVER (ORDER BY {landed}) AS place FROM changes WHERE {key} IN (FROM several))
        GROUP BY {key}
        UNION ALL
        SELECT {key}, {version}, op = 'INSERT', {", ".join(alone)} FROM changes WHERE {key} NOT IN (FROM several)
    """


def _speaks_of_presence(entity: Entity) -> str:
    return "op <> 'UPDATE'" if entity.unknown_update == "ignore" else "TRUE"


def _speaks_of(column: str) -> str:
    cleared = f"coalesce(list_contains(set_null, {text(column)}), FALSE)"
    return f"op = 'DELETE' OR {quoted(column)} IS NOT NULL OR {cleared}"


def text(value: str) -> str:
    """A string as SQL reads it: only the quote is special."""
    return "'" + value.replace("'", "''") + "'"

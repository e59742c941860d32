"""How many rows there are and a sum over all their values, whatever their order, computed by DuckDB in this process.

For telling whether two sets of rows are the same; which rows these are is for others to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

ALGORITHM = f"duckdb-{duckdb.__version__}"
"""Another version may hash otherwise, so that kept sums are comparable only under the same name."""

_MODULUS = 2**64
_ALONE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}


@dataclass(frozen=True)
class Checksum:
    """Of some rows. Two sets of rows are taken to be the same when both figures are."""

    rows: int = 0
    sum: int = 0
    """The hashes of all rows added up, modulo 2 to the 64: in any order, in any number of parts."""

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(self.rows + other.rows, (self.sum + other.sum) % _MODULUS)

    @property
    def text(self) -> str:
        """The sum as it is shown and kept: 16 hexadecimal digits."""
        return f"{self.sum:016x}"


def in_memory() -> duckdb.DuckDBPyConnection:
    """A DuckDB of this process that keeps nothing, loads nothing, and thinks in UTC."""
    connection = duckdb.connect(config=dict(_ALONE))
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def checksum(parts: Iterable[pa.Table], schema: pa.Schema) -> Checksum:
    """Of all rows of all parts, each with the columns of the schema in their order. One part is in memory at a time."""
    total = Checksum()
    with in_memory() as connection:
        for part in parts:
            total += of(connection, part.cast(schema))
    return total


def of(connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> Checksum:
    """Of one table, by a connection that is open already."""
    (found,) = by(connection, rows, ()).values() or (Checksum(),)
    return found


def by(
    connection: duckdb.DuckDBPyConnection, rows: pa.Table, keys: Sequence[str]
) -> dict[tuple[object, ...], Checksum]:
    """One for each combination of the key columns."""
    connection.register("rows_to_sum", rows)
    try:
        return grouped(connection, "rows_to_sum", rows.schema, keys)
    finally:
        connection.unregister("rows_to_sum")


def grouped(
    connection: duckdb.DuckDBPyConnection, relation: str, schema: pa.Schema, keys: Sequence[str]
) -> dict[tuple[object, ...], Checksum]:
    """The same of a relation that DuckDB knows, with these columns of these types."""
    named = [quoted(name) for name in keys]
    hashed = ", ".join(_comparable(quoted(field.name), field.type) for field in schema)
    grouping = f" GROUP BY {', '.join(named)}" if named else ""
    found = connection.execute(
        f"SELECT {''.join(f'{name}, ' for name in named)}count(*), coalesce(sum(hash({hashed})), 0) "
        f"FROM {relation}{grouping}"
    ).fetchall()
    return {tuple(row[:-2]): Checksum(int(row[-2]), int(row[-1]) % _MODULUS) for row in found}


def quoted(name: str) -> str:
    """A name as an identifier of DuckDB's.

    >>> quoted('a "b"')
    '"a ""b\"""'
    """
    return '"' + name.replace('"', '""') + '"'


def _comparable(expression: str, kind: pa.DataType) -> str:
    """An expression that is equal for equal values, and for no others: a map's entries stand in any order.

    Whether there is a map or a list at all is said beside it: DuckDB hashes none and an empty one alike.
    """
    if pa.types.is_map(kind):
        return f"struct_pack(there := {expression} IS NOT NULL, entries := list_sort(map_entries({expression})))"
    if pa.types.is_list(kind):
        return f"struct_pack(there := {expression} IS NOT NULL, entries := {expression})"
    if pa.types.is_struct(kind) and any(pa.types.is_nested(field.type) for field in kind):
        fields = ", ".join(
            f"{quoted(field.name)} := {_comparable(f'{expression}.{quoted(field.name)}', field.type)}" for field in kind
        )
        return f"struct_pack(there := {expression} IS NOT NULL, inside := struct_pack({fields}))"
    return expression

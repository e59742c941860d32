"""Writes that change rows of a table: overwrites of all or some of it, MERGE and DELETE; for moves into a base.

Appends are `lake`'s. Each write is skipped when its transaction is in the table already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Transaction
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import Table
from engagement_platform.lake.lake import Lake, files_of, save_under

PartitionValues = tuple[object, ...]
"""Of one partition, in the order of the table's partition columns; None where a column is null."""


def replace_partitions(
    lake: Lake, frame: DataFrame, table: Table, txn: Transaction, partitions: Sequence[PartitionValues]
) -> None:
    """Make these rows all that some partitions hold, also those that get none; Delta refuses rows of others."""
    _overwrite(lake, frame, table, txn, {"replaceWhere": in_partitions(table, partitions)})


def in_partitions(table: Table, partitions: Sequence[PartitionValues]) -> str:
    """Whether a row is of one of these partitions, as text: `|` of columns nests two messages each, and a plan that
    goes over Connect may nest a hundred."""
    each = (
        "(" + " AND ".join(f"`{c}` <=> {_literal(v)}" for c, v in zip(table.partitioned_by, values, strict=True)) + ")"
        for values in partitions
    )
    return " OR ".join(each) or "FALSE"


def replace_rows(
    lake: Lake, frame: DataFrame, table: Table, txn: Transaction, column: str, values: Sequence[str]
) -> None:
    """Make these rows all that a table without partitions holds of some values of a column; Delta refuses others."""
    where = f"`{column}` IN ({', '.join(map(_literal, values))})" if values else "FALSE"
    _overwrite(lake, frame, table, txn, {"replaceWhere": where})


def replace_all(lake: Lake, frame: DataFrame, table: Table, txn: Transaction, *, rows: int | None = None) -> None:
    """Make these rows all that a table holds.

    rows: about how many; a table without partitions gets as few files as they fill, without a shuffle.
    """
    if rows is not None and not table.partitioned_by:
        _overwrite(lake, frame.coalesce(files_of(rows)), table, txn, {"optimizeWrite": "false"})
    else:
        _overwrite(lake, frame, table, txn, {})


def _overwrite(lake: Lake, frame: DataFrame, table: Table, txn: Transaction, options: Mapping[str, str]) -> None:
    rows = frame.select(*table.column_names)
    if table.partitioned_by:
        rows = rows.repartition(*(F.col(name) for name in table.partitioned_by))
    with commit_lock(lake.root, table.name):
        save_under(rows.write.format("delta").mode("overwrite").options(**options), lake.uri(table), txn)


def update_rows(
    lake: Lake, frame: DataFrame, table: Table, txn: Transaction, *, on: Sequence[str], within: Sequence[Column]
) -> None:
    """MERGE rows that the table has: each takes all columns of the row with its key.

    within: predicates over the table's columns that hold for all keys; only these skip files.
    """
    same = reduce(and_, [*within, *(F.col(name) == _new(name) for name in on)])
    # Matched only: the one shape of a MERGE in which both phases can broadcast the source.
    merge = _source(frame, table).mergeInto(lake.sql_name(table), same)
    merge = merge.whenMatched().update({name: _new(name) for name in table.column_names if name not in on})
    with commit_lock(lake.root, table.name), lake.transaction(txn):
        merge.merge()


def merge_newer(
    lake: Lake,
    frame: DataFrame,
    table: Table,
    txn: Transaction,
    *,
    on: str,
    greatest: str,
    words: Mapping[str, Sequence[str]],
) -> None:
    """MERGE rows by key, each group of columns by its own version.

    frame: the table's columns, one row a key. words: version column -> columns that go with it; they are taken where
    the frame's version is greater, or the table has none. greatest: column that takes the greater of both.
    """

    def newer(version: str) -> str:
        return f"coalesce(`__new_{version}` > `{version}`, `__new_{version}` IS NOT NULL)"

    taken = {greatest: F.greatest(greatest, f"__new_{greatest}")}
    for version, columns in words.items():
        for name in (*columns, version):
            taken[name] = F.when(F.expr(newer(version)), _new(name)).otherwise(F.col(name))
    # As text, for the reason that `in_partitions` gives.
    changes = F.expr(" OR ".join([f"`__new_{greatest}` > `{greatest}`", *map(newer, words)]))
    merge = _source(frame, table).mergeInto(lake.sql_name(table), F.col(on) == _new(on))
    merge = merge.whenMatched(changes).update(taken)
    merge = merge.whenNotMatched().insert({name: _new(name) for name in table.column_names})
    with commit_lock(lake.root, table.name), lake.transaction(txn):
        merge.merge()


def _source(frame: DataFrame, table: Table) -> DataFrame:
    return frame.select(*(F.col(name).alias(f"__new_{name}") for name in table.column_names))


def _new(name: str) -> Column:
    return F.col(f"__new_{name}")


def delete_through(lake: Lake, table: Table, column: str, through: int, txn: Transaction) -> None:
    """Delete the rows whose value of a whole-number column is not greater."""
    with commit_lock(lake.root, table.name), lake.transaction(txn):
        lake.spark.sql(f"DELETE FROM {lake.sql_name(table)} WHERE `{column}` <= {int(through)}").collect()


def delete_where(lake: Lake, table: Table, condition: str, txn: Transaction, before: datetime) -> None:
    """Delete the rows of a declared condition in which `:before` is a parameter."""
    declared = condition.replace(":before", _literal(before))
    with commit_lock(lake.root, table.name), lake.transaction(txn):
        lake.spark.sql(f"DELETE FROM {lake.sql_name(table)} WHERE {declared}").collect()


def _literal(value: object) -> str:
    """A value as Spark SQL reads it. Strings in hexadecimal, since no quoting of them is safe in all its modes."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.astimezone(UTC).isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    raise TypeError(f"{type(value).__name__} is no partition value")

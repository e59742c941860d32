"""Compares the records of a batch in Spark with those that have landed; what follows is decided in `rules`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import and_
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements.pipe import BROADCAST_ROWS
from engagement_platform.pipelines.rules import LACKS, judged

GROUP_ROWS = 20_000
"""About so many records are judged in one call; all records of a name are in the same (a guess)."""


def bounds(names: Sequence[str]) -> list[Column]:
    """Aggregates: the least and greatest value of the columns that name a record, as text."""
    return [of(name).cast("string").alias(f"{of.__name__}_{name}") for name in names for of in (F.min, F.max)]


def with_verdict(
    copies: DataFrame,
    landed: DataFrame | None,
    accepted: Row,
    names: Sequence[str],
    *,
    unique: Sequence[str],
    added: Mapping[str, datetime] = MappingProxyType({}),
) -> DataFrame:
    """Accepted records with their `verdict`. Cost: one shuffle, and one scan of `landed`, pruned by the bounds.

    landed: the rows of the table, None: it has none. accepted: `records`, and the `bounds` of the names. unique: as
    for `rules.judged`; what is no coordinate and no name is content. added: when columns came to the table later.
    """
    groups = [F.pmod(F.hash(*names), F.lit(-(-accepted["records"] // GROUP_ROWS))).alias("group")]
    kinds = dict(copies.dtypes)
    ddl = ", ".join(f"{name} {kind}" for name, kind in (*kinds.items(), ("verdict", "string")))
    content = copies.columns[3:]

    def judge(copies: pa.Table, landed: pa.Table) -> pa.Table:
        return judged(copies, landed, unique, content)

    if landed is None:
        return copies.groupBy(*groups).applyInArrow(lambda rows: judge(rows, rows.slice(0, 0)), ddl)
    ids = copies.select(*names)
    ids = F.broadcast(ids) if accepted["records"] <= BROADCAST_ROWS else ids
    # From text, which says values of every type exactly.
    ends = {name: [F.lit(accepted[f"{of}_{name}"]).cast(kinds[name]) for of in ("min", "max")] for name in names}
    near = landed.where(reduce(and_, (F.col(name).between(*found) for name, found in ends.items())))
    lacks = [F.when(F.col("ingestion_ts") < F.lit(at), F.lit(name)) for name, at in added.items()]
    lacking = [F.array_compact(F.array(*lacks)).alias(LACKS)] if lacks else []
    same = near.join(ids, list(names), "left_semi").select(*copies.columns, *lacking)
    return copies.groupBy(*groups).cogroup(same.groupBy(*groups)).applyInArrow(judge, ddl)

"""Recomputes engagements from events and requests, by the rules of the pipelines, and compares.

The comparison of one organization is a pure function; running it over a lake's frames is Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements.schema import ROW_DDL, STATE, arrow_schema
from engagement_platform.pipelines.mutations import rules
from engagement_platform.pipelines.mutations.view import Pending, special_state
from engagement_platform.pipelines.state import content_of, struct_rows

ROWS_PER_GROUP = 100_000
"""Rows of an organization that one task recomputes; as Python objects about 300 MB (a guess)."""

COMPARED_DDL: Final = "organization_id string, engagement_id string, wrong_identity boolean, wrong_content boolean"
COMPARED: Final = arrow_schema(COMPARED_DDL)
_COMPARED_COLUMNS = ["engagement_id", "person_id", "source_person_id", "version", "engagement", "original"]
_GROUP = ("organization_id", "portion")

Row = Mapping[str, Any]


def compared(organization_id: str, state: pa.Table, shown: pa.Table, watermark: int) -> pa.Table:
    """Which engagements of one organization differ from what follows from events and requests.

    state: as for `rules.current_rows`. shown: the rows of the view, schema ROW. Rows of the Data Table are compared as
    well where nothing above the watermark may change them. Returns schema COMPARED, one row for each engagement.
    """
    follows = {row["engagement_id"]: row for row in _picked(rules.current_rows(organization_id, state))}
    found_rows: dict[str, list[Row]] = {engagement_id: [] for engagement_id in follows}
    for row in _picked(shown):
        found_rows.setdefault(row["engagement_id"], []).append(row)
    missing = {engagement_id for engagement_id, rows in found_rows.items() if not rows}
    for row in _settled(state, watermark):
        found_rows[row["engagement_id"]].append(row)
    found = []
    for engagement_id, rows in sorted(found_rows.items()):
        right = follows.get(engagement_id)
        lost = right is None or engagement_id in missing
        found.append(
            {
                "organization_id": organization_id,
                "engagement_id": engagement_id,
                "wrong_identity": lost or any(_identity(row) != _identity(right or {}) for row in rows),
                "wrong_content": any(_content(row) != _content(right or {}) for row in rows),
            }
        )
    return pa.Table.from_pylist(found, schema=COMPARED)


def compare(data: DataFrame, pending: Pending, shown: DataFrame) -> DataFrame:
    """`compared` of all organizations of the Data Table: the columns of COMPARED_DDL.

    data: the columns of ROW. shown: the view. Cost: shuffles the Data Table and the view, and recomputes every row.
    """
    portions, watermark = _portions(data), pending.watermark

    def run(state: pa.Table, rows: pa.Table) -> pa.Table:
        organization_id = (state if state.num_rows else rows).column("organization_id")[0].as_py()
        return compared(organization_id, state.select(STATE.names).cast(STATE), rows, watermark)

    held = shown.join(F.broadcast(portions), "organization_id").withColumn("portion", _portion(F.col("engagement_id")))
    # A column that both sides of a cogroup have of one frame is ambiguous to Spark in this process.
    held = held.drop("portions")
    state = _state(data, pending, portions).groupBy(*_GROUP)
    return state.cogroup(held.groupBy(*_GROUP)).applyInArrow(run, COMPARED_DDL)


def recomputed(data: DataFrame, pending: Pending, before: int | None = None) -> DataFrame:
    """Engagements as `rules.current_rows` makes them of all events and requests: the columns of ROW.

    data: the columns of ROW. before: requests with this sequence and later ones do not count.
    """

    def run(state: pa.Table) -> pa.Table:
        organization_id = state.column("organization_id")[0].as_py()
        return rules.current_rows(organization_id, state.select(STATE.names).cast(STATE), before=before)

    return _state(data, pending, _portions(data)).groupBy(*_GROUP).applyInArrow(run, ROW_DDL)


def _portions(data: DataFrame) -> DataFrame:
    """organization_id, and in how many groups its rows are recomputed."""
    return data.groupBy("organization_id").agg(F.ceil(F.count("*") / ROWS_PER_GROUP).alias("portions"))


def _portion(engagement_id: Column) -> Column:
    return F.pmod(F.xxhash64(engagement_id), F.col("portions"))


def _state(data: DataFrame, pending: Pending, portions: DataFrame) -> DataFrame:
    """The state of all organizations, and to which portion each of its rows belongs; edges belong to all."""
    state = special_state(data, pending, portions).join(F.broadcast(portions), "organization_id")
    of_one = F.array(_portion(F.coalesce("row.engagement_id", "patch.engagement_id")))
    of_all = F.sequence(F.lit(0).cast("bigint"), F.col("portions") - 1)
    split = state.withColumn("portion", F.explode(F.when(F.col("edge").isNull(), of_one).otherwise(of_all)))
    return split.drop("portions")


def _settled(state: pa.Table, watermark: int) -> Iterator[Row]:
    """Rows of the Data Table that nothing above the watermark may change: they are stored as readers see them."""
    newest = pc.max(pc.struct_field(state.column("edge"), "sequence")).as_py()
    if newest is not None and newest > watermark:
        return
    waits = {
        row["engagement_id"]
        for kind in ("row", "patch")
        for row in struct_rows(state, kind)
        if row["sequence"] is not None and row["sequence"] > watermark
    }
    yield from (r for r in struct_rows(state, "row") if r["sequence"] is None and r["engagement_id"] not in waits)


def _picked(rows: pa.Table) -> list[Row]:
    found: list[Row] = rows.select(_COMPARED_COLUMNS).to_pylist()
    return found


def _identity(row: Row) -> tuple[object, ...]:
    return tuple(row.get(name) for name in ("person_id", "source_person_id", "version"))


def _content(row: Row) -> list[object]:
    contents = (row.get(name) for name in ("engagement", "original"))
    return [None if content is None else content_of(content) for content in contents]

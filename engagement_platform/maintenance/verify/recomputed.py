"""Recomputes engagements from events and requests, by the rules of the pipelines, and compares.

The comparison of one organization is a pure function; running it over a lake's frames is Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements.schema import ROW_DDL, STATE, arrow_schema
from engagement_platform.pipelines.mutations import rules
from engagement_platform.pipelines.mutations.view import (
    GROUP,
    ROWS_PER_GROUP,
    Pending,
    in_portions,
    portion,
    portions_of,
    special_state,
)
from engagement_platform.pipelines.state import content_of, struct_rows

COMPARED_DDL: Final = "organization_id string, engagement_id string, wrong_identity boolean, wrong_content boolean"
COMPARED: Final = arrow_schema(COMPARED_DDL)
_COMPARED_COLUMNS = ["engagement_id", "person_id", "source_person_id", "version", "engagement", "original"]

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
    portions, watermark = portions_of(data, ROWS_PER_GROUP), pending.watermark

    def run(state: pa.Table, rows: pa.Table) -> pa.Table:
        organization_id = (state if state.num_rows else rows).column("organization_id")[0].as_py()
        return compared(organization_id, state.select(STATE.names).cast(STATE), rows, watermark)

    held = shown.join(F.broadcast(portions), "organization_id").withColumn("portion", portion(F.col("engagement_id")))
    # A column that both sides of a cogroup have of one frame is ambiguous to Spark in this process.
    held = held.drop("portions")
    state = in_portions(special_state(data, pending, portions), portions).groupBy(*GROUP)
    return state.cogroup(held.groupBy(*GROUP)).applyInArrow(run, COMPARED_DDL)


def recomputed(data: DataFrame, pending: Pending, before: int | None = None) -> DataFrame:
    """Engagements as `rules.current_rows` makes them of all events and requests: the columns of ROW.

    data: the columns of ROW. before: requests with this sequence and later ones do not count.
    """

    def run(state: pa.Table) -> pa.Table:
        organization_id = state.column("organization_id")[0].as_py()
        return rules.current_rows(organization_id, state.select(STATE.names).cast(STATE), before=before)

    portions = portions_of(data, ROWS_PER_GROUP)
    return in_portions(special_state(data, pending, portions), portions).groupBy(*GROUP).applyInArrow(run, ROW_DDL)


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

"""The view of `engagement/mapping` in Spark: one name per id, from evidence and the edges that hand names on.

Frames in, a frame out. A row of the mapping is either evidence as a batch appended it, or the row of an id after a
move: its name, and the evidence on which its name, and those of ids it was converted to, can still depend.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements.schema import STATE, arrow_schema
from engagement_platform.pipelines.frames import state_part
from engagement_platform.pipelines.mutations.rules import Evidence, current_names, needed_evidence
from engagement_platform.pipelines.state import Requests

EVIDENCE_DDL: Final = "array<struct<name:string,name_ts:timestamp,request_id:string>>"
MAPPING_DDL: Final = f"organization_id string, id string, name string, name_ts timestamp, evidence {EVIDENCE_DDL}"
MAPPING: Final = arrow_schema(MAPPING_DDL)


def current(mapping: DataFrame, renames: DataFrame | None, alias: DataFrame | None) -> DataFrame:
    """One row per id that has a name: the columns of MAPPING_DDL but evidence.

    mapping: the columns of MAPPING_DDL. renames: every accepted RENAME that is not folded into the mapping; alias:
    every accepted CONVERT and DELETE; None where there is none. Cost: one shuffle of evidence and edges.
    """
    return folded(mapping, renames, alias, None).drop("evidence")


def folded(
    mapping: DataFrame, renames: DataFrame | None, alias: DataFrame | None, horizon: datetime | None
) -> DataFrame:
    """The mapping after a move: one row per id, with the columns of MAPPING_DDL; the name is null where it has none.

    horizon: every request that may still be accepted has this execution_ts or a later one. None: no evidence is kept.
    """

    def run(state: pa.Table) -> pa.Table:
        organization_id, state = state.column("organization_id")[0].as_py(), state.cast(STATE)
        edges, evidence = Requests.edges_of(organization_id, state), Evidence.of(state)
        names = current_names(organization_id, evidence, edges)
        kept: dict[str, list[dict[str, Any]]] = {person: [] for person in names}
        for one in () if horizon is None else needed_evidence(evidence, edges, horizon):
            fields = {"name": one.name, "name_ts": one.name_ts, "request_id": one.request_id}
            kept.setdefault(one.id, []).append(fields)
        rows = [(organization_id, id_, *names.get(id_, (None, None)), needed) for id_, needed in sorted(kept.items())]
        return pa.Table.from_pylist([dict(zip(MAPPING.names, row, strict=True)) for row in rows], schema=MAPPING)

    none = F.lit(None).cast("string").alias("request_id")
    evidence = mapping.where("evidence IS NULL").select("organization_id", "id", "name", "name_ts", none)
    before = mapping.select("organization_id", "id", F.explode("evidence").alias("of"))
    evidence = evidence.unionByName(before.select("organization_id", "id", "of.*"))
    if renames is not None:
        renamed = renames.withColumns({"id": F.col("from_id"), "name_ts": F.col("execution_ts")})
        evidence = evidence.unionByName(renamed.select(*evidence.columns))
    state = state_part(evidence, "name_evidence")
    if alias is not None:
        state = state.unionByName(state_part(alias, "edge"))
    return state.groupBy("organization_id").applyInArrow(run, MAPPING_DDL)

"""The view of `engagement/mapping` in Spark: one name per id, from evidence and the edges that hand names on.

Frames in, a frame out. A row of the mapping is either evidence as a batch appended it, or the row of an id after a
move: its name, and the evidence on which its name, and those of ids it was converted to, can still depend.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements.schema import STATE, arrow_schema
from engagement_platform.pipelines.frames import state_part
from engagement_platform.pipelines.mutations.rules import Evidence, current_names, needed_evidence
from engagement_platform.pipelines.state import Requests

NAME_DDL: Final = "organization_id string, id string, name string, name_ts timestamp"
EVIDENCE_DDL: Final = "array<struct<name:string,name_ts:timestamp,request_id:string>>"
MAPPING_DDL: Final = f"{NAME_DDL}, evidence {EVIDENCE_DDL}"
NAME: Final = arrow_schema(NAME_DDL)
MAPPING: Final = arrow_schema(MAPPING_DDL)
_EVIDENCE: Final = ("name", "name_ts", "request_id")


def current(mapping: DataFrame, renames: DataFrame | None, alias: DataFrame | None) -> DataFrame:
    """One row per id that has a name: the columns of NAME_DDL.

    mapping: the columns of MAPPING_DDL. renames: every accepted RENAME that is not folded into the mapping; alias:
    every accepted CONVERT and DELETE; None where there is none. Cost: one shuffle of evidence and edges.
    """

    def run(organization_id: str, state: pa.Table) -> pa.Table:
        names = current_names(organization_id, Evidence.of(state), Requests.edges_of(organization_id, state))
        rows = [(organization_id, person, name, name_ts) for person, (name, name_ts) in names.items()]
        return pa.Table.from_pylist([dict(zip(NAME.names, row, strict=True)) for row in rows], schema=NAME)

    return _by_organization(mapping, renames, alias, run, NAME_DDL)


def folded(mapping: DataFrame, renames: DataFrame | None, alias: DataFrame | None, horizon: datetime) -> DataFrame:
    """The mapping after a move: one row per id, with the columns of MAPPING_DDL; the name is null where it has none.

    horizon: every request that may still be accepted has this execution_ts or a later one.
    """

    def run(organization_id: str, state: pa.Table) -> pa.Table:
        edges, evidence = Requests.edges_of(organization_id, state), Evidence.of(state)
        names = current_names(organization_id, evidence, edges)
        kept: dict[str, list[dict[str, Any]]] = {person: [] for person in names}
        for one in needed_evidence(evidence, edges, horizon):
            kept.setdefault(one.id, []).append({name: getattr(one, name) for name in _EVIDENCE})
        rows = []
        for person, needed in sorted(kept.items()):
            name, name_ts = names.get(person, (None, None))
            row = (organization_id, person, name, name_ts, needed)
            rows.append(dict(zip(MAPPING.names, row, strict=True)))
        return pa.Table.from_pylist(rows, schema=MAPPING)

    return _by_organization(mapping, renames, alias, run, MAPPING_DDL)


def _by_organization(
    mapping: DataFrame,
    renames: DataFrame | None,
    alias: DataFrame | None,
    rule: Callable[[str, pa.Table], pa.Table],
    ddl: str,
) -> DataFrame:
    """What a rule makes of the evidence and edges of each organization."""

    def run(state: pa.Table) -> pa.Table:
        return rule(state.column("organization_id")[0].as_py(), state.cast(STATE))

    none = F.lit(None).cast("string").alias("request_id")
    appended = mapping.where("evidence IS NULL").select("organization_id", "id", "name", "name_ts", none)
    kept = mapping.select("organization_id", "id", F.explode("evidence").alias("of"))
    state = state_part(appended.unionByName(kept.select("organization_id", "id", "of.*")), "said")
    if renames is not None:
        renamed = renames.select("organization_id", "from_id", "name", "execution_ts", "request_id")
        state = state.unionByName(
            state_part(renamed.withColumnsRenamed({"from_id": "id", "execution_ts": "name_ts"}), "said")
        )
    if alias is not None:
        state = state.unionByName(state_part(alias, "edge"))
    return state.groupBy("organization_id").applyInArrow(run, ddl)

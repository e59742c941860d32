"""The view `engagement/current`: the Data Table as readers should see it, without deleted rows, newest aliases applied.

Most organizations stand in the table as they are; for those whose aliases wait to be moved, identities are resolved
while the view is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Manifest
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import ALIAS, PENDING
from engagement_platform.lake.lake import Lake, any_of
from engagement_platform.mutation.accepted import Accepted, TooMany, pinned
from engagement_platform.mutation.identify import identified
from engagement_platform.mutation.identity import identities_of, leading_to, told_apart
from engagement_platform.mutation.resolver import Identities
from engagement_platform.mutation.rows import operation_rows

NAME = "engagement/current"

_ROW = ("organization_id", "engagement_date", "engagement_ts", "engagement_id", "source_person_id")
_OPERATION = ("organization_id", "from_id", "engaged_from", "engaged_before", "to_id")


def current(lake: Lake, data: Table) -> DataFrame:
    """Engagements as they are now, with the Data Table's columns.

    One consistent moment: the organizations that wait are looked up before and after the other versions are taken.
    Cost: a plain read. Where aliases wait, their edges are followed in this process (more than `mutation.light_edges`:
    in Spark), and rows of those organizations are joined with what comes of it, which is broadcast.
    """
    while True:
        before = lake.version(PENDING)
        versions = {table.name: lake.version(table) for table in (data, ALIAS)}
        if lake.version(PENDING) == before:
            break
    return current_at(lake, data, {**versions, PENDING.name: before})


def current_at(lake: Lake, data: Table, versions: Mapping[str, int]) -> DataFrame:
    """As `current`, at versions of the Data Table, of the aliases and of what waits that belong together."""
    return shown_at(lake, data, versions).where(F.col("person_id").isNotNull())


def shown_at(lake: Lake, data: Table, versions: Mapping[str, int]) -> DataFrame:
    """As `current_at`, and deleted rows with them: their person_id is null."""
    pins = Manifest("current", "current", 0, {}, {}, datetime.now(UTC), versions)
    rows = lake.read(data, versions[data.name])
    waiting = _waiting(lake, versions[PENDING.name])
    if not waiting:
        return rows
    try:
        # Over all rows: one scan and a look into what is broadcast cost less than a second branch for the others.
        return _joined(rows, Accepted(lake, pins, waiting, lake.settings.mutation), data)
    except TooMany:
        these = F.col("organization_id").isin(waiting)
        edges = lake.read(ALIAS, pinned(pins, ALIAS)).where(any_of("organization_id", waiting))
        moved = identified(rows.where(these), edges, engine=lake.settings.mutation.resolver)
        moved = moved.drop("person_id").withColumnRenamed("now", "person_id").select(*rows.columns)
        return rows.where(~these).unionByName(moved)


def _waiting(lake: Lake, version: int) -> list[str]:
    """Organizations whose aliases the Data Table does not show."""
    found = lake.find(PENDING, version, ("organization_id", "pending_from"), {})
    return sorted(row["organization_id"] for row in found.to_pylist() if row["pending_from"] is not None)


def _joined(rows: DataFrame, accepted: Accepted, data: Table) -> DataFrame:
    """Rows with the identity of now: by the operation of their id, or, where rows of an id differ, one by one."""
    edges = accepted.edges
    identities = Identities(edges)
    sources = leading_to(edges, accepted.waiting)
    alone = _alone(accepted, identities, data)
    apart = {(row["organization_id"], row["source_person_id"]) for row in alone}
    apart |= identities.branching()
    found = ((op, (op.organization_id, op.from_id)) for op in identities.operations())
    operations = operation_rows(op for op, of in found if of in sources and of not in apart)
    offers = accepted.lake.frame(operations).select(*(F.col(name).alias(f"op_{name}") for name in _OPERATION))
    meets = (
        # Not by one long, a hash of both: that took longer (3,000,000 rows: 2.5 against 2.2 s).
        (F.col("organization_id") == F.col("op_organization_id"))
        & (F.col("source_person_id") == F.col("op_from_id"))
        & (F.col("op_engaged_from").isNull() | (F.col("engagement_ts") >= F.col("op_engaged_from")))
        & (F.col("engagement_ts") < F.col("op_engaged_before"))
    )
    joined = rows.join(F.broadcast(offers), meets, "left")
    now = F.when(F.col("op_from_id").isNotNull(), F.col("op_to_id")).otherwise(F.col("person_id"))
    shown = joined.withColumn("person_id", now).select(*rows.columns)
    if not alone:
        return shown
    fields = [("organization_id", pa.string()), ("engagement_id", pa.string()), ("now", pa.string())]
    few = accepted.lake.frame(pa.Table.from_pylist(alone, schema=pa.schema(fields))).withColumn("walked", F.lit(True))
    met = shown.join(F.broadcast(few), ["organization_id", "engagement_id"], "left")
    person = F.when(F.col("walked"), F.col("now")).otherwise(F.col("person_id"))
    return met.withColumn("person_id", person).select(*rows.columns)


def _alone(accepted: Accepted, identities: Identities, data: Table) -> list[Mapping[str, Any]]:
    """Rows of ids whose rows a request tells apart, each with `now`."""
    organizations, engagements = accepted.organizations, sorted(e for _, e in identities.erased_engagements())
    find = accepted.lake.find
    version = pinned(accepted.manifest, data)
    erased = find(data, version, _ROW, {"organization_id": organizations, "engagement_id": engagements})
    apart = told_apart(erased, identities) if engagements else identities.branching()
    if not apart:
        return []
    persons = sorted({person for _, person in apart})
    rows = find(data, version, _ROW, {"organization_id": organizations, "source_person_id": persons})
    rows = rows.append_column("now", identities_of(rows, identities))
    return [row for row in rows.to_pylist() if (row["organization_id"], row["source_person_id"]) in apart]

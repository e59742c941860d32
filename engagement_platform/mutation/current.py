"""The view `engagement/current`: the Data Table as readers should see it, without deleted rows, newest aliases applied.

Most organizations stand in the table as they are; for those whose aliases wait to be moved, identities are resolved
while the view is built.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.mutation.identify import identified
from engagement_platform.tables.contract import Table
from engagement_platform.tables.engagement import ALIAS, PENDING
from engagement_platform.tables.lake import Lake, any_of

NAME = "engagement/current"


def current(lake: Lake, data: Table) -> DataFrame:
    """Engagements as they are now, with the Data Table's columns.

    One consistent moment: the organizations that wait are looked up before and after the table's version is pinned.
    Cost: a plain read, and where aliases wait, resolving those of their organizations.
    """
    while True:
        pending_version = lake.version(PENDING)
        version, aliases = lake.version(data), lake.version(ALIAS)
        if lake.version(PENDING) == pending_version:
            break
    rows = lake.read(data, version)
    found = lake.read(PENDING, pending_version).where("pending_from IS NOT NULL").select("organization_id").collect()
    waiting = sorted(row["organization_id"] for row in found)
    if not waiting:
        return rows.where(F.col("person_id").isNotNull())
    edges = lake.read(ALIAS, aliases).where(any_of("organization_id", waiting))
    these = F.col("organization_id").isin(waiting)
    moved = identified(rows.where(these), edges, engine=lake.settings.mutation.resolver)
    moved = moved.drop("person_id").withColumnRenamed("now", "person_id").select(*rows.columns)
    return rows.where(~these).unionByName(moved).where(F.col("person_id").isNotNull())

"""What readers see differently at two moments of the tables: engagements, as notifications tell of it, and entities.

Reads only. Which moments those are is `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.merge_on_read.entity import Entity
from engagement_platform.merge_on_read.snapshot import snapshot
from engagement_platform.merge_on_read.view import view
from engagement_platform.mutation.current import current_at
from engagement_platform.tables.contract import Table
from engagement_platform.tables.engagement import PENDING, data_table
from engagement_platform.tables.lake import Lake, any_of
from engagement_platform.tables.restored import organizations_between

_ID = ("organization_id", "engagement_id")


def differences(lake: Lake, before: Mapping[str, int], after: Mapping[str, int]) -> DataFrame:
    """One row for each engagement that differs. before, after: versions of the Data Table, aliases and pending.

    Out: organization_id, engagement_id, engagement_date, change_type, person_id, previous_person_id. Identity,
    content, version and time count, batch_id does not.
    Cost: the organizations whose files differ are read twice and joined; all of them where aliases wait at either
    moment, or where the table is not partitioned by organization.
    """
    data = data_table(lake.settings.layout.scheme)
    within = _organizations(lake, data, before, after)
    was, now = (_seen(lake, data, versions, within) for versions in (before, after))
    joined = was.select(*_ID, F.struct(*_VALUES).alias("was")).join(
        now.select(*_ID, F.struct(*_VALUES).alias("now")), list(_ID), "full"
    )
    return _differing(joined).select(
        *_ID,
        F.coalesce("now.engagement_date", "was.engagement_date").alias("engagement_date"),
        "change_type",
        F.col("now.person_id").alias("person_id"),
        F.col("was.person_id").alias("previous_person_id"),
    )


def entity_differences(lake: Lake, entity: Entity, before: Mapping[str, int], after: Mapping[str, int]) -> DataFrame:
    """One row for each key that differs in an entity's view: key, change_type. before, after: of changeset and base.

    Cost: the view is read twice, whole, and joined.
    """

    def seen(versions: Mapping[str, int], name: str) -> DataFrame:
        changeset, base = (versions[table.name] for table in (entity.changeset, entity.base))
        at = snapshot(lake.root, entity, changeset_version=changeset, base_version=base)
        rows = view(lake, entity, at=at).rows
        return rows.select(entity.key, F.struct(entity.version, *entity.columns).alias(name))

    joined = seen(before, "was").join(seen(after, "now"), entity.key, "full")
    return _differing(joined).select(entity.key, "change_type")


def _differing(joined: DataFrame) -> DataFrame:
    """Rows of which `was` and `now` differ, with change_type; null: not there."""
    gone, new = F.col("now").isNull(), F.col("was").isNull()
    kind: Column = F.when(gone, "DELETE").when(new, "INSERT").otherwise("UPDATE")
    return joined.where(~F.col("was").eqNullSafe(F.col("now"))).withColumn("change_type", kind)


_VALUES = ("engagement_date", "engagement_ts", "person_id", "source_person_id", "version", "said")


def _seen(lake: Lake, data: Table, versions: Mapping[str, int], within: list[str] | None) -> DataFrame:
    rows = current_at(lake, data, versions)
    if within is not None:
        rows = rows.where(any_of("organization_id", within))
    # Maps cannot be compared, and the order of their entries says nothing.
    attributes = F.array_sort(F.map_entries("engagement.attributes"))
    said = F.to_json(F.struct("engagement.type", "engagement.channel", "engagement.subject", attributes.alias("a")))
    # A null in a comparison would hide a difference.
    return rows.withColumns({"said": F.coalesce(said, F.lit(""))})


def _organizations(lake: Lake, data: Table, before: Mapping[str, int], after: Mapping[str, int]) -> list[str] | None:
    """Organizations in which anything can differ; None: any."""
    for versions in (before, after):
        marks = lake.find(PENDING, versions[PENDING.name], ("pending_from",), {}).column("pending_from")
        if marks.null_count < len(marks):
            return None
    return organizations_between(lake.uri(data), data.name, before[data.name], after[data.name])

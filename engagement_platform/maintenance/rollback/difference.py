"""What readers see differently at two moments of the tables: engagements, as notifications tell of it, and entities.

Reads only. Which moments those are is `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.lake.engagement import MUTATION_REQUEST
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.mutations.announce import changes
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.snapshot import snapshot
from engagement_platform.pipelines.profiles.view import view
from engagement_platform.pipelines.snapshot import data, pending, shown, snapshot_of

_ID = ("organization_id", "engagement_id")
_VALUES = ("engagement_date", "engagement_ts", "person_id", "source_person_id", "version", "content")


def differences(lake: Lake, before: Mapping[str, int], after: Mapping[str, int], announced: int) -> DataFrame:
    """One row for each engagement that differs. before, after: versions of the engagement tables.

    announced: the sequence up to which readers have notifications of requests. Later ones do not count, at neither
    moment: `apply-mutations` announces those that are left.
    Out: organization_id, engagement_id, engagement_date, change_type, person_id, previous_person_id. Identity,
    content, version and time count, batch_id does not. Cost: the view is read twice, whole, and joined.
    """
    was, now = (_seen(lake, versions, announced) for versions in (before, after))
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


def _seen(lake: Lake, versions: Mapping[str, int], announced: int) -> DataFrame:
    """The view with _VALUES, under the persons that notifications have announced."""
    at = snapshot_of(lake.root, versions)
    rows = shown(lake, at)
    if at.is_pending(MUTATION_REQUEST, announced):
        announceable = changes(data(lake, at), pending(lake, at), announced + 1)
        announceable = announceable.select(
            *_ID, F.lit(True).alias("waits"), F.col("previous_person_id").alias("announced")
        )
        person = F.when(F.col("waits"), F.col("announced")).otherwise(F.col("person_id"))
        rows = rows.join(announceable, list(_ID), "left").withColumn("person_id", person)
    # Maps cannot be compared, and the order of their entries says nothing.
    attributes = F.array_sort(F.map_entries("engagement.attributes"))
    content = F.to_json(F.struct("engagement.type", "engagement.channel", "engagement.subject", attributes.alias("a")))
    # A null in a comparison would hide a difference.
    return rows.where("person_id IS NOT NULL").withColumns({"content": F.coalesce(content, F.lit(""))})

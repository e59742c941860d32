"""Frames as the tables take them: stamped, shaped, and without what is there already. Nothing is decided here."""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Manifest
from engagement_platform.ingestion.settle import COORDINATES, ID, REASONS, Verdict
from engagement_platform.lake.audit_columns import stamped
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.lake.lake import Lake
from engagement_platform.sources.messages import Reason


def not_quarantined(rejected: DataFrame, lake: Lake, manifest: Manifest) -> DataFrame:
    """Rejected records that quarantine does not hold already, when they may have been seen before.

    The same bytes at the same coordinates are the same record, whatever it was rejected for then. A topic that was
    made anew counts its offsets from 0 again, so coordinates alone would not do; but where somebody was erased they
    are all that is left, and what stood there must not come back.
    """
    if not manifest.goes_over_again:
        return rejected
    held = lake.read(QUARANTINE, manifest.table_versions[QUARANTINE.name]).select(
        *COORDINATES, F.col("value").alias("held_value"), F.col("reason_code").alias("held_reason")
    )
    same = [F.col(f"rejected.{name}") == F.col(f"held.{name}") for name in COORDINATES]
    is_marker = F.col("held.held_reason").eqNullSafe(Reason.ERASED.value) & F.col("held.held_value").isNull()
    same.append(F.col("rejected.value").eqNullSafe(F.col("held.held_value")) | is_marker)
    return rejected.alias("rejected").join(held.alias("held"), reduce(and_, same), "left_anti")


def refuted(raw: DataFrame, verdicts: DataFrame) -> DataFrame:
    """Contradictions as raw records with their reason; read from the source again, since they are few."""
    reason: Column = F.lit(None).cast("string")
    for code, sentence in REASONS.items():
        reason = F.when(F.col("reason_code") == code, sentence).otherwise(reason)
    few = verdicts.where(F.col("reason_code").isNotNull()).select(*COORDINATES, "reason_code")
    return raw.join(F.broadcast(few), list(COORDINATES)).withColumn("reason", reason)


def refuted_before(raw: DataFrame, lake: Lake, manifest: Manifest) -> DataFrame:
    """Coordinates of records that were refuted when they were read before.

    Once a newer version stands, such a copy looks like any older one when it is read again. Quarantine remembers it by
    its place and its bytes.
    """
    held = lake.read(QUARANTINE, manifest.table_versions[QUARANTINE.name])
    held = held.where(F.col("reason_code").isin(list(REASONS))).select(*COORDINATES, "value").distinct()
    return raw.join(held, [*COORDINATES, "value"]).select(*COORDINATES)


def as_data(rows: DataFrame, manifest: Manifest) -> DataFrame:
    """Accepted copies as rows of the Data Table, under the identity and with the content that requests gave them."""
    return rows.select(
        "organization_id",
        "engagement_date",
        "engagement_ts",
        "engagement_id",
        F.col("now").alias("person_id"),
        F.col("person_id").alias("source_person_id"),
        "version",
        F.lit(manifest.batch_id).cast("long").alias("batch_id"),
        F.col("told").alias("engagement"),
    )


def as_superseded(copies: DataFrame) -> DataFrame:
    """Accepted copies that do not land as rows of the log of superseded versions, unstamped.

    copies: also with `engagement`, what they said.
    """
    return copies.select(*ID, "version", F.col("person_id").alias("source_person_id"), "engagement_ts", "engagement")


def as_replaced(verdicts: DataFrame) -> DataFrame:
    """The rows that updates replace, as `as_superseded` makes them. verdicts: as `settle` gives them."""
    said = F.struct(
        "replaced.type",
        "replaced.channel",
        "replaced.subject",
        F.map_from_entries("replaced.attributes").alias("attributes"),
    )
    return verdicts.where(F.col("verdict") == Verdict.UPDATE.value).select(
        *ID,
        F.col("replaced_version").alias("version"),
        F.col("replaced.person_id").alias("source_person_id"),
        F.col("replaced.engagement_ts").alias("engagement_ts"),
        said.alias("engagement"),
    )


def as_notifications(landed: DataFrame, manifest: Manifest) -> DataFrame:
    """Landing copies as rows of the notification table; without those that nobody sees, now or before."""
    # Coordinates name the change for good and compress to almost nothing, unlike a hash.
    identity = F.concat_ws("/", F.lit(manifest.app_id), "topic", "partition", "offset")
    gone, new = F.col("now").isNull(), F.col("previous_person_id").isNull()
    kind = F.when(gone, "DELETE").when(new, "INSERT").otherwise("UPDATE")
    seen = stamped(landed.where(~(gone & new)), manifest)
    return seen.withColumns({"notification_id": identity, "change_type": kind, "person_id": F.col("now")})

"""Audit columns of the rows of a batch, taken from its manifest so that a replay writes the same values."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Manifest


def stamped(frame: DataFrame, manifest: Manifest) -> DataFrame:
    """With batch_id, batch_sequence, job_name, ingestion_ts and ingestion_date of the manifest."""
    return frame.withColumns(
        {
            "batch_id": F.lit(manifest.batch_id).cast("long"),
            "batch_sequence": F.lit(manifest.sequence).cast("long"),
            "job_name": F.lit(manifest.job),
            "ingestion_ts": F.lit(manifest.ingestion_ts),
            "ingestion_date": F.lit(manifest.ingestion_ts.date()),
        }
    )


def stamped_changes(changes: DataFrame, manifest: Manifest) -> DataFrame:
    """As `stamped`, with the `notification_id` of changes that no message of their own brought."""
    begin = F.lit(f"{manifest.app_id}/{manifest.batch_id}")
    # The length says where the organization ends: ids may hold any character.
    length = F.char_length("organization_id").cast("string")
    identity = F.concat_ws("/", begin, length, "organization_id", "engagement_id")
    return stamped(changes, manifest).withColumn("notification_id", identity)

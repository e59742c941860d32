"""The stamps that every row of a batch carries, from its manifest and from no clock: a replay writes the same."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Manifest


def stamped(frame: DataFrame, manifest: Manifest) -> DataFrame:
    """With batch_id, batch_sequence, job_name, ingestion_ts and ingestion_date of the manifest."""
    moment = F.lit(manifest.ingestion_ts)
    return frame.withColumns(
        {
            "batch_id": F.lit(manifest.batch_id).cast("long"),
            "batch_sequence": F.lit(manifest.sequence).cast("long"),
            "job_name": F.lit(manifest.job),
            "ingestion_ts": moment,
            "ingestion_date": F.lit(manifest.ingestion_ts.date()),
        }
    )


def stamped_here(rows: pa.Table, manifest: Manifest) -> pa.Table:
    """As `stamped`, for rows in this process."""
    stamps = {
        "batch_id": pa.scalar(manifest.batch_id, pa.int64()),
        "batch_sequence": pa.scalar(manifest.sequence, pa.int64()),
        "job_name": pa.scalar(manifest.job, pa.string()),
        "ingestion_ts": pa.scalar(manifest.ingestion_ts, pa.timestamp("us", tz="UTC")),
        "ingestion_date": pa.scalar(manifest.ingestion_ts.date(), pa.date32()),
    }
    for name, value in stamps.items():
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows

"""Frames of the state of organizations, with the columns of STATE_DDL; each part fills one of its structs.

What the parts are read from, and what is made of them, is each pipeline's own.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements.schema import STATE_DDL, STATE_FIELDS, struct_ddl


def rows_part(frame: DataFrame) -> DataFrame:
    """Rows of the Data Table (sequence null) or of the changeset."""
    return _part(frame, "row")


def edges_part(frame: DataFrame) -> DataFrame:
    """Accepted CONVERTs and DELETEs."""
    return _part(frame, "edge")


def patches_part(frame: DataFrame) -> DataFrame:
    """Accepted UPDATEs."""
    return _part(frame, "patch")


def said_part(frame: DataFrame) -> DataFrame:
    """Names as they were said of ids; request_id: of the RENAME, null for an engagement."""
    return _part(frame, "said")


def no_state(frame: DataFrame) -> DataFrame:
    """A state of no rows, on the session of a frame."""
    return frame.sparkSession.createDataFrame([], STATE_DDL)


def _part(frame: DataFrame, name: str) -> DataFrame:
    columns = [F.col("organization_id")]
    for kind, fields in STATE_FIELDS.items():
        if kind == name:
            columns.append(F.struct(*(F.col(field).cast(of).alias(field) for field, of in fields.items())).alias(kind))
        else:
            columns.append(F.lit(None).cast(struct_ddl(fields)).alias(kind))
    return frame.select(*columns)

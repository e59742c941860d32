"""Frames of the state of organizations, with the columns of STATE_DDL.

What its parts are read from, and what is made of them, is each pipeline's own.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements.schema import STATE_DDL, STATE_FIELDS, struct_ddl


def state_part(frame: DataFrame, kind: str) -> DataFrame:
    """Rows that fill one of the structs of the state.

    row: of the Data Table (sequence null) or the changeset. edge: accepted CONVERTs and DELETEs. patch: accepted
    UPDATEs. name_evidence: names of ids; request_id is that of the RENAME, null for an engagement.
    """
    columns = [F.col("organization_id")]
    for name, fields in STATE_FIELDS.items():
        if name == kind:
            columns.append(F.struct(*(F.col(field).cast(of).alias(field) for field, of in fields.items())).alias(name))
        else:
            columns.append(F.lit(None).cast(struct_ddl(fields)).alias(name))
    return frame.select(*columns)


def no_state(frame: DataFrame) -> DataFrame:
    """A state of no rows, on the session of a frame."""
    return frame.sparkSession.createDataFrame([], STATE_DDL)

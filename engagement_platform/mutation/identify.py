"""Identities of many rows in Spark: by the resolved map where one operation settles all rows of an id, else one by one.

The same as `identity` for rows and requests that do not fit into one process. Frames in, frames out.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.mutation.cascade import Engine, must_walk, operations, resolve
from engagement_platform.mutation.walk import ROW, walk

_KEY = ("organization_id", "engagement_id", "source_person_id")


def identified(rows: DataFrame, edges: DataFrame, *, engine: Engine = "pointer_doubling") -> DataFrame:
    """Rows with the identity they have after all edges.

    In:  rows: organization_id, engagement_id, engagement_date, engagement_ts, source_person_id and any others but
         `now`. edges: as `cascade.resolve` takes them; all count, whatever is_new says.
    Out: the columns of rows, now (null: deleted), and walks: whether a request may tell the row apart from others of
         its id, so that it was walked.
    Cost: resolving the edges, one join over the rows; for rows that some request may tell apart from others of their
    id, `walk` in addition.
    """
    given = rows.columns
    edges = edges.drop("is_new")
    resolved = resolve(edges, engine=engine).localCheckpoint()
    narrow = must_walk(resolved, edges).select("organization_id", "from_id", "engagement_id").distinct()
    narrow = narrow.localCheckpoint()
    if narrow.isEmpty():
        return _by_operation(rows, operations(resolved)).select(*given, "now", F.lit(False).alias("walks"))
    persons = narrow.where(F.col("from_id").isNotNull()).select(
        "organization_id", F.col("from_id").alias("source_person_id"), F.lit(True).alias("of_person")
    )
    engagements = narrow.where(F.col("from_id").isNull()).select(
        "organization_id", "engagement_id", F.lit(True).alias("of_engagement")
    )
    flagged = (
        rows.join(F.broadcast(persons.distinct()), ["organization_id", "source_person_id"], "left")
        .join(F.broadcast(engagements.distinct()), ["organization_id", "engagement_id"], "left")
        .withColumn("walks", F.coalesce("of_person", "of_engagement", F.lit(False)))
        .drop("of_person", "of_engagement")
        .localCheckpoint()
    )
    together = _by_operation(flagged.where(~F.col("walks")), operations(resolved)).select(*given, "now", "walks")
    renamed = "person_id" in given
    alone = flagged.where("walks").select(*given)
    walked = walk(alone.withColumnRenamed("person_id", "stored_person_id") if renamed else alone, edges)
    walked = walked.withColumn("now", F.when(~F.col("deleted"), F.col("person_id"))).drop(
        "person_id", "deleted", "hops"
    )
    if renamed:
        walked = walked.withColumnRenamed("stored_person_id", "person_id")
    return together.unionByName(walked.select(*given, "now", F.lit(True).alias("walks")))


def _by_operation(rows: DataFrame, found: DataFrame) -> DataFrame:
    """`now` by the operation that matches the row's id and time, else what the event said."""
    offers = found.select(
        F.col("organization_id").alias("op_organization_id"),
        F.col("from_id").alias("op_from_id"),
        "engaged_from",
        "engaged_before",
        F.col("to_id").alias("op_to_id"),
        F.lit(True).alias("matched"),
    )
    matches = (
        (F.col("organization_id") == F.col("op_organization_id"))
        & (F.col("source_person_id") == F.col("op_from_id"))
        & (F.col("engaged_from").isNull() | (F.col("engagement_ts") >= F.col("engaged_from")))
        & (F.col("engagement_ts") < F.col("engaged_before"))
    )
    joined = rows.join(offers, matches, "left")
    return joined.withColumn("now", F.when(F.col("matched"), F.col("op_to_id")).otherwise(F.col("source_person_id")))


__all__ = ["ROW", "identified"]

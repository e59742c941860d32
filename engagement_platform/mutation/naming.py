"""Names of many ids at once in Spark: the same as `names` for edges and sayings that do not fit into one process.

Frames in, frames out; nothing here reads or writes a table.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

_ID = ("organization_id", "id")
_SAID = ("name_ts", "by_rename", "request_id", "name")


def sayings(said: DataFrame, renames: DataFrame) -> DataFrame:
    """What was said of persons' names, as `named` takes it.

    In:  said: organization_id, id, name, name_ts, as engagements said it. renames: organization_id, request_id,
         operation, from_id, name, execution_ts; others than RENAMEs are left out.
    Out: organization_id, id, place, said.
    """
    engaged = said.select(*_ID, "name_ts", F.lit(False).alias("by_rename"), F.lit("").alias("request_id"), "name")
    renamed = renames.where("operation = 'RENAME'").select(
        "organization_id",
        F.col("from_id").alias("id"),
        F.col("execution_ts").alias("name_ts"),
        F.lit(True).alias("by_rename"),
        "request_id",
        "name",
    )
    # At equal times requests come before engagements.
    place = _place(F.col("name_ts"), ~F.col("by_rename"), F.col("request_id"))
    return engaged.unionByName(renamed).distinct().select(*_ID, place.alias("place"), F.struct(*_SAID).alias("said"))


def plain(edges: DataFrame) -> DataFrame:
    """The edges that move names: of whole persons, not within a range, not from an id to itself.

    In:  CONVERTs and DELETEs with the columns of `engagement/alias`; request_id unique within an organization.
    Out: organization_id, id (that the edge leaves), to_id (null: the name is removed), place.
    """
    narrow = ("engagement_id", "engagement_date_from", "engagement_date_to")
    whole = edges.where(" AND ".join(f"{name} IS NULL" for name in narrow)).where(F.col("from_id").isNotNull())
    # A DELETE may carry a to_id; fields that an operation does not use are ignored.
    to_id = F.when(F.col("operation") == "CONVERT", F.col("to_id"))
    place = _place(F.col("execution_ts"), F.lit(False), F.col("request_id"))
    moves = whole.select("organization_id", F.col("from_id").alias("id"), to_id.alias("to_id"), place.alias("place"))
    return moves.where(~F.col("id").eqNullSafe(F.col("to_id")))


def named(said: DataFrame, moves: DataFrame) -> DataFrame:
    """The name that each id has in the end; ids without one are absent.

    In:  said: as `sayings` makes it; moves: as `plain` does, of the same organizations.
    Out: organization_id, id, name, name_ts.
    Cost: one window over what was said and the moves, then one per hop over what arrived by the hop before and the
    moves of those ids: as many as the longest chain along which a name is handed on.
    """
    offers = said.localCheckpoint()
    heard = offers
    # Ends by itself: what is handed on arrives later than it was said, and is handed on later still.
    while True:
        offers = _handed_on(offers, moves).localCheckpoint()
        if offers.isEmpty():
            break
        heard = heard.unionByName(offers)
    removed = moves.where("to_id IS NULL").groupBy(*_ID).agg(F.max("place").alias("removed"))
    stands = heard.join(removed, list(_ID), "left").where("removed IS NULL OR place > removed")
    newest = stands.groupBy(*_ID).agg(F.max("said").alias("said"))
    return newest.select(*_ID, "said.name", "said.name_ts")


def _handed_on(offers: DataFrame, moves: DataFrame) -> DataFrame:
    """What these offers become at the ids that edges hand them on to. One line of events for each id, one pass."""
    leaving = moves.join(offers.select(*_ID).distinct(), list(_ID), "left_semi")
    events = offers.withColumn("leaves", F.lit(False)).unionByName(
        leaving.withColumn("leaves", F.lit(True)), allowMissingColumns=True
    )
    begun = Window.unboundedPreceding, Window.currentRow
    line = Window.partitionBy(*_ID).orderBy("place").rowsBetween(*begun)
    # After a DELETE an id begins anew.
    lives = events.withColumn("life", F.count_if(F.col("leaves") & F.col("to_id").isNull()).over(line))
    life = Window.partitionBy(*_ID, "life").orderBy("place").rowsBetween(*begun)
    newest = lives.withColumn("newest", F.max("said").over(life))
    return newest.where("leaves AND to_id IS NOT NULL AND newest IS NOT NULL").select(
        "organization_id", F.col("to_id").alias("id"), "place", F.col("newest").alias("said")
    )


def differing(found: DataFrame, stands: DataFrame) -> DataFrame:
    """The names of now where the mapping does not say so; null where one is gone.

    In and out: organization_id, id, name, name_ts; at most one row per id each.
    """
    old = stands.select(*_ID, F.col("name").alias("old_name"), F.col("name_ts").alias("old_name_ts"))
    both = found.join(old, list(_ID), "full")
    same = F.col("name").eqNullSafe(F.col("old_name")) & F.col("name_ts").eqNullSafe(F.col("old_name_ts"))
    return both.where(~same).select(*_ID, "name", "name_ts")


def concerned(moves: DataFrame, renames: DataFrame) -> DataFrame:
    """organization_id, id: the ids whose names these edges may move, and those that are renamed."""
    ends = moves.select("organization_id", F.explode(F.array("id", "to_id")).alias("id")).where("id IS NOT NULL")
    renamed = renames.where("operation = 'RENAME'").select("organization_id", F.col("from_id").alias("id"))
    return ends.unionByName(renamed).distinct()


def _place(at: Column, engaged: Column, request_id: Column) -> Column:
    """When something happens: its time, requests before engagements, requests by request_id."""
    return F.struct(at.alias("at"), engaged.alias("engaged"), request_id.alias("request_id"))

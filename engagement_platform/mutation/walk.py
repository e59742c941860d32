"""Follow single rows through requests one by one, in order of time: for rows that no request settles as a whole.

Many rows that share their way are cheaper by `cascade`, which also says which rows have to come here.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.mutation.cascade import ChainTooDeep

ROW = ("organization_id", "engagement_id", "engagement_date", "engagement_ts", "source_person_id")
"""What the identity of a row depends on, beside the requests."""

_END = (*ROW, "person_id", "deleted", "hops")


def walk(rows: DataFrame, edges: DataFrame, *, max_rounds: int = 128) -> DataFrame:
    """The identity of each row after all requests.

    In:  rows: organization_id, engagement_id, engagement_date, engagement_ts (UTC), source_person_id, none of them
         null, and any other columns but person_id, deleted and hops.
         edges: organization_id, request_id, operation (CONVERT | DELETE; others are ignored), from_id, to_id,
         engagement_id, engagement_date_from, engagement_date_to, execution_ts; whatever is_new says, all count.
    Out: the columns of rows, person_id (null when deleted), deleted boolean, hops (requests followed).
    A row starts as source_person_id at engagement_ts and follows the earliest request with a later execution_ts that
    leaves the id it has and applies to it; from there on, requests later by (execution_ts, request_id).
    Cost: one join per hop of the deepest row, over the rows still on their way; reads `rows` twice.
    Raises ChainTooDeep when a row has not arrived after max_rounds hops.
    """
    requests = _by_what_they_leave(edges).localCheckpoint()
    moving = (
        rows.select(*ROW)
        .distinct()
        .select(
            *ROW,
            F.col("source_person_id").alias("person_id"),
            F.lit(0).alias("hops"),
            F.col("engagement_ts").alias("at_ts"),
            F.lit(None).cast("string").alias("at_request"),
        )
    )
    ends: list[DataFrame] = []
    for done in range(max_rounds + 1):
        met = _with_next(moving, requests).localCheckpoint()
        ends.append(met.where(F.col("next").isNull()).select(*ROW, "person_id", F.lit(False).alias("deleted"), "hops"))
        moved = met.where(F.col("next").isNotNull()).withColumn("hops", F.col("hops") + 1)
        if moved.isEmpty():
            break
        if done == max_rounds:
            stuck = moved.select("organization_id", "at_request").head()
            assert stuck is not None
            raise ChainTooDeep(stuck["organization_id"], stuck["at_request"], max_rounds)
        moved = moved.withColumn("person_id", F.col("next.to_id"))
        gone = moved.where(F.col("person_id").isNull())
        ends.append(gone.select(*ROW, "person_id", F.lit(True).alias("deleted"), "hops"))
        moving = moved.where(F.col("person_id").isNotNull()).select(
            *ROW,
            "person_id",
            "hops",
            F.col("next.execution_ts").alias("at_ts"),
            F.col("next.request_id").alias("at_request"),
        )
    arrived = ends[0]
    for end in ends[1:]:
        arrived = arrived.unionByName(end)
    return rows.join(arrived.select(*_END), list(ROW), "left").select(*rows.columns, "person_id", "deleted", "hops")


def _by_what_they_leave(edges: DataFrame) -> DataFrame:
    """Edges under the key by which rows find them: the id they leave, or the engagement when they name no id."""
    return edges.where(F.col("operation").isin("CONVERT", "DELETE")).select(
        "organization_id",
        F.col("from_id").isNull().alias("by_engagement"),
        F.coalesce("from_id", "engagement_id").alias("key"),
        F.col("engagement_id").alias("only_engagement"),
        "engagement_date_from",
        "engagement_date_to",
        F.struct(
            "execution_ts",
            "request_id",
            F.when(F.col("operation") == "CONVERT", F.col("to_id")).alias("to_id"),
        ).alias("request"),
    )


def _with_next(moving: DataFrame, requests: DataFrame) -> DataFrame:
    """Each row with the earliest request it meets from where it stands, or null."""
    keys = F.array(
        F.struct(F.lit(False).alias("by_engagement"), F.col("person_id").alias("key")),
        F.struct(F.lit(True).alias("by_engagement"), F.col("engagement_id").alias("key")),
    )
    asking = moving.select("*", F.inline(keys)).alias("row")
    offers = requests.alias("offer")
    meets = _applies()
    for name in ("organization_id", "by_engagement", "key"):
        meets = (F.col(f"row.{name}") == F.col(f"offer.{name}")) & meets
    joined = asking.join(offers, meets, "left")
    return joined.groupBy(*(F.col(f"row.{name}") for name in moving.columns)).agg(F.min("offer.request").alias("next"))


def _applies() -> Column:
    """Later than where the row stands, and not narrowed to other rows. The first request must be strictly later."""
    ts, request_id = F.col("offer.request.execution_ts"), F.col("offer.request.request_id")
    day, only = F.col("row.engagement_date"), F.col("offer.only_engagement")
    first, last = F.col("offer.engagement_date_from"), F.col("offer.engagement_date_to")
    return (
        ((ts > F.col("row.at_ts")) | ((ts == F.col("row.at_ts")) & (request_id > F.col("row.at_request"))))
        & (only.isNull() | (only == F.col("row.engagement_id")))
        & (first.isNull() | (first <= day))
        & (last.isNull() | (day <= last))
    )

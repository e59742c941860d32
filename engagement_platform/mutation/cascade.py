"""Resolve many CONVERT and DELETE requests at once to the id each one's engagements end at.

Pure functions from frames to frames. One row followed alone is `walk`, the same in plain Python is `resolver`; nothing
here reads or writes a table.
"""

from __future__ import annotations

from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from engagement_platform.errors import PlatformError
from engagement_platform.mutation.components import resolve_components

Engine = Literal["pointer_doubling", "graphframes"]

RESOLVED = (
    "organization_id",
    "request_id",
    "from_id",
    "execution_ts",
    "plain",
    "to_id",
    "hops",
    "branches",
    "last_request_id",
)
ID = ("organization_id", "from_id")


class ChainTooDeep(PlatformError):
    """Following requests did not end within the rounds allowed; names one organization and one request of the chain."""

    def __init__(self, organization_id: str, request_id: str | None, rounds: int) -> None:
        self.organization_id, self.request_id, self.rounds = organization_id, request_id, rounds
        super().__init__(
            f"The chain through request {request_id!r} of organization {organization_id!r} goes on after {rounds} "
            "rounds. No table was changed. Time only grows along a chain, so it does end: allow more rounds, and "
            "look at what the producer of these requests does."
        )


def resolve(edges: DataFrame, *, engine: Engine = "pointer_doubling", max_rounds: int = 32) -> DataFrame:
    """Follow every new request to the id its engagements end at.

    In:  organization_id, request_id, operation (CONVERT | DELETE; others are ignored), from_id (null: a DELETE of one
         engagement, whoever has it), to_id (null for DELETE), engagement_id, engagement_date_from, engagement_date_to,
         execution_ts (UTC). request_id unique within an organization. Optional is_new boolean (absent: all are new):
         rows where it is false are history, which new ones run into and which gives a late one its place.
    Out: one row per new request, any order.
         organization_id, request_id, from_id, execution_ts;
         plain: it applies to all rows of from_id (no engagement_id, no range);
         to_id: the id after all edges, null when they are deleted; says nothing (null) where branches;
         hops: edges followed, itself included, up to and with the one that branches;
         branches: it applies to some rows only, or runs into a request that does. Such rows are walked one by one;
         last_request_id: the edge at which it ends, its own when nothing follows.
    The edge after one that arrives at an id is the earliest later one, by (execution_ts, request_id), that leaves this
    id. A DELETE without from_id leaves no id, so nothing runs into it; `must_walk` has its rows.
    Cost (pointer doubling): one window over 2n rows, then per doubling one join of the requests that have a next; a
    chain of d requests needs log2(d) + 1. What is kept between rounds is freed when the result is let go.
    Raises ChainTooDeep after max_rounds doublings; GraphFramesMissing when that engine's parts are not there.
    """
    known = _known(edges)
    if engine == "graphframes":
        return resolve_components(known).where("is_new").select(*RESOLVED)
    stepped = _with_next(known).where(F.col("is_new") | _goes_on()).localCheckpoint()
    ended = stepped.where(F.col("is_new") & ~_goes_on()).select(
        *RESOLVED[:5],
        F.when(F.col("plain"), F.col("to_id")).alias("to_id"),
        F.lit(1).alias("hops"),
        (~F.col("plain")).alias("branches"),
        F.col("request_id").alias("last_request_id"),
    )
    links = stepped.where(_goes_on()).select(
        *RESOLVED[:5],
        F.when(F.col("next.plain"), F.col("next.to_id")).alias("to_id"),
        F.lit(2).alias("hops"),
        (~F.col("next.plain")).alias("branches"),
        F.col("next.request_id").alias("last_request_id"),
        # Null: arrived. A request that branches is where a chain stops, whatever comes later.
        F.when(F.col("next.plain"), F.col("next.request_id")).alias("pointer"),
        "is_new",
    )
    return ended.unionByName(_doubled(links, max_rounds).where("is_new").select(*RESOLVED))


def operations(resolved: DataFrame) -> DataFrame:
    """What changes the rows of an id as a whole: at most one operation matches a row by the id it has now.

    In:  resolved: as `resolve` returns it.
    Out: organization_id, from_id (identity before the batch), engaged_from (inclusive, null: open), engaged_before
         (exclusive), to_id (null: deleted), request_id. Intervals of one id do not overlap: each begins at the
         execution_ts of the plain request before it. Requests whose place another one of the same execution_ts and a
         smaller request_id took are left out. Those that end where they began are not: rows may stand elsewhere by
         what was known before, and have to come back.
    Rows that `must_walk` names are settled by `walk` and not by these. For a new request that history has overtaken
    (at a later time, rows left its from_id or reached it), the identity of now is not the identity at its execution_ts:
    its rows are walked too, from their source_person_id.
    Cost: one window over the requests.
    """
    return (
        _with_interval(resolved)
        .where(F.col("applies") & ~F.col("branches"))
        .select(*ID, "engaged_from", F.col("execution_ts").alias("engaged_before"), "to_id", "request_id")
    )


def must_walk(resolved: DataFrame, edges: DataFrame) -> DataFrame:
    """Which rows no operation settles, because requests that apply to some rows only lie on their way.

    In:  resolved: as `resolve` returns it; edges: as `resolve` takes them.
    Out: organization_id, from_id, engagement_id, engagement_date_from, engagement_date_to, engaged_before. A row has to
         be walked when all that is not null agrees: its identity before the batch, its engagement_id, its
         engagement_date (both ends inclusive), its engagement_ts (exclusive).
    """
    narrow = ("engagement_id", "engagement_date_from", "engagement_date_to")
    whole = resolved.where("plain AND branches").groupBy(*ID).agg(F.max("execution_ts").alias("engaged_before"))
    some = _requests(edges).where(F.col("is_new") & ~_is_plain())
    return some.select(*ID, *narrow, F.col("execution_ts").alias("engaged_before")).unionByName(
        whole, allowMissingColumns=True
    )


def figures(resolved: DataFrame) -> DataFrame:
    """What a batch came to, in one row, by one window and one aggregation.

    In:  resolved: as `resolve` returns it.
    Out: requests: new requests in. chains: groups of them that end at the same request, of two or more hops.
         longest_chain: most hops. operations: what `operations` makes, and one for each request whose rows are walked;
         never more than requests. walked: the latter alone. All long.
    """
    group = F.when(F.col("hops") > 1, F.struct("organization_id", "last_request_id"))
    return _with_interval(resolved).agg(
        F.count("*").alias("requests"),
        F.count_distinct(group).alias("chains"),
        F.coalesce(F.max("hops"), F.lit(0)).cast("long").alias("longest_chain"),
        F.count_if("applies").alias("operations"),
        F.count_if(F.col("applies") & F.col("branches")).alias("walked"),
    )


def _requests(edges: DataFrame) -> DataFrame:
    """The requests that move identity; all are new when nobody says otherwise."""
    marked = edges if "is_new" in edges.columns else edges.withColumn("is_new", F.lit(True))
    return marked.where(F.col("operation").isin("CONVERT", "DELETE"))


def _is_plain() -> Column:
    return (
        F.col("engagement_id").isNull() & F.col("engagement_date_from").isNull() & F.col("engagement_date_to").isNull()
    )


def _known(edges: DataFrame) -> DataFrame:
    """Only what resolving needs: organization_id, request_id, from_id, execution_ts, plain, to_id, is_new."""
    # Fields that an operation does not use are ignored: a DELETE may carry a to_id.
    to_id = F.when(F.col("operation") == "CONVERT", F.col("to_id")).alias("to_id")
    return _requests(edges).select(
        "organization_id", "request_id", "from_id", "execution_ts", _is_plain().alias("plain"), to_id, "is_new"
    )


def _with_next(known: DataFrame) -> DataFrame:
    """Each edge with `next`: request_id, to_id and plain of the earliest later edge that leaves its to_id, or null.

    One window instead of an as-of join: each edge stands in the partition of its to_id to ask, and in that of its
    from_id to answer. From newest to oldest, the last answer before a question is the earliest edge after it. An edge
    from an id to itself asks before it answers, so it is not its own next.
    """
    leaves, to_id = F.col("leaves"), F.col("to_id")
    both = known.select("*", F.explode(F.array(F.lit(True), F.lit(False))).alias("leaves"))
    ends = both.where(leaves | to_id.isNotNull()).withColumn("id", F.when(leaves, F.col("from_id")).otherwise(to_id))
    newest_first = (
        Window.partitionBy("organization_id", "id")
        .orderBy(F.desc("execution_ts"), F.desc("request_id"), leaves)
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    answer = F.when(leaves, F.struct("request_id", "to_id", "plain"))
    following = F.last(answer, ignorenulls=True).over(newest_first)
    asked = ends.withColumn("next", F.when(~leaves, following)).where(~leaves | to_id.isNull())
    return asked.drop("leaves", "id")


def _goes_on() -> Column:
    """All rows of this edge run into another edge. One that branches stops by itself."""
    return F.col("plain") & F.col("next").isNotNull()


def _doubled(links: DataFrame, max_rounds: int) -> DataFrame:
    """Let every link jump to where its pointer's pointer leads, until all have arrived.

    A pointer that is no link itself is an edge without a next: its to_id was taken along when the pointer was set.
    Checkpoints keep plans short; plans that hold each other double their size every round.
    """
    moved, arrived = links, links.where(F.lit(False))
    for done in range(max_rounds + 1):
        moving = moved.where(F.col("pointer").isNotNull())
        if moving.isEmpty():
            return arrived.unionByName(moved)
        if done < max_rounds:
            everywhere = arrived.unionByName(moved)
            arrived = arrived.unionByName(moved.where(F.col("pointer").isNull()))
            moved = _jumped(moving, everywhere).localCheckpoint()
    stuck = moving.select("organization_id", "request_id").head()
    assert stuck is not None
    raise ChainTooDeep(stuck["organization_id"], stuck["request_id"], max_rounds)


def _jumped(moving: DataFrame, links: DataFrame) -> DataFrame:
    """Each moving link taken on by the link its pointer names; without a pointer when there is none.

    A window and not a join: a checkpoint inherits the estimated size of its plan, and a join's estimate is the product
    of both sides, so 25 rounds of joins made a number that took minutes to multiply (Spark 4.2). A union's is the sum.
    """
    there = F.struct("to_id", "hops", "branches", "last_request_id", "pointer")
    key = ("organization_id", "key")
    offers = links.select("organization_id", F.col("request_id").alias("key"), there.alias("there"))
    seekers = moving.withColumn("key", F.col("pointer")).withColumn("seeks", F.lit(True))
    both = seekers.unionByName(offers.withColumn("seeks", F.lit(False)), allowMissingColumns=True)
    offer_first = Window.partitionBy(*key).orderBy("seeks").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    met = both.withColumn("there", F.first("there", ignorenulls=True).over(offer_first)).where("seeks")
    found = F.col("there").isNotNull()
    return met.select(
        *RESOLVED[:5],
        F.when(found, F.col("there.to_id")).otherwise(F.col("to_id")).alias("to_id"),
        # Both count the edge that the pointer names.
        (F.col("hops") + F.coalesce(F.col("there.hops") - 1, F.lit(0))).alias("hops"),
        F.coalesce("there.branches", F.lit(False)).alias("branches"),
        F.coalesce("there.last_request_id", "last_request_id").alias("last_request_id"),
        F.col("there.pointer").alias("pointer"),
        "is_new",
    )


def _with_interval(resolved: DataFrame) -> DataFrame:
    """Adds engaged_from, and applies: no other request takes all the rows that this one could meet first."""
    leaving = Window.partitionBy(*ID, "plain").orderBy("execution_ts", "request_id")
    engaged_from = F.lag("execution_ts").over(leaving)
    reached = ~F.col("plain") | F.col("engaged_from").isNull() | (F.col("engaged_from") < F.col("execution_ts"))
    return resolved.withColumn("engaged_from", engaged_from).withColumn("applies", reached)

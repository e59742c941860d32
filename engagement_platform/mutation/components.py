"""Resolve requests by connected components: GraphFrames finds the components, each is then walked in order of time.

The second engine of `cascade`, which prepares the edges and says what the result means.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.errors import PlatformError

Components = Callable[[DataFrame], DataFrame]
"""From src, dst (long) to id, component: vertices get one component exactly when edges connect them."""

# The core jar, that of GraphX, the plugin of a Connect server; or a server without plugin, which knows no extension.
_JAR_MISSING = re.compile(
    r"(ClassNotFoundException|NoClassDefFoundError)\W+org[./](apache[./]spark[./](sql[./])?)?graphframes[./]"
    r"|CONNECT_INVALID_PLAN\.NO_HANDLER_FOR_EXTENSION"
)

_END = (
    "struct<request_id:string,from_id:string,execution_ts:timestamp,plain:boolean,is_new:boolean,"
    "to_id:string,hops:int,branches:boolean,last_request_id:string>"
)


_JARS = (
    "the jars io.graphframes:graphframes-spark4_2.13 and graphframes-graphx-spark4_2.13 on Spark's class path; over "
    "Spark Connect on the server's, with graphframes-connect-spark4_2.13 and the conf "
    "spark.connect.extensions.relation.classes=org.apache.spark.sql.graphframes.GraphFramesConnect"
)


class GraphFramesMissing(PlatformError):
    """The GraphFrames engine is chosen and not all of it is installed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"The GraphFrames engine needs {what}. No table was changed. Add what is missing, or choose the engine "
            "pointer_doubling, which needs nothing and gives the same result."
        )


def connected_components(links: DataFrame) -> DataFrame:
    """Components by GraphFrames. In: src, dst (long). Out: id, component (long), checkpointed.

    Raises GraphFramesMissing when the Python package or the jar is not there.
    """
    try:
        from graphframes import GraphFrame  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise GraphFramesMissing("the Python package graphframes-py") from error
    vertices = links.select(F.explode(F.array("src", "dst")).alias("id")).distinct()
    try:
        # This set works without a checkpoint directory; others fail or take three times as long (Spark 4.2, 0.12.3).
        found: DataFrame = GraphFrame(vertices, links).connectedComponents(
            algorithm="two_phase",
            use_local_checkpoints=True,
            broadcastThreshold=-1,
            checkpointInterval=1,
            useLabelsAsComponents=True,
        )
        # Inside, for over Connect nothing has run before.
        return kept(found)
    # The class of the error differs: py4j's in one process, a gRPC one over Connect, where a plugin has to answer.
    except Exception as error:
        if is_jar_missing(str(error)):
            raise GraphFramesMissing(_JARS) from error
        raise


def is_jar_missing(error: str) -> bool:
    """Whether an error of Spark's says that one of GraphFrames' jars, or its plugin, is not on the class path."""
    return _JAR_MISSING.search(error) is not None


def kept(found: DataFrame) -> DataFrame:
    """A result of GraphFrames, checkpointed; what GraphFrames had persisted for it is freed.

    Over Connect a plan of GraphFrames runs each time the server meets it: once for the checkpoint, and for `unpersist`
    once more, which frees that second result and leaves the first. Asking for the columns makes the server analyze the
    plan and keep what it came to, for both (seen with graphframes 0.12.3 and Spark 4.2).
    """
    _ = found.columns
    checkpointed = found.localCheckpoint()
    found.unpersist()
    return checkpointed


def resolve_components(known: DataFrame, components: Components = connected_components) -> DataFrame:
    """Follow every request to where it ends.

    In:  organization_id, request_id, from_id, execution_ts, plain, to_id (null for DELETE), is_new.
    Out: the columns of `cascade.RESOLVED` and is_new; one row per request.
    Cost: two joins to split off requests that touch no other, the components, one shuffle to collect each component.
    """
    # Vertices are hashes, for strings cost components 1.4 times as much. Two ids of one hash only make two components
    # one: the walk goes by organization and compares the ids themselves.
    known = known.withColumn("src", F.xxhash64("organization_id", "from_id")).withColumn(
        "dst", F.when(F.col("to_id").isNotNull(), F.xxhash64("organization_id", "to_id"))
    )
    left = known.where(F.col("from_id").isNotNull()).select(F.col("src").alias("dst"), F.lit(True).alias("goes_on"))
    reached = known.where(F.col("dst").isNotNull()).select(F.col("dst").alias("src"), F.lit(True).alias("is_met"))
    marked = known.join(left.distinct(), "dst", "left").join(reached.distinct(), "src", "left")
    linked = F.col("from_id").isNotNull() & (F.col("goes_on").isNotNull() | F.col("is_met").isNotNull())
    marked = marked.withColumn("linked", linked).drop("goes_on", "is_met").localCheckpoint()
    chained = marked.where("linked")
    # A DELETE leads nowhere; the edge to itself makes its id a vertex.
    found = components(chained.select("src", F.coalesce("dst", "src").alias("dst")))
    of_edge = found.select(F.col("id").alias("src"), "component")
    walked = walk_components(chained.join(of_edge, "src")).localCheckpoint()
    alone = marked.where("NOT linked").select(
        *("organization_id", "request_id", "from_id", "execution_ts", "plain", "is_new"),
        F.when(F.col("plain"), F.col("to_id")).alias("to_id"),
        F.lit(1).alias("hops"),
        (~F.col("plain")).alias("branches"),
        F.col("request_id").alias("last_request_id"),
    )
    return walked.unionByName(alone)


def walk_components(edges: DataFrame) -> DataFrame:
    """Walk each component from its newest request to its oldest, remembering where each id leads from then on.

    In:  organization_id, component, request_id, from_id (not null), execution_ts, plain, to_id, is_new. All edges of an
         organization that touch an id must be in one component; more than these do no harm.
    Out: the columns of `cascade.RESOLVED` and is_new; one row per edge.
    Cost: one shuffle; a component of k edges is held by one task and takes k * k comparisons of ids.
    """
    edge = F.struct("execution_ts", "request_id", "from_id", "to_id", "plain", "is_new")
    newest_first = F.sort_array(F.collect_list(edge), asc=False).alias("edges")
    folded = F.aggregate("edges", _nothing(), _remember, lambda walked: walked["ends"])
    return (
        edges.groupBy("organization_id", "component")
        .agg(newest_first)
        .select("organization_id", F.inline(folded.cast(f"array<{_END}>")))
    )


def _nothing() -> Column:
    """No ids left and no ends known. Two arrays of one order, as finding a string in an array is compiled code."""
    return F.struct(
        F.array().cast("array<string>").alias("ids"),
        F.array().cast(f"array<{_END}>").alias("ends"),
    )


def _remember(walked: Column, edge: Column) -> Column:
    """One edge further back in time. What was remembered last comes first, so the earliest later edge is found."""
    place = F.array_position(walked["ids"], edge["to_id"]).cast("int") - 1
    # Wrapped, so that the search is done once and not for every field that uses its result.
    end = F.transform(F.array(F.get(walked["ends"], place)), lambda met: _end(edge, met))
    return F.struct(
        F.concat(F.array(edge["from_id"]), walked["ids"]).alias("ids"),
        F.concat(end, walked["ends"]).alias("ends"),
    )


def _end(edge: Column, met: Column) -> Column:
    """Where an edge ends that runs into `met` (null: into nothing)."""
    follows = edge["plain"] & met.isNotNull()
    return F.struct(
        *(edge[name].alias(name) for name in ("request_id", "from_id", "execution_ts", "plain", "is_new")),
        F.when(follows, met["to_id"]).when(edge["plain"], edge["to_id"]).alias("to_id"),
        F.when(follows, met["hops"] + 1).otherwise(F.lit(1)).alias("hops"),
        F.when(follows, met["branches"]).otherwise(~edge["plain"]).alias("branches"),
        F.when(follows, met["last_request_id"]).otherwise(edge["request_id"]).alias("last_request_id"),
    )

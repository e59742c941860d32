"""What edges do to ids, organization by organization; a very large one goes by its connected components (GraphFrames).

Frames in, a frame out. What edges come to is decided in `rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.engagements.schema import STATE
from engagement_platform.pipelines.frames import state_part
from engagement_platform.pipelines.mutations.concerned import of_edges_since

Rule = Callable[[str, pa.Table, int], pa.Table]
"""`rules.moves` or `rules.moves_apart`: of an organization, its edges as state, and a sequence."""

# The core jar, that of GraphX, the plugin of a Connect server; or a server without plugin, which knows no extension.
_JAR_MISSING = re.compile(
    r"(ClassNotFoundException|NoClassDefFoundError)\W+org[./](apache[./]spark[./](sql[./])?)?graphframes[./]"
    r"|CONNECT_INVALID_PLAN\.NO_HANDLER_FOR_EXTENSION"
)
_JARS = (
    "the jars io.graphframes:graphframes-spark4_2.13 and graphframes-graphx-spark4_2.13 on Spark's class path; over "
    "Spark Connect on the server's, with graphframes-connect-spark4_2.13 and the conf "
    "spark.connect.extensions.relation.classes=org.apache.spark.sql.graphframes.GraphFramesConnect"
)


class GraphFramesMissing(PlatformError):
    """An organization is too large for one task and GraphFrames is not, or not all of it, installed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            "An organization has more requests than mutation.max_edges_per_group; splitting them needs GraphFrames: "
            f"{what}. No table was changed. Add what is missing, or raise mutation.max_edges_per_group: one task then "
            "follows that many."
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


def moves(alias: DataFrame, since: int, max_edges: int | None, rule: Rule, ddl: str) -> DataFrame:
    """What a rule makes of the edges of each organization that has some from a sequence on; computed once.

    alias: every accepted CONVERT and DELETE, with `sequence`. max_edges: an organization with more is split, into parts
    of about that many unless a component is larger; None: no organization has more. ddl: the columns that the rule
    returns. Parts give the same rows as the whole: no engagement passes from one component to another, and DELETEs
    that name no person, which are in none and so a part of their own, only name engagements.
    Cost: one shuffle. With max_edges one aggregate of the aliases before, and GraphFrames only for an organization that
    has more: then raises GraphFramesMissing where it is not installed.
    """
    late = alias.where(F.col("sequence") >= since).select("organization_id").distinct()
    edges = state_part(alias.join(F.broadcast(late), "organization_id", "left_semi"), "edge")
    large = None
    if max_edges is not None:
        counts = alias.groupBy("organization_id").agg(F.count("from_id").alias("n"), F.max("sequence").alias("newest"))
        found = counts.where((F.col("n") > max_edges) & (F.col("newest") >= since)).collect()
        parts = [(row["organization_id"], -(-row["n"] // max_edges)) for row in found]
        large = alias.sparkSession.createDataFrame(parts, "organization_id string, parts bigint") if parts else None
    edges = edges.withColumn("part", F.lit(None).cast("bigint")) if large is None else _split(edges, large)

    def run(state: pa.Table) -> pa.Table:
        organization_id = state.column("organization_id")[0].as_py()
        return rule(organization_id, of_edges_since(state.select(STATE.names).cast(STATE), since), since)

    return edges.groupBy("organization_id", "part").applyInArrow(run, ddl).localCheckpoint(eager=False)


def _split(edges: DataFrame, large: DataFrame) -> DataFrame:
    """Edges with their `part`: null in small organizations, and where an edge names no person.

    large: organization_id, and into how many `parts`. Ids are hashed; two that share a hash only make one component.
    """
    begin, end = _hashed("edge.from_id"), _hashed("edge.to_id")
    sized = edges.join(F.broadcast(large), "organization_id", "left")
    links = sized.where("parts IS NOT NULL AND edge.from_id IS NOT NULL")
    # A DELETE leads to itself, so that it has a component, too.
    links = links.select(begin.alias("src"), F.coalesce(end, begin).alias("dst")).distinct()
    found = connected_components(links).withColumnRenamed("id", "begin")
    begun = sized.withColumn("begin", F.when(F.col("parts").isNotNull(), begin))
    part = F.when(F.col("component").isNotNull(), F.pmod(F.xxhash64("component"), "parts"))
    return begun.join(found, "begin", "left").select(*edges.columns, part.alias("part"))


def _hashed(person: str) -> Column:
    # A null changes no hash, so it would be that of the organization alone.
    return F.when(F.col(person).isNotNull(), F.xxhash64("organization_id", person))

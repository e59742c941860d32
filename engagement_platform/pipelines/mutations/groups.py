"""Which edges one task follows: those of an organization, or of some of the connected components of a very large one.

Frames in, a frame out. What edges come to is decided in `rules`; how components are found is `connected_components`.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements.schema import STATE
from engagement_platform.pipelines.frames import edges_part
from engagement_platform.pipelines.mutations.connected_components import connected_components

Rule = Callable[[str, pa.Table, int], pa.Table]
"""`rules.moves` or `rules.moves_apart`: of an organization, its edges as state, and a sequence."""
Components = Callable[[DataFrame], DataFrame]
"""As `connected_components`: src, dst -> id, component."""


def moves(
    alias: DataFrame,
    since: int,
    max_edges: int | None,
    rule: Rule,
    ddl: str,
    components: Components = connected_components,
) -> DataFrame:
    """What a rule makes of the edges of each organization that has some from a sequence on; computed once.

    alias: every accepted CONVERT and DELETE, with `sequence`. max_edges: an organization with more is split, into parts
    of about that many unless a component is larger; None: no organization has more. ddl: the columns that the rule
    returns. Parts give the same rows as the whole: no engagement passes from one component to another, and DELETEs
    that name no person, which are in none and so a part of their own, only name engagements.
    Cost: one shuffle. With max_edges one aggregate of the aliases before, and GraphFrames only for an organization that
    has more: then raises GraphFramesMissing where it is not installed.
    """
    late = alias.where(F.col("sequence") >= since).select("organization_id").distinct()
    edges = edges_part(alias.join(F.broadcast(late), "organization_id", "left_semi"))
    large = None if max_edges is None else _large(alias, since, max_edges)
    edges = edges.withColumn("part", F.lit(None).cast("bigint")) if large is None else _split(edges, large, components)

    def run(state: pa.Table) -> pa.Table:
        organization_id = state.column("organization_id")[0].as_py()
        return rule(organization_id, state.select(STATE.names).cast(STATE), since)

    return edges.groupBy("organization_id", "part").applyInArrow(run, ddl).localCheckpoint(eager=False)


def _large(alias: DataFrame, since: int, max_edges: int) -> DataFrame | None:
    """Organizations with late edges and more than max_edges that name a person, and into how many parts each goes."""
    counts = alias.groupBy("organization_id").agg(F.count("from_id").alias("edges"), F.max("sequence").alias("newest"))
    found = counts.where((F.col("edges") > max_edges) & (F.col("newest") >= since)).collect()
    if not found:
        return None
    parts = [(row["organization_id"], -(-row["edges"] // max_edges)) for row in found]
    return alias.sparkSession.createDataFrame(parts, "organization_id string, parts bigint")


def _split(edges: DataFrame, large: DataFrame, components: Components) -> DataFrame:
    """Edges with their `part`: null in small organizations, and where an edge names no person.

    Ids are hashed; two that share a hash only make one component of two.
    """
    begin, end = _hashed("edge.from_id"), _hashed("edge.to_id")
    sized = edges.join(F.broadcast(large), "organization_id", "left")
    links = sized.where("parts IS NOT NULL AND edge.from_id IS NOT NULL")
    # A DELETE leads to itself, so that it has a component, too.
    links = links.select(begin.alias("src"), F.coalesce(end, begin).alias("dst")).distinct()
    found = components(links).withColumnRenamed("id", "begin")
    begun = sized.withColumn("begin", F.when(F.col("parts").isNotNull(), begin))
    part = F.when(F.col("component").isNotNull(), F.pmod(F.xxhash64("component"), "parts"))
    return begun.join(found, "begin", "left").select(*edges.columns, part.alias("part"))


def _hashed(person: str) -> Column:
    # A null changes no hash, so it would be that of the organization alone.
    return F.when(F.col(person).isNotNull(), F.xxhash64("organization_id", person))

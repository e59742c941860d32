"""Connected components by GraphFrames: which requests of a very large organization can have to do with each other."""

from __future__ import annotations

import re

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.errors import PlatformError

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

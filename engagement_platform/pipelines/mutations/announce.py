"""What newly accepted requests change for readers, in Spark: the rows of the notification table.

Frames in, a frame out. Rows of ids that move as a whole are joined twice, with the moves before and after the new
requests; rows that a rule has to look at go through `rules.changes`.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements.schema import STATE
from engagement_platform.pipelines.mutations import groups, rules
from engagement_platform.pipelines.mutations.view import MOVE_DDL, Pending, special_state, with_move

CHANGE_DDL = (
    "organization_id string, engagement_id string, engagement_date date, person_id string, previous_person_id string, "
    "change_type string"
)
"""As `rules.CHANGE` has it."""
_MOVES_APART_DDL = f"{MOVE_DDL}, is_after boolean"
_ID = ["organization_id", "engagement_id"]
_PERSON = ["organization_id", "source_person_id"]


def changes(data: DataFrame, pending: Pending, since: int) -> DataFrame:
    """The engagements that readers see otherwise because of the requests from a sequence on; columns of CHANGE_DDL.

    data: the columns of ROW. Cost: resolving the edges of the organizations that have new ones, and one scan of the
    Data Table for each of the two kinds of rows.
    """
    moves = None
    if pending.alias is not None:
        moves = groups.moves(pending.alias, since, pending.max_edges, rules.moves_apart, _MOVES_APART_DDL)
    special = _special(data.sparkSession, pending, moves, since)
    of_id = F.broadcast(special.where("engagement_id IS NOT NULL").select(*_ID).distinct())
    of_person = F.broadcast(special.where("source_person_id IS NOT NULL").select(*_PERSON).distinct())
    by_id = data.join(of_id, _ID, "left_semi")
    by_person = data.join(of_person, _PERSON, "left_semi").join(of_id, _ID, "left_anti")
    found = _by_rules(by_id.unionByName(by_person), pending, special, since)
    if moves is None:
        return found
    rest = data.join(of_id, _ID, "left_anti").join(of_person, _PERSON, "left_anti")
    return found.unionByName(_by_moves(rest, moves.where("engaged_before IS NOT NULL")))


def _special(spark: SparkSession, pending: Pending, moves: DataFrame | None, since: int) -> DataFrame:
    """organization_id with engagement_id or source_person_id: which rows the rules look at.

    Those that new UPDATEs name, those of which the changeset has a newer image, and those that edges tell apart.
    """
    columns = "organization_id string, engagement_id string, source_person_id string"
    whole = spark.createDataFrame([], columns)
    nothing = F.lit(None).cast("string").alias("source_person_id")
    if pending.changeset is not None:
        images = pending.changeset.where(F.col("sequence") > pending.watermark)
        whole = whole.unionByName(images.select(*_ID, nothing))
    if pending.updates is not None:
        whole = whole.unionByName(pending.updates.where(F.col("sequence") >= since).select(*_ID, nothing))
    if moves is not None:
        apart = moves.where("engaged_before IS NULL")
        whole = whole.unionByName(apart.select("organization_id", "engagement_id", "source_person_id"))
    return whole


def _by_rules(held: DataFrame, pending: Pending, special: DataFrame, since: int) -> DataFrame:
    def run(state: pa.Table) -> pa.Table:
        organization_id = state.column("organization_id")[0].as_py()
        return rules.changes(organization_id, state.cast(STATE), since)

    return special_state(held, pending, special).groupBy("organization_id").applyInArrow(run, CHANGE_DDL)


def _by_moves(rows: DataFrame, moves: DataFrame) -> DataFrame:
    """Rows of ids that move as a whole: the person that the moves before and after give them."""
    reached = F.broadcast(moves.select(*_PERSON).distinct())
    rows = rows.join(reached, _PERSON, "left_semi")
    rows = rows.select("organization_id", "engagement_id", "engagement_date", "engagement_ts", "source_person_id")
    for name, phase in (("previous_person_id", "NOT is_after"), ("person_id", "is_after")):
        rows = with_move(rows, moves.where(phase).drop("is_after"), name, F.col("source_person_id"))
    before, after = F.col("previous_person_id"), F.col("person_id")
    change = F.when(after.isNull(), "DELETE").when(before.isNull(), "INSERT").otherwise("UPDATE")
    changed = rows.where(~before.eqNullSafe(after)).withColumn("change_type", change)
    return changed.select(*rules.CHANGE.names)

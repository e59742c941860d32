"""The engagement pipe: decode, load state, resolve, and the checkpointed batch plan. Frames in, frames out.

Nothing is decided here that `rules` does not decide, and nothing is written: commits only filter the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements import rules
from engagement_platform.pipelines.engagements.schema import COPY, PLAN, PLAN_DDL
from engagement_platform.pipelines.frames import no_state, state_part
from engagement_platform.pipelines.mutations.concerned import of_rows
from engagement_platform.pipelines.mutations.view import Pending
from engagement_platform.pipelines.parts import Received, counted
from engagement_platform.pipelines.state import one_chunk

ID = ("organization_id", "engagement_id")

BROADCAST_ROWS = 1_000_000
"""Up to this many ids of a batch (about 60 bytes each) go to every task. Checkpointed frames have no statistics, so
Spark would not find that out before it has shuffled both sides."""


def summarize(decoded: DataFrame) -> tuple[Received, Row | None]:
    """As `counted`, with the `organizations` and `dates` of accepted copies, which prune reading."""
    organizations, dates = F.collect_set("organization_id"), F.collect_set("engagement_date")
    return counted(decoded, organizations.alias("organizations"), dates.alias("dates"))


def load_state(
    data: DataFrame | None, pending: Pending, decoded: DataFrame, accepted: Row | None, *, all_days: bool
) -> DataFrame:
    """What is known of the organizations and ids of a batch, as one frame with the columns of STATE_DDL.

    data: the Data Table, None: it has no rows. accepted: of `summarize`.
    all_days: rows of all days of these organizations; without, of the days of the batch.
    Cost: one scan of each table, pruned by organization, day and the bounds of the ids, of edges by their time.
    """
    if accepted is None:
        return no_state(decoded)
    ids = decoded.where("reason_code IS NULL").select(*ID)
    ids = F.broadcast(ids) if accepted["records"] <= BROADCAST_ROWS else ids.distinct()
    organizations = within("organization_id", accepted["organizations"])
    days = F.lit(True) if all_days else within("engagement_date", accepted["dates"])
    base = None if data is None else data.withColumn("sequence", F.lit(None).cast("bigint"))
    images = [table.where(organizations & days) for table in (base, pending.images) if table is not None]
    parts = [state_part(held.join(ids, list(ID), "left_semi"), "row") for held in images]
    if pending.alias is not None:
        # A request that was executed before an engagement does not concern it: of most batches there are few others.
        concerns = F.col("execution_ts") > F.lit(datetime.combine(min(accepted["dates"]), time(), UTC))
        parts.append(state_part(pending.alias.where(organizations & concerns), "edge"))
    if pending.updates is not None:
        updates = pending.updates.where(organizations).join(ids, list(ID), "left_semi")
        parts.append(state_part(updates, "patch"))
    return reduce(DataFrame.union, parts) if parts else no_state(decoded)


def resolve(decoded: DataFrame, state: DataFrame, *, all_days: bool, announced: int) -> DataFrame:
    """The batch plan, one row per accepted copy, with the columns of PLAN_DDL. Cost: one shuffle of both frames.

    announced: requests up to this sequence are announced.
    """

    def run(copies: pa.Table, state: pa.Table) -> pa.Table:
        if not copies.num_rows:
            return PLAN.empty_table()
        organization_id = copies.column("organization_id")[0].as_py()
        state = of_rows(state, one_chunk(copies.column("person_id")))
        return rules.resolve(organization_id, copies.cast(COPY), state, all_days=all_days, announced=announced)

    copies = decoded.where("reason_code IS NULL").select(*COPY.names)
    left, right = copies.groupBy("organization_id"), state.groupBy("organization_id")
    return left.cogroup(right).applyInArrow(run, PLAN_DDL)


def within(column: str, values: Sequence[str] | Sequence[date]) -> Column:
    """A predicate that skips files without such values. Delta skips a list of values by its bounds, too, and planning
    a list of 40 took half a second more (Delta 4.4.0)."""
    return F.col(column).between(min(values), max(values))

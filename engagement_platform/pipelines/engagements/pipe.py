"""The engagement pipe: decode, load state, resolve, and the checkpointed batch plan. Frames in, frames out.

Nothing is decided here that `rules` does not decide, and nothing is written: commits only filter the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements import rules
from engagement_platform.pipelines.engagements.schema import COPY, PLAN, PLAN_DDL
from engagement_platform.pipelines.frames import no_state, state_part
from engagement_platform.pipelines.parts import Received, by_reason, received

ID = ("organization_id", "engagement_id")

BROADCAST_ROWS = 1_000_000
"""Up to this many ids of a batch (about 60 bytes each) go to every task. Checkpointed frames have no statistics, so
Spark would not find that out before it has shuffled both sides."""


@dataclass(frozen=True)
class Summary(Received):
    """What one pass over the decoded batch finds: counts, and the values that prune reading."""

    organizations: Sequence[str]
    dates: Sequence[date]


@dataclass(frozen=True)
class State:
    """The pinned tables that say what is known before a batch, as frames. None: nothing is in the table.

    changeset, alias and mutation_request have their batch's `sequence`; of the changeset, rows above the watermark.
    """

    data: DataFrame | None
    changeset: DataFrame | None
    alias: DataFrame | None
    mutation_request: DataFrame | None


def summarize(decoded: DataFrame) -> Summary:
    """Run one job over the decoded batch; it also computes a lazily checkpointed frame."""
    organizations, dates = F.collect_set("organization_id"), F.collect_set("engagement_date")
    groups = by_reason(decoded, organizations.alias("organizations"), dates.alias("dates"))
    accepted = [row for row in groups if row["reason_code"] is None]
    return Summary(
        **received(groups),
        organizations=sorted(accepted[0]["organizations"]) if accepted else (),
        dates=sorted(accepted[0]["dates"]) if accepted else (),
    )


def load_state(state: State, decoded: DataFrame, summary: Summary, *, all_days: bool) -> DataFrame:
    """What is known of the organizations and ids of a batch, as one frame with the columns of STATE_DDL.

    all_days: rows of all days of these organizations; without, of the days of the batch.
    Cost: one scan of each table, pruned by organization, day and the bounds of the ids.
    """
    if not summary.accepted:
        return no_state(decoded)
    ids = decoded.where("reason_code IS NULL").select(*ID)
    ids = F.broadcast(ids) if summary.accepted <= BROADCAST_ROWS else ids.distinct()
    organizations = within("organization_id", summary.organizations)
    days = F.lit(True) if all_days else within("engagement_date", summary.dates)
    parts = []
    for number, table in enumerate((state.data, state.changeset)):
        if table is not None:
            held = table.where(organizations & days).join(ids, list(ID), "left_semi")
            parts.append(state_part(held if number else held.withColumn("sequence", F.lit(None).cast("bigint")), "row"))
    if state.alias is not None:
        parts.append(state_part(state.alias.where(organizations), "edge"))
    if state.mutation_request is not None:
        updates = state.mutation_request.where(organizations & (F.col("operation") == "UPDATE"))
        parts.append(state_part(updates.join(ids, list(ID), "left_semi"), "patch"))
    return reduce(lambda held, part: held.union(part), parts) if parts else no_state(decoded)


def resolve(decoded: DataFrame, state: DataFrame, *, all_days: bool, announced: int | None = None) -> DataFrame:
    """The batch plan, one row per accepted copy, with the columns of PLAN_DDL. Cost: one shuffle of both frames.

    announced: requests up to this sequence are announced; None: all are.
    """
    copies = decoded.where("reason_code IS NULL").select(*COPY.names)
    left, right = copies.groupBy("organization_id"), state.groupBy("organization_id")
    return left.cogroup(right).applyInArrow(_resolver(all_days=all_days, announced=announced), PLAN_DDL)


def _resolver(*, all_days: bool, announced: int | None) -> Callable[[pa.Table, pa.Table], pa.Table]:
    def run(copies: pa.Table, state: pa.Table) -> pa.Table:
        if not copies.num_rows:
            return PLAN.empty_table()
        organization_id = copies.column("organization_id")[0].as_py()
        return rules.resolve(organization_id, copies.cast(COPY), state, all_days=all_days, announced=announced)

    return run


def within(column: str, values: Sequence[str] | Sequence[date]) -> Column:
    """A predicate that skips files without such values. Delta skips a list of values by its bounds, too, and planning
    a list of 40 took half a second more (Delta 4.4.0)."""
    return F.col(column).between(values[0], values[-1])

"""The engagement pipe: decode, load state, resolve, and the checkpointed batch plan. Frames in, frames out.

Nothing is decided here that `rules` does not decide, and nothing is written: commits only filter the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements import rules
from engagement_platform.pipelines.engagements.schema import CONTENT_DDL, COPY, EARLIER_DDL, PLAN, PLAN_DDL, STATE_DDL

ID = ("organization_id", "engagement_id")
COORDINATES = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Summary:
    """What one pass over the decoded batch finds: counts, and the values that prune reading."""

    rows_in: int
    bytes_in: int
    rejected: int
    unknown_fields: int
    organizations: Sequence[str]
    dates: Sequence[date]

    @property
    def accepted(self) -> int:
        """Records that decoding accepted."""
        return self.rows_in - self.rejected


@dataclass(frozen=True)
class State:
    """The pinned tables that say what is known before a batch, as frames. None: nothing is in the table."""

    data: DataFrame | None
    changeset: DataFrame | None
    alias: DataFrame | None
    mutation_request: DataFrame | None


def summarize(decoded: DataFrame) -> Summary:
    """Run one job over the decoded batch; it also computes a lazily checkpointed frame."""
    accepted = F.col("reason_code").isNull()
    row = decoded.agg(
        F.count("*").alias("rows_in"),
        F.sum("value_bytes").alias("bytes_in"),
        F.count_if(~accepted).alias("rejected"),
        F.sum("unknown_fields").alias("unknown_fields"),
        F.collect_set("organization_id").alias("organizations"),
        F.collect_set("engagement_date").alias("dates"),
    ).collect()[0]
    return Summary(
        row["rows_in"],
        row["bytes_in"] or 0,
        row["rejected"],
        row["unknown_fields"] or 0,
        sorted(row["organizations"]),
        sorted(row["dates"]),
    )


def load_state(state: State, decoded: DataFrame, summary: Summary, *, all_days: bool) -> DataFrame:
    """What is known of the organizations and ids of a batch, as one frame with the columns of STATE_DDL.

    all_days: rows of all days of these organizations; without, of the days of the batch.
    Cost: one scan of each table, pruned by organization, day and the bounds of the ids.
    """
    ids = F.broadcast(decoded.where("reason_code IS NULL").select(*ID).distinct())
    organizations = within("organization_id", summary.organizations)
    days = F.lit(True) if all_days else within("engagement_date", summary.dates)
    parts = [_nothing(decoded)]
    for number, table in enumerate((state.data, state.changeset)):
        if table is not None:
            held = table.where(organizations & days).join(ids, list(ID), "left_semi")
            sequence = F.col("sequence") if number else F.lit(None)
            parts.append(_part(held, "row", sequence=sequence))
    if state.alias is not None:
        parts.append(_part(state.alias.where(organizations), "edge"))
    if state.mutation_request is not None:
        updates = state.mutation_request.where(organizations & (F.col("operation") == "UPDATE"))
        parts.append(_part(updates.join(ids, list(ID), "left_semi"), "patch"))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def resolve(decoded: DataFrame, state: DataFrame, *, all_days: bool) -> DataFrame:
    """The batch plan, one row per accepted copy, with the columns of PLAN_DDL. Cost: one shuffle of both frames."""
    copies = decoded.where("reason_code IS NULL").select(*COPY.names)
    left, right = copies.groupBy("organization_id"), state.groupBy("organization_id")
    return left.cogroup(right).applyInArrow(_resolver(all_days=all_days), PLAN_DDL)


def _resolver(*, all_days: bool) -> Callable[[pa.Table, pa.Table], pa.Table]:
    def run(copies: pa.Table, state: pa.Table) -> pa.Table:
        if not copies.num_rows:
            return PLAN.empty_table()
        organization_id = copies.column("organization_id")[0].as_py()
        return rules.resolve(organization_id, copies.cast(COPY), state, all_days=all_days)

    return run


def _part(frame: DataFrame, name: str, **values: Column) -> DataFrame:
    """One kind of rows of the state: its struct filled from the columns of `frame`, the others null."""
    columns = [F.col("organization_id")]
    for kind, fields in _STATE_FIELDS.items():
        if kind == name:
            struct = F.struct(*(values.get(field, F.col(field)).cast(of).alias(field) for field, of in fields.items()))
            columns.append(struct.alias(kind))
        else:
            columns.append(F.lit(None).cast(_struct_ddl(fields)).alias(kind))
    return frame.select(*columns)


def _nothing(frame: DataFrame) -> DataFrame:
    """A state of no rows, on the session of a frame."""
    return frame.sparkSession.createDataFrame([], STATE_DDL)


def _struct_ddl(fields: Mapping[str, str]) -> str:
    return f"struct<{','.join(f'{name}:{of}' for name, of in fields.items())}>"


_STATE_FIELDS: Mapping[str, Mapping[str, str]] = {
    "row": {
        "engagement_date": "date", "engagement_ts": "timestamp", "engagement_id": "string", "person_id": "string",
        "source_person_id": "string", "version": "bigint", "engagement": CONTENT_DDL, "original": CONTENT_DDL,
        "earlier_versions": EARLIER_DDL, "sequence": "bigint",
    },
    "edge": {
        "request_id": "string", "operation": "string", "from_id": "string", "to_id": "string",
        "engagement_id": "string", "engagement_date_from": "date", "engagement_date_to": "date",
        "execution_ts": "timestamp", "sequence": "bigint",
    },
    "patch": {
        "request_id": "string", "engagement_id": "string", "execution_ts": "timestamp", "type": "string",
        "channel": "string", "subject": "string", "attributes": "map<string,string>",
        "set_null": "array<string>", "sequence": "bigint",
    },
}  # fmt: skip


def within(column: str, values: Sequence[str] | Sequence[date]) -> Column:
    """A predicate that skips files without such values. Delta skips a list of values by its bounds, too, and planning
    a list of 40 took half a second more (Delta 4.4.0)."""
    return F.col(column).between(values[0], values[-1])

"""The view `engagement/current`: the Data Table with everything that is pending applied, in Spark.

Frames in, a frame out. Identities that change as a whole are joined from the resolved edges; rows that a rule has to
look at one by one (newer versions, patches, edges that tell rows of an id apart) go through `rules`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.engagements.schema import ROW, ROW_DDL, STATE
from engagement_platform.pipelines.frames import no_state, state_part
from engagement_platform.pipelines.mutations import rules
from engagement_platform.pipelines.mutations.concerned import in_parts, of_rows
from engagement_platform.pipelines.mutations.connected_components import moves as moves_of

ID = ["organization_id", "engagement_id"]
PERSON = ["organization_id", "source_person_id"]
ROWS_PER_GROUP = 100_000
"""Rows of an organization that a rule looks at together; as Python objects about 300 MB (a guess)."""

_HIDDEN = "person_id IS NULL AND source_person_id IS NOT NULL"
"""Of deleted rows that are no tombstones."""

Rule = Callable[[str, pa.Table], pa.Table]
"""Of `rules`: of an organization and its state."""


@dataclass(frozen=True)
class Pending:
    """What the Data Table does not show yet, and the logs that decide it. A frame is None where its table is empty."""

    watermark: int
    """The Data Table has everything up to this sequence."""
    changeset: DataFrame | None
    """Newer images: the columns of ROW, and sequence."""
    alias: DataFrame | None
    """Every accepted CONVERT and DELETE, with sequence."""
    updates: DataFrame | None
    """Every accepted UPDATE, with sequence."""
    moves_identity: bool
    """Whether an edge may be newer than the watermark."""
    has_patches: bool = True
    """Whether an UPDATE may be newer than the watermark."""
    max_edges: int | None = None
    """An organization with more edges is split; None: none can have more than one task follows."""

    @property
    def images(self) -> DataFrame | None:
        """The images that the Data Table does not have."""
        return None if self.changeset is None else self.changeset.where(F.col("sequence") > self.watermark)


def current(data: DataFrame, pending: Pending) -> DataFrame:
    """Engagements as readers see them: the columns of ROW, without deleted rows.

    data: the columns of ROW. Cost: one scan of the Data Table with one or two broadcast joins; the edges of the
    organizations that have pending ones are resolved first, and rows that go through the rules are read a second time.
    """
    return shown(data, pending).where(F.col("person_id").isNotNull())


def shown(data: DataFrame, pending: Pending) -> DataFrame:
    """As `current`, with deleted rows: their person_id is null."""
    data, moves = data.select(*ROW.names), _moves(pending)
    special = special_rows(pending, moves)
    if special is None:
        return data
    plain, held = split(data, moves, special)
    if moves is not None:
        plain = _under_new_person(with_move(plain, moves, "now", F.col("person_id")))
    return plain.unionByName(by_rule(held, pending, special, rules.current_rows, ROW_DDL))


def changed(data: DataFrame, pending: Pending, horizon: datetime | None) -> DataFrame:
    """The rows of the Data Table that everything pending changes, as they are afterwards: the columns of ROW.

    Deleted rows have no person_id. horizon: rows that edges before it delete become tombstones; every request that may
    still be accepted has this execution_ts or a later one. None: no row does.
    Cost: as `current`, and with a horizon one more look at the hidden rows, which are counted by organization.
    """
    data, moves = data.select(*ROW.names), _moves(pending)
    special = special_rows(pending, moves)
    if special is not None:
        special = special.localCheckpoint(eager=False)
    if horizon is None:
        if special is None:
            return data.limit(0)
        plain, held = split(data, moves, special)
        found = by_rule(held, pending, special, rules.current_rows, ROW_DDL)
    else:
        # A tenant may have deleted millions: not looked up by their ids, which each task would have to hold, and not
        # in one task. What else is special is as much as batches bring.
        hidden, plain = data.where(_HIDDEN), data.where(f"NOT ({_HIDDEN})")
        named, held = _named(hidden), hidden
        if special is not None:
            plain, held = split(plain, moves, special)
            named, held = special.unionByName(named), held.unionByName(hidden)
        portions = portions_of(named, ROWS_PER_GROUP).localCheckpoint(eager=False)
        found = by_rule(held, pending, portions, partial(rules.base_rows, horizon=horizon), ROW_DDL, portions)
    if moves is None:
        return found
    moved = with_move(plain, moves, "now", F.col("person_id")).where(~F.col("now").eqNullSafe(F.col("person_id")))
    return found.unionByName(_under_new_person(moved))


def _under_new_person(moved: DataFrame) -> DataFrame:
    return moved.withColumn("person_id", F.col("now")).select(*ROW.names)


def _moves(pending: Pending) -> DataFrame | None:
    """What pending edges do to the ids they reach; None: none is pending."""
    if pending.alias is None or not pending.moves_identity:
        return None
    return moves_of(pending.alias, pending.watermark + 1, pending.max_edges, rules.moves, rules.MOVE_DDL)


def special_rows(pending: Pending, moves: DataFrame | None, since: int | None = None) -> DataFrame | None:
    """organization_id with engagement_id or source_person_id: which rows the rules look at; None: no row.

    Those of which the changeset has a newer image, those that UPDATEs name from a sequence on, by default the first
    above the watermark, and those that edges tell apart.
    """
    begin = pending.watermark + 1 if since is None else since
    parts = [] if pending.images is None else [_named(pending.images)]
    if pending.updates is not None and (pending.has_patches or since is not None):
        parts.append(_named(pending.updates.where(F.col("sequence") >= begin)))
    if moves is not None:
        parts.append(moves.where("engaged_before IS NULL").select(*ID, "source_person_id"))
    return reduce(DataFrame.unionByName, parts) if parts else None


def _named(engagements: DataFrame) -> DataFrame:
    return engagements.select(*ID, F.lit(None).cast("string").alias("source_person_id"))


def split(data: DataFrame, moves: DataFrame | None, special: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Rows that the moves settle, and special ones."""
    of_id = F.broadcast(special.where("engagement_id IS NOT NULL").select(*ID).distinct())
    plain, held = data.join(of_id, ID, "left_anti"), data.join(of_id, ID, "left_semi")
    if moves is None:
        return plain, held
    of_person = F.broadcast(special.where("source_person_id IS NOT NULL").select(*PERSON).distinct())
    by_person = data.join(of_person, PERSON, "left_semi").join(of_id, ID, "left_anti")
    return plain.join(of_person, PERSON, "left_anti"), held.unionByName(by_person)


def with_move(data: DataFrame, moves: DataFrame, name: str, otherwise: Column) -> DataFrame:
    """Rows with the identity that the matching move gives them, as a column; at most one move matches a row."""
    moves = moves.where("engaged_before IS NOT NULL")
    offers = F.broadcast(moves.select(*(F.col(name).alias(f"move_{name}") for name in moves.columns)))
    meets = (
        (F.col("organization_id") == F.col("move_organization_id"))
        & (F.col("source_person_id") == F.col("move_source_person_id"))
        & (F.col("move_engaged_from").isNull() | (F.col("engagement_ts") >= F.col("move_engaged_from")))
        & (F.col("engagement_ts") < F.col("move_engaged_before"))
    )
    now = F.when(F.col("move_engaged_before").isNotNull(), F.col("move_to_id")).otherwise(otherwise)
    return data.join(offers, meets, "left").select(*data.columns, now.alias(name))


def by_rule(
    held: DataFrame,
    pending: Pending,
    special: DataFrame,
    rule: Rule,
    ddl: str,
    portions: DataFrame | None = None,
) -> DataFrame:
    """What a rule makes of held rows, with the newer images of their ids. ddl: the columns that the rule returns.

    special: has their organization_id. portions: by how many tasks each organization is looked at, as of `portions_of`;
    None: by one.
    """

    def run(state: pa.Table) -> pa.Table:
        return _of_group(rule, state)

    state = special_state(held, pending, special)
    if portions is None:
        return state.groupBy("organization_id").applyInArrow(run, ddl)
    return in_portions(state, portions).groupBy(*GROUP).applyInArrow(run, ddl)


def _of_group(rule: Rule, state: pa.Table) -> pa.Table:
    """What a rule makes of one group, a part after the other: the Python objects of many rows would kill the worker."""
    organization_id = state.column("organization_id")[0].as_py()
    parts = in_parts(state.select(STATE.names).cast(STATE), ROWS_PER_GROUP)
    return pa.concat_tables([rule(organization_id, of_rows(part)) for part in parts])


def portions_of(rows: DataFrame, size: int) -> DataFrame:
    """organization_id, and in how many portions of about so many of these rows it is looked at. Cost: one aggregate."""
    return rows.groupBy("organization_id").agg(F.ceil(F.count("*") / size).alias("portions"))


def portion(engagement_id: Column) -> Column:
    """In which of `portions` an engagement is."""
    return F.pmod(F.xxhash64(engagement_id), F.col("portions"))


GROUP = ("organization_id", "portion")


def in_portions(state: DataFrame, portions: DataFrame) -> DataFrame:
    """A state, and to which portion each of its rows belongs; edges belong to all."""
    state = state.join(F.broadcast(portions), "organization_id")
    of_one = F.array(portion(F.coalesce("row.engagement_id", "patch.engagement_id")))
    of_all = F.sequence(F.lit(0).cast("bigint"), F.col("portions") - 1)
    split = state.withColumn("portion", F.explode(F.when(F.col("edge").isNull(), of_one).otherwise(of_all)))
    return split.drop("portions")


def special_state(held: DataFrame, pending: Pending, special: DataFrame) -> DataFrame:
    """The state of the organizations of special rows: these rows, newer images, edges and patches."""
    organizations = F.broadcast(special.select("organization_id").distinct())
    state = no_state(held).unionByName(state_part(held.withColumn("sequence", F.lit(None).cast("bigint")), "row"))
    if pending.images is not None:
        state = state.unionByName(state_part(pending.images, "row"))
    for kind, requests in (("edge", pending.alias), ("patch", pending.updates)):
        if requests is not None:
            of_them = requests.join(organizations, "organization_id", "left_semi")
            state = state.unionByName(state_part(of_them, kind))
    return state

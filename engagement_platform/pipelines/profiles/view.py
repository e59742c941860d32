"""Base and pending changes as one frame: the four strategies, which of them is valid, and when changes are broadcast.

Nothing is written. Changes are folded first (`latest_values`); the same rules for one key at a time are `rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.errors import PlatformError
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.parts import kept
from engagement_platform.pipelines.profiles.entity import Entity, version_of
from engagement_platform.pipelines.profiles.snapshot import Snapshot, are_newer, snapshot, were_checked
from engagement_platform.settings import MergeOnReadSettings, ViewStrategy

FEW_KEYS = 1000
"""As many pending changes are looked for by their keys where a predicate is given; with more the base is read whole.
A literal costs the planner 0.13 ms."""


def fits_broadcast(rows: int, settings: MergeOnReadSettings) -> bool:
    """True when so many folded changes may be sent to every task. A figure exactly at a limit fits.

    Both limits count: 2,800,000 rows of 364 bytes are 1,019,200,000 bytes, which is more than a decimal GB and less
    than 1 GiB.
    """
    few = rows <= settings.broadcast_max_rows
    return few and rows * settings.broadcast_row_bytes <= settings.broadcast_budget_bytes


def why_not_union_inserts(entity: Entity, taken: Snapshot | None = None, *, forgets: bool = False) -> str | None:
    """Why `left_join_union_inserts` is not valid; None when it is.

    It takes every folded INSERT for a new row and drops all else that the base does not have. taken: what waits must
    have landed under these policies, too. forgets: tombstones leave the base after a time.
    """
    if not entity.inserts_are_new:
        return "nobody promises that inserts are new (merge_on_read.inserts_are_new), and one that is not would double"
    if entity.unknown_update == "upsert":
        return "an UPDATE of an unknown id makes a row (merge_on_read.unknown_update = upsert), and would be lost"
    if forgets and entity.unknown_update == "quarantine":
        return "an UPDATE that waits may be of a row whose tombstone was forgotten (rematerialize.tombstone_retention)"
    if taken is not None and not were_checked(entity, taken):
        return (
            "changes wait that landed before merge_on_read.inserts_are_new and merge_on_read.unknown_update were as "
            f"they are now; `engagement-platform run rematerialize-{entity.name}` moves them"
        )
    return None


def choose(
    entity: Entity, asked: ViewStrategy, *, broadcast: bool, taken: Snapshot | None = None, forgets: bool = False
) -> ViewStrategy:
    """The strategy to read by, for what waits at a snapshot. forgets: as above. Raises PlatformError for one that was
    asked for and would lose or double rows.

    auto: see the setting. A full outer join reads each side once, so it is the better one where both are shuffled.
    """
    why_not = why_not_union_inserts(entity, taken, forgets=forgets)
    if asked == "left_join_union_inserts" and why_not:
        raise PlatformError(
            f"{entity.view} cannot be read by {asked}: {why_not}. Nothing was read. Use left_join_anti_join, which "
            "differs in one more join and is right for any changes, or auto, which chooses."
        )
    if asked != "auto":
        return asked
    if not broadcast:
        return "full_outer_join"
    return "left_join_anti_join" if why_not else "left_join_union_inserts"


@dataclass(frozen=True)
class Pending:
    """The changes that wait."""

    folded: DataFrame
    """As `latest_values` makes it; computed once, however often a plan names it."""
    broadcast: bool
    """Whether it may be sent to every task."""
    newer: bool = False
    """Whether every version in it is known to be greater than any of the base, whose own need not be read then."""


def latest_values(changes: DataFrame, entity: Entity) -> DataFrame:
    """The newest word about each column, and about whether there is such a key at all.

    In:  columns of the changeset.
    Out: the key; version (greatest of any change); present, present_version, present_ts (null: not changed); each
         attribute with the version of its word (null: not changed; a null with a version: set to null);
         inserted, whether an INSERT is among the changes: one that was updated since stays an insert.
    A word is newer by its version; of equal versions the first to land stays, column by column. A DELETE speaks of
    every column. Cost: one aggregation by key.
    """
    # Of two words of one version the one that landed first is greater.
    place = F.struct(entity.version, -F.col("batch_id"), -F.col("partition"), -F.col("offset"))
    presence = F.max_by(
        F.struct((F.col("op") != "DELETE").alias("present"), entity.version, "ingestion_ts"),
        F.when(_speaks_of_presence(entity), place),
    )
    newest = {
        name: F.max_by(F.struct(name, entity.version), F.when(_speaks_of(name), place)) for name in entity.columns
    }
    # No repartition before it, which would keep a predicate on the key from the files of the changeset.
    folded = changes.groupBy(entity.key).agg(
        F.max(entity.version).alias(entity.version),
        F.bool_or(F.col("op") == "INSERT").alias("inserted"),
        presence.alias("presence"),
        *(word.alias(f"word_{name}") for name, word in newest.items()),
    )
    return folded.select(
        entity.key,
        entity.version,
        "inserted",
        F.col("presence.present").alias("present"),
        F.col(f"presence.{entity.version}").alias("present_version"),
        F.col("presence.ingestion_ts").alias("present_ts"),
        *(F.col(f"word_{name}.{name}").alias(name) for name in entity.columns),
        *(F.col(f"word_{name}.{entity.version}").alias(version_of(name)) for name in entity.columns),
    )


def _speaks_of_presence(entity: Entity) -> Column:
    """Where updates make no rows, they do not keep any either: only an INSERT undoes a DELETE."""
    return F.col("op") != "UPDATE" if entity.unknown_update == "ignore" else F.lit(True)


def _speaks_of(column: str) -> Column:
    cleared = F.coalesce(F.array_contains("set_null", F.lit(column)), F.lit(False))
    return (F.col("op") == "DELETE") | F.col(column).isNotNull() | cleared


def double_rank_over(base: DataFrame, pending: Pending, entity: Entity) -> DataFrame:
    """The folded changes united with the base, and ranked once more by key, column by column."""
    folded = pending.folded.drop("inserted").withColumn("changed", F.lit(1))
    both = base.withColumn("changed", F.lit(0)).unionByName(folded)

    def newest(version: str, *columns: str) -> Column:
        # Of equal versions the base's came first.
        rank = F.struct(F.col(version), -F.col("changed"))
        return F.max_by(F.struct(*columns, version), F.when(F.col(version).isNotNull(), rank))

    ranked = both.groupBy(entity.key).agg(
        F.max(entity.version).alias(entity.version),
        newest("present_version", "present", "present_ts").alias("presence"),
        *(newest(version_of(name), name).alias(f"word_{name}") for name in entity.columns),
    )
    return ranked.select(
        entity.key,
        entity.version,
        *(F.col(f"presence.{name}") for name in ("present", "present_version", "present_ts")),
        *(F.col(f"word_{name}.{name}") for name in entity.columns),
        *(F.col(f"word_{name}.{version_of(name)}") for name in entity.columns),
    )


def full_outer_join(base: DataFrame, pending: Pending, entity: Entity) -> DataFrame:
    """Base and folded changes side by side. Spark can broadcast neither side of it."""
    return _joined(base, pending, entity, "full_outer")


def left_join_anti_join(base: DataFrame, pending: Pending, entity: Entity) -> DataFrame:
    """The base with its changes, and with them the changes of keys that the base does not have.

    The latter is an anti join with the base on its right, which Spark would not broadcast; the keys of the base that
    are among the changes are no more than these, so they are found first and broadcast (1.5 scans of the base).
    """
    asked = pending.folded.select(entity.key)
    known = base.select(entity.key).join(_sent(asked, pending.broadcast), entity.key, "left_semi")
    new = pending.folded.join(_sent(known, pending.broadcast), entity.key, "left_anti")
    return _joined(base, pending, entity, "left_outer").unionByName(new.select(*entity.base.column_names))


def left_join_union_inserts(base: DataFrame, pending: Pending, entity: Entity) -> DataFrame:
    """The base with its changes, and with them what is inserted. See `why_not_union_inserts`."""
    new = pending.folded.where("inserted").select(*entity.base.column_names)
    return _joined(base, pending, entity, "left_outer").unionByName(new)


Strategy = Callable[[DataFrame, Pending, Entity], DataFrame]

STRATEGIES: Mapping[ViewStrategy, Strategy] = {
    "double_rank_over": double_rank_over,
    "full_outer_join": full_outer_join,
    "left_join_anti_join": left_join_anti_join,
    "left_join_union_inserts": left_join_union_inserts,
}
"""By name. In: rows of the base, the changes that wait. Out: rows of the base with the changes in them."""


@dataclass(frozen=True)
class View:
    """One reading of an entity: what it was made from, and its rows."""

    entity: Entity
    snapshot: Snapshot
    strategy: ViewStrategy
    broadcast: bool
    state: DataFrame
    """Columns of the base, with those rows that nobody sees: tombstones and what nobody inserted."""
    where: Column | None = None
    """Only rows of which this is true; `state` may lack others."""

    @property
    def rows(self) -> DataFrame:
        """What readers see: key, version, attributes."""
        seen = self.state.where("present").select(*self.entity.view_columns)
        return seen if self.where is None else seen.where(self.where)


def view(
    lake: Lake,
    entity: Entity,
    *,
    strategy: ViewStrategy | None = None,
    where: str | None = None,
    at: Snapshot | None = None,
) -> View:
    """Base and pending changes as they stand now, or at a snapshot.

    strategy: the setting's when not given.
    where: a Spark SQL predicate over the view's columns. While few changes wait it reaches the scan of the base, too:
    a row may pass when it does in the base, or when a change of it waits. Changes are read whole, each being a part of
    a row only.
    Cost: one scan of the base, and nothing else while no change waits; a Spark job before that only when the changeset
    has more rows than may be broadcast, to count the folded ones. Raises PlatformError as `choose`.
    """
    settings = lake.settings.merge_on_read
    taken = at or snapshot(lake.root, entity)
    # Readers put predicates on the view, also in SQL.
    base = lake.read(entity.base, taken.base_version, skips=True)
    passes = None if where is None else F.expr(where)
    folded = folded_changes(lake, entity, taken) if taken.pending else None
    if passes is not None and taken.pending_rows <= FEW_KEYS:
        waiting = [] if folded is None else [row[0] for row in folded.select(entity.key).collect()]
        base = base.where(passes | F.col(entity.key).isin(waiting) if waiting else passes)
    few = fits_broadcast(taken.pending_rows, settings)
    broadcast = few or (folded is not None and fits_broadcast(folded.count(), settings))
    forgets = lake.settings.rematerialize.tombstone_retention is not None
    chosen = choose(entity, strategy or settings.view, broadcast=broadcast, taken=taken, forgets=forgets)
    state = base
    if folded is not None:
        state = STRATEGIES[chosen](base, Pending(folded, broadcast, are_newer(lake.root, entity, taken)), entity)
    return View(entity, taken, chosen, broadcast, state.select(*entity.base.column_names), passes)


def folded_changes(lake: Lake, entity: Entity, taken: Snapshot) -> DataFrame:
    """The changes that wait at a snapshot, as of `latest_values`; computed at its first use and never again."""
    changes = lake.read(entity.changeset, taken.changeset_version)
    changes = changes.where((F.col("batch_id") > taken.watermark) & (F.col("batch_id") <= taken.latest))
    return kept(latest_values(changes, entity))


def current(lake: Lake, entity: Entity, *, where: str | None = None) -> DataFrame:
    """What readers see now: key, version, attributes; one row for each key that is not deleted. As `view`."""
    return view(lake, entity, where=where).rows


def create_view(lake: Lake, entity: Entity) -> str:
    """A temporary SQL view over the state of now, such as `profile_current`; its name."""
    called = entity.view.replace("/", "_")
    current(lake, entity).createOrReplaceTempView(called)
    return called


def _joined(base: DataFrame, pending: Pending, entity: Entity, how: str) -> DataFrame:
    """Rows of the base with the newer words of the changes; for a full outer join also rows of the changes alone.

    In SQL texts: forty columns put together call by call were 2,800 messages to the JVM and 0.4 s, of 3 for the read.
    """
    key, version = _old(entity.key), _old(entity.version)
    changes = pending.folded.selectExpr(*(f"{_old(name)} AS {_new(name)}" for name in pending.folded.columns))
    both = base.join(_sent(changes, pending.broadcast), F.expr(f"{key} = {_new(entity.key)}"), how)
    merged = {
        entity.key: key if how == "left_outer" else f"coalesce({key}, {_new(entity.key)})",
        entity.version: f"greatest({version}, {_new(entity.version)})",
    }
    words = {"present_version": ("present", "present_ts")} | {version_of(name): (name,) for name in entity.columns}
    for by, columns in words.items():
        wins = f"{_new(by)} IS NOT NULL"
        if not pending.newer:
            wins = f"coalesce({_new(by)} > {_old(by)}, {wins})"
        merged |= {name: f"CASE WHEN {wins} THEN {_new(name)} ELSE {_old(name)} END" for name in (*columns, by)}
    return both.selectExpr(*(f"{merged[name]} AS {_old(name)}" for name in entity.base.column_names))


def _old(name: str) -> str:
    """A column of the base, as SQL reads it."""
    return f"`{name}`"


def _new(name: str) -> str:
    """The column of the changes that has the same name."""
    return f"`__new_{name}`"


def _sent(frame: DataFrame, broadcast: bool) -> DataFrame:
    return F.broadcast(frame) if broadcast else frame

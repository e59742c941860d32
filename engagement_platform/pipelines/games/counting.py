"""What events add to the figures of games and to the features of players: one aggregation in Spark.

Only its groups come to the process. Adding them to those before is `live_ops_store`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines.games.event_type import EventType, FieldType
from engagement_platform.pipelines.games.registry import Registry
from engagement_platform.pipelines.games.rules import FIELDS, LONGEST_ID

PURCHASES = frozenset({"purchase"})
ERRORS = frozenset({"crash", "error"})
CURRENCY = "USD"
"""Amounts in any other currency cannot be added up, and rates are nobody's business here."""
CHANGE = "live_ops_change"
"""A type that declares this field says by it which change of live-ops took effect; `server_status` does."""
MOST_DOLLARS = 1e6
"""A larger amount counts as none: a type may be declared without a range, and one value must not end the sums."""
MICROS = 1_000_000
"""Millionths, for whole numbers add up to the same in any order."""
MOST = 2**63 - 1
"""What is more stays this much: a number that no column holds would end every batch of all games."""
_ENVELOPE = ("event_type", "event_ts", "game_id", "player_id", "session_id")
_FIELDS: dict[str, FieldType] = {
    "price_usd": "double", "price": "double", "currency": "string", "level": "long", CHANGE: "string",
}  # fmt: skip
"""What is counted of the fields of whatever type declares them so."""


def counted(events: DataFrame) -> pa.Table:
    """Events by game, minute, player and session; runs one job. events: as `of_plan` or `of_tables` make them.

    Columns: game, minute (since 1970), player_id, session_id, events, purchases, revenue_micros, errors, first_us,
    last_us, level (0: none), changes (names of live-ops changes). A session that is no key of the stores is its
    SHA-256, such a change its beginning. revenue: `price_usd` of a purchase or, where it is null, `price` when
    `currency` says US dollars.
    """
    at, bought = F.unix_micros("event_ts"), F.col("event_type").isin(*PURCHASES)
    paid = F.coalesce("price_usd", F.when(F.col("currency") == CURRENCY, F.col("price")))
    micros = F.when(bought & (F.abs(paid) <= MOST_DOLLARS), F.round(paid * MICROS).cast("long")).otherwise(0)
    # Sessions and changes are texts as a game sends them; PostgreSQL has no NUL in one.
    session, is_key = F.col("session_id"), F.length("session_id") <= LONGEST_ID
    key = F.when(is_key & ~F.contains(session, F.lit("\0")), session).otherwise(F.sha2(session, 256))
    changes = F.substring(F.replace(F.col(CHANGE), F.lit("\0")), 1, LONGEST_ID)
    groups = events.groupBy(
        F.col("game_id").alias("game"),
        F.floor(F.unix_seconds("event_ts") / 60).alias("minute"),
        "player_id",
        key.alias("session_id"),
    ).agg(
        F.count("*").alias("events"),
        F.sum(bought.cast("long")).alias("purchases"),
        F.coalesce(F.try_sum(micros), F.lit(MOST)).alias("revenue_micros"),
        F.sum(F.col("event_type").isin(*ERRORS).cast("long")).alias("errors"),
        F.min(at).alias("first_us"),
        F.max(at).alias("last_us"),
        F.coalesce(F.max("level"), F.lit(0)).alias("level"),
        F.collect_set(changes).alias("changes"),
    )
    return groups.toArrow()


def of_plan(plan: DataFrame, types: Registry, landed: Collection[str]) -> DataFrame:
    """The events of a batch's plan. landed: the types that it has events of."""

    def field(name: str, kind: FieldType) -> Column:
        declared = (F.col(FIELDS)[of][name] for of in sorted(landed) if _declares(types[of], name))
        return F.coalesce(*declared, F.lit(None).cast(kind)).alias(name)

    events = plan.where(F.col("reason_code").isNull())
    return events.select(*_ENVELOPE, *(field(name, kind) for name, kind in _FIELDS.items()))


def of_tables(lake: Lake, types: Registry, where: Column) -> DataFrame | None:
    """The events that are in the tables; None where there is no table. where: of the columns that all of them have."""
    parts = []
    for name, declared in types.items():
        if lake.version(declared.table) > 0:
            own = (
                (F.col(field) if _declares(declared, field) else F.lit(None).cast(kind)).alias(field)
                for field, kind in _FIELDS.items()
            )
            rows = lake.read(declared.table).where(where).withColumn("event_type", F.lit(name))
            parts.append(rows.select(*_ENVELOPE, *own))
    return reduce(DataFrame.unionAll, parts) if parts else None


def _declares(declared: EventType, name: str) -> bool:
    return name in declared.fields and declared.fields[name].type == _FIELDS[name]

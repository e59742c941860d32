"""What the events of a batch add to the figures of games and to the features of players: one aggregation in Spark.

Only its groups come to the process. Adding them to those before is `live_ops_store`.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.games.event_type import FieldType
from engagement_platform.pipelines.games.registry import Registry
from engagement_platform.pipelines.games.rules import FIELDS

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


def counted(events: DataFrame, types: Registry, landed: Collection[str]) -> pa.Table:
    """The events of a plan by game, minute, player and session; runs one job.

    landed: the types that the plan has events of. Columns: game, minute (since 1970), player_id, session_id, events,
    purchases, revenue_micros, errors, first_us, last_us, level (0: none), changes (names of live-ops changes).
    revenue: `price_usd` of a purchase or, where it is null, `price` when `currency` says US dollars.
    """
    ours = {name: types[name] for name in sorted(landed)}
    kind, at = F.col("event_type"), F.unix_micros("event_ts")
    rows = events.where(F.col("reason_code").isNull()).select(
        F.col("game_id").alias("game"),
        F.floor(F.unix_seconds("event_ts") / 60).alias("minute"),
        "player_id",
        "session_id",
        at.alias("at"),
        kind.isin(*PURCHASES).cast("long").alias("purchases"),
        kind.isin(*ERRORS).cast("long").alias("errors"),
        _micros(ours).alias("revenue_micros"),
        _said(ours, "level", "long").alias("level"),
        _said(ours, CHANGE, "string").alias("change"),
    )
    groups = rows.groupBy("game", "minute", "player_id", "session_id").agg(
        F.count("*").alias("events"),
        *(F.sum(name).alias(name) for name in ("purchases", "revenue_micros", "errors")),
        F.min("at").alias("first_us"),
        F.max("at").alias("last_us"),
        F.coalesce(F.max("level"), F.lit(0)).alias("level"),
        F.collect_set("change").alias("changes"),
    )
    return groups.toArrow()


def _said(types: Registry, name: str, kind: FieldType) -> Column:
    """A field of whatever type declares it so; null for events of others."""
    found = [
        F.col(FIELDS)[of][name]
        for of, declared in types.items()
        if name in declared.fields and declared.fields[name].type == kind
    ]
    return F.coalesce(*found, F.lit(None).cast(kind))


def _micros(types: Registry) -> Column:
    """Millionths of a dollar that were paid; 0 for events that are no purchase."""
    bought = {name: declared for name, declared in types.items() if name in PURCHASES}
    dollars, price = (_said(bought, name, "double") for name in ("price_usd", "price"))
    paid = F.coalesce(dollars, F.when(_said(bought, "currency", "string") == CURRENCY, price))
    return F.when(F.abs(paid) <= MOST_DOLLARS, F.round(paid * MICROS).cast("long")).otherwise(0)

"""Rows of a table of games as the events that figures and features are made of, by the declaration of their type.

What is counted of an event is `live_ops.folding`; which types there are is `games.registry`.
"""

from __future__ import annotations

from datetime import UTC

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.live_ops.detect import Change
from engagement_platform.live_ops.figures import minute_number, moment_of
from engagement_platform.live_ops.folding import EVENT_SCHEMA, MinuteState, PlayerState
from engagement_platform.live_ops.minutes import Batch
from engagement_platform.pii.tombstones import Tombstones
from engagement_platform.pipelines.games.event_type import EventType

# Amounts in any other currency cannot be added up, and rates are nobody's business here.
CURRENCY = "USD"
LEVEL = "level"
CHANGE = "live_ops_change"
"""A type that declares this field says by it which change of live-ops took effect; `server_status` does."""


def events_of(declared: EventType, rows: pa.Table) -> pa.Table:
    """As EVENT_SCHEMA says. rows: of the type's table, with any of its columns; one that is missing is null.

    revenue: the field `price_usd` or, where it is null, `price` when `currency` says US dollars; null for types that
    declare neither. level: the field `level`, if it is declared as a whole number.
    """
    columns = {
        **{name: _column(rows, name) for name in ("game_id", "event_ts", "player_id", "session_id")},
        "event_type": pa.repeat(pa.scalar(declared.name), len(rows)),
        "revenue": _revenue(declared, rows),
        "level": _column(rows, LEVEL) if _is(declared, LEVEL, "long") else None,
    }
    arrays = [
        pa.nulls(len(rows), field.type) if (found := columns[field.name]) is None else found.cast(field.type)
        for field in EVENT_SCHEMA
    ]
    return pa.table(arrays, schema=EVENT_SCHEMA)


def changes_of(declared: EventType, rows: pa.Table) -> list[Change]:
    """Changes of live-ops that rows of a type tell of, none for most types, by the minute.

    Each server of a game tells of the same change; it is one within a minute, however rows are cut into batches.
    """
    names = _column(rows, CHANGE) if _is(declared, CHANGE, "string") else None
    if names is None:
        return []
    told = rows.select(["game_id", "event_ts", CHANGE]).filter(pc.is_valid(names)).to_pylist()
    found = {(row["game_id"], moment_of(minute_number(row["event_ts"])), row[CHANGE]) for row in told}
    return [Change(*one) for one in sorted(found)]


def withheld(rows: pa.Table, tombstones: Tombstones) -> pa.Table:
    """The same rows, those of players that are erased without player and session: they count for their game only.

    Who reads late reads files in which they stand, as long as former versions are kept.
    """
    told = rows.select(["game_id", "player_id"]).filter(pc.is_valid(rows["player_id"]))
    pairs = {
        (row["game_id"], row["player_id"]) for row in told.group_by(["game_id", "player_id"]).aggregate([]).to_pylist()
    }
    gone = tombstones.erased_players(pairs, None) if pairs else set()
    if not gone:
        return rows
    each = zip(rows["game_id"].to_pylist(), rows["player_id"].to_pylist(), strict=True)
    stays = pa.array([pair not in gone for pair in each], pa.bool_())
    for name in ("player_id", "session_id"):
        if name in rows.column_names:
            at, field = rows.schema.get_field_index(name), rows.schema.field(name)
            rows = rows.set_column(at, field, pc.if_else(stays, rows[name], pa.scalar(None, field.type)))
    return rows


def batch_of(declared: EventType, rows: pa.Table, skip: int) -> Batch:
    """What rows of a type's table make, but for the first `skip`; at least one is left."""
    new = rows.slice(skip)
    events = events_of(declared, new)
    newest = pc.max(events["event_ts"]).as_py().astimezone(UTC)
    ingested = _column(new, "ingestion_ts")
    said = None if ingested is None else pc.max(ingested).as_py()
    return Batch(
        minutes=MinuteState.empty().fold(events),
        players=PlayerState.empty().fold(events),
        changes=changes_of(declared, new),
        ingested=newest if said is None else said.astimezone(UTC),
        newest=newest,
    )


def _revenue(declared: EventType, rows: pa.Table) -> pa.ChunkedArray | None:
    dollars = _column(rows, "price_usd") if _is(declared, "price_usd", "double") else None
    price, currency = (_column(rows, name) if name in declared.fields else None for name in ("price", "currency"))
    if price is None or currency is None or not _is(declared, "price", "double"):
        return dollars
    in_dollars = pc.if_else(pc.fill_null(pc.equal(currency, CURRENCY), False), price, pa.scalar(None, pa.float64()))
    return in_dollars if dollars is None else pc.coalesce(dollars, in_dollars)


def _is(declared: EventType, name: str, kind: str) -> bool:
    field = declared.fields.get(name)
    return field is not None and field.type == kind


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray | None:
    return rows[name] if name in rows.column_names else None

"""Figures by minute and features of players, folded from batches of events: state and batch make the next state.

Every part of a state is a sum, a least, a largest or a set, in whole numbers, so the order and the cutting of batches
do not matter; a batch that comes twice does, so whoever folds takes each once. Keeping features is `players`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.live_ops.figures import KPI_SCHEMA

EVENT_SCHEMA = pa.schema(
    [
        ("game_id", pa.string()),
        ("event_ts", pa.timestamp("us", "UTC")),
        ("event_type", pa.string()),
        ("player_id", pa.string()),
        ("session_id", pa.string()),
        ("revenue", pa.float64()),
        ("level", pa.int64()),
    ]
)
"""player_id, session_id, revenue and level may be null. revenue: of a purchase, in one currency."""

PURCHASES = frozenset({"purchase"})
ERRORS = frozenset({"crash", "error"})

# Millionths, for whole numbers add up to the same in any order.
MICROS = 1_000_000

_SUMS = ["events", "purchases", "revenue_micros", "errors"]
_COUNTS = pa.schema([("game", pa.string()), ("minute", pa.int64()), *((name, pa.int64()) for name in _SUMS)])
_SEEN = pa.schema([("game", pa.string()), ("minute", pa.int64()), ("player_id", pa.string())])
_PLAYERS = pa.schema(
    [("game", pa.string()), ("player_id", pa.string()),
     *((name, pa.int64()) for name in ("first_us", "last_us", "events", "spend_micros", "level"))]
)  # fmt: skip
_SESSIONS = pa.schema(
    [("game", pa.string()), ("player_id", pa.string()), ("session_id", pa.string()), ("start_us", pa.int64()),
     ("end_us", pa.int64())]
)  # fmt: skip
_MINUTE_US = 60 * MICROS


@dataclass(frozen=True)
class MinuteState:
    """Figures so far, with the players of each minute, of whom a figure only needs the number."""

    counts: pa.Table
    seen: pa.Table

    @classmethod
    def empty(cls) -> MinuteState:
        """Of no events."""
        return cls(_COUNTS.empty_table(), _SEEN.empty_table())

    def fold(self, events: pa.Table) -> MinuteState:
        """With a batch more. events: as EVENT_SCHEMA says, in any order."""
        return self.merge(_minutes(events))

    def merge(self, other: MinuteState) -> MinuteState:
        """Of the events of both."""
        keys = ["game", "minute"]
        counts = _grouped([self.counts, other.counts], keys, dict.fromkeys(_SUMS, "sum"), _COUNTS)
        return MinuteState(counts, _grouped([self.seen, other.seen], [*keys, "player_id"], {}, _SEEN))

    def figures(self) -> pa.Table:
        """As KPI_SCHEMA says, by game and minute."""
        seen = self.seen.group_by(["game", "minute"]).aggregate([("player_id", "count")])
        table = self.counts.join(seen, ["game", "minute"], join_type="left outer").sort_by(
            [("game", "ascending"), ("minute", "ascending")]
        )
        columns = {
            "game": table["game"],
            "minute": pc.multiply(table["minute"], _MINUTE_US).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
            "events": table["events"],
            "players": pc.fill_null(table["player_id_count"], 0),
            "purchases": table["purchases"],
            "revenue": pc.divide(table["revenue_micros"].cast(pa.float64()), MICROS),
            "errors": table["errors"],
        }
        return pa.table(columns).select(KPI_SCHEMA.names).cast(KPI_SCHEMA)

    def since(self, minute: int) -> MinuteState:
        """Without minutes before one; their figures are final, and their players take the room."""
        later = [table.filter(pc.greater_equal(table["minute"], minute)) for table in (self.counts, self.seen)]
        return MinuteState(*later)


@dataclass(frozen=True)
class PlayerState:
    """What is known of players, and their sessions. Events without a player are left out."""

    players: pa.Table
    """game, player_id, first_us, last_us (microseconds since 1970), events, spend_micros, level (highest; 0: none)."""
    sessions: pa.Table
    """game, player_id, session_id, start_us, end_us."""

    @classmethod
    def empty(cls) -> PlayerState:
        """Of no events."""
        return cls(_PLAYERS.empty_table(), _SESSIONS.empty_table())

    def fold(self, events: pa.Table) -> PlayerState:
        """With a batch more. events: as EVENT_SCHEMA says, in any order."""
        return self.merge(_players(events))

    def merge(self, other: PlayerState) -> PlayerState:
        """Of the events of both."""
        how = {"first_us": "min", "last_us": "max", "events": "sum", "spend_micros": "sum", "level": "max"}
        players = _grouped([self.players, other.players], ["game", "player_id"], how, _PLAYERS)
        keys = ["game", "player_id", "session_id"]
        sessions = _grouped([self.sessions, other.sessions], keys, {"start_us": "min", "end_us": "max"}, _SESSIONS)
        return PlayerState(players, sessions)


def _minutes(events: pa.Table) -> MinuteState:
    kinds = events["event_type"]
    bought = pc.is_in(kinds, pa.array(sorted(PURCHASES)))
    columns = {
        "game": events["game_id"],
        "minute": pc.cast(pc.floor(pc.divide(_micros_of_time(events).cast(pa.float64()), _MINUTE_US)), pa.int64()),
        "events": pa.repeat(pa.scalar(1, pa.int64()), len(events)),
        "purchases": bought.cast(pa.int64()),
        "revenue_micros": _spent(events, bought),
        "errors": pc.is_in(kinds, pa.array(sorted(ERRORS))).cast(pa.int64()),
    }
    rows = pa.table(columns).cast(_COUNTS)
    counts = _grouped([rows], ["game", "minute"], dict.fromkeys(_SUMS, "sum"), _COUNTS)
    seen = rows.select(["game", "minute"]).append_column("player_id", events["player_id"])
    seen = seen.filter(pc.is_valid(seen["player_id"]))
    return MinuteState(counts, _grouped([seen], _SEEN.names, {}, _SEEN))


def _players(events: pa.Table) -> PlayerState:
    ours = events.filter(pc.is_valid(events["player_id"]))
    at = _micros_of_time(ours)
    keys = {"game": ours["game_id"], "player_id": ours["player_id"]}
    rows = pa.table(
        {
            **keys,
            "first_us": at,
            "last_us": at,
            "events": pa.repeat(pa.scalar(1, pa.int64()), len(ours)),
            "spend_micros": _spent(ours, pc.is_in(ours["event_type"], pa.array(sorted(PURCHASES)))),
            "level": pc.fill_null(ours["level"], 0),
        }
    ).cast(_PLAYERS)
    sessions = pa.table({**keys, "session_id": ours["session_id"], "start_us": at, "end_us": at}).cast(_SESSIONS)
    sessions = sessions.filter(pc.is_valid(sessions["session_id"]))
    return PlayerState.empty().merge(PlayerState(rows, sessions))


def _micros_of_time(events: pa.Table) -> pa.ChunkedArray:
    return events["event_ts"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())


def _spent(events: pa.Table, bought: pa.ChunkedArray) -> pa.ChunkedArray:
    paid = pc.fill_null(pc.if_else(bought, events["revenue"], None), 0.0)
    return pc.round(pc.multiply(paid, float(MICROS))).cast(pa.int64())


def _grouped(tables: list[pa.Table], keys: list[str], how: dict[str, str], schema: pa.Schema) -> pa.Table:
    grouped = pa.concat_tables(tables).group_by(keys).aggregate(list(how.items()))
    renamed = [name if name in keys else name.rsplit("_", 1)[0] for name in grouped.column_names]
    return grouped.rename_columns(renamed).select(schema.names).cast(schema)

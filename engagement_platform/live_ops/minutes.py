"""Figures by minute and changes of live-ops in the stores' database, with how far each table of events was counted.

A batch is taken in whole, features of players included, by one transaction. How it is counted is `folding`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, String, Table, and_, delete, func, select

from engagement_platform.engine.database import ensure_tables, reading, writing
from engagement_platform.live_ops import players
from engagement_platform.live_ops.detect import Change
from engagement_platform.live_ops.figures import KPI_SCHEMA, minute_number, moment_of
from engagement_platform.live_ops.folding import MICROS, MinuteState, PlayerState

METADATA = MetaData()

MINUTE = Table(
    "live_ops_minute",
    METADATA,
    Column("game", String(256), primary_key=True),
    Column("minute", BigInteger, primary_key=True),
    Column("events", BigInteger, nullable=False),
    Column("purchases", BigInteger, nullable=False),
    Column("revenue_micros", BigInteger, nullable=False),
    Column("errors", BigInteger, nullable=False),
    Column("players", BigInteger, nullable=False),
)

# Who was there, by which a player of two batches counts once; let go when a minute is closed.
SEEN = Table(
    "live_ops_minute_player",
    METADATA,
    Column("game", String(256), primary_key=True),
    Column("minute", BigInteger, primary_key=True),
    Column("player_id", String(256), primary_key=True),
)

CHANGE = Table(
    "live_ops_change",
    METADATA,
    Column("game", String(256), primary_key=True),
    Column("at_us", BigInteger, primary_key=True),
    Column("name", String(256), primary_key=True),
)

PLACE = Table(
    "live_ops_place",
    METADATA,
    Column("source", String(256), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("ingested_us", BigInteger, nullable=False),
    Column("newest_us", BigInteger, nullable=False),
)

Place = tuple[int, int]
"""All commits of a table up to a version were counted, and so many rows of the next one."""

KEPT = timedelta(days=35)
"""How long figures and sessions are worth keeping: four weeks are looked at, and some days more."""

_NOWHERE: Place = (-1, 0)
LOCK = "live-ops"
"""Of transactions that write the tables of this module."""


@dataclass(frozen=True)
class Batch:
    """Some rows of one table, counted."""

    minutes: MinuteState
    players: PlayerState
    changes: Sequence[Change]
    ingested: datetime
    """Newest time at which a batch that brought the rows was planned."""
    newest: datetime
    """Newest time of an event."""


class LiveOpsStore:
    """What is known of the games of one database. Raises StoresUnavailable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        for metadata in (METADATA, players.METADATA):
            ensure_tables(engine, metadata)

    def take(self, source: str, before: Place, through: Place, rows: int, counted: Callable[[int], Batch]) -> int:
        """Take in what is new among some rows of one commit of a table; how many were.

        before, through: where a reader was before and is after them. counted: what the rows after so many make. Rows
        that were taken in before are passed by, also when a reader cut them otherwise than the one before it.
        """
        with writing(self._engine, LOCK, players.LOCK) as connection:
            known = rows if (place := _place(connection, source)) >= through else known_rows(place, before, through)
            if known >= rows:
                return 0
            new = counted(known)
            _put_minutes(connection, new.minutes)
            players.put_players(connection, new.players)
            changes = [{"game": one.game, "at_us": players.us(one.at), "name": one.name} for one in new.changes]
            players.upsert(connection, CHANGE, changes)
            version, row_count = through
            found = {"source": source, "version": version, "row_count": row_count,
                     "ingested_us": players.us(new.ingested), "newest_us": players.us(new.newest)}  # fmt: skip
            _move(connection, found)
            return rows - known

    def figures(self, first: datetime, until: datetime) -> pa.Table:
        """As KPI_SCHEMA says, of minutes from `first` to before `until`, by game and minute."""
        query = (
            select(MINUTE)
            .where(MINUTE.c.minute >= minute_number(first), MINUTE.c.minute < minute_number(until))
            .order_by(MINUTE.c.game, MINUTE.c.minute)
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        columns = {
            "game": [row.game for row in rows],
            "minute": [moment_of(row.minute) for row in rows],
            **{name: [getattr(row, name) for row in rows] for name in ("events", "players", "purchases", "errors")},
            "revenue": [row.revenue_micros / MICROS for row in rows],
        }
        return pa.table([pa.array(columns[field.name], field.type) for field in KPI_SCHEMA], schema=KPI_SCHEMA)

    def changes(self, since: datetime) -> list[Change]:
        """Changes of live-ops from a time on, oldest first."""
        query = select(CHANGE).where(CHANGE.c.at_us >= players.us(since)).order_by(CHANGE.c.at_us, CHANGE.c.name)
        with reading(self._engine) as connection:
            return [Change(row.game, players.moment(row.at_us), row.name) for row in connection.execute(query)]

    def newest(self) -> tuple[datetime, datetime] | None:
        """(newest time at which counted rows were ingested, newest time of an event); None before the first."""
        with reading(self._engine) as connection:
            query = select(func.max(PLACE.c.ingested_us), func.max(PLACE.c.newest_us))
            ingested, event = connection.execute(query).one()
        return None if ingested is None else (players.moment(ingested), players.moment(event))

    def close(self, before: datetime) -> int:
        """Let go who was there in minutes before a time, which keep their figures; how many rows that were.

        What comes for such a minute later adds to all its figures but players.
        """
        with writing(self._engine, LOCK) as connection:
            return connection.execute(delete(SEEN).where(SEEN.c.minute < minute_number(before))).rowcount

    def forget_figures(self, before: datetime) -> int:
        """Remove figures and changes before a time; how many minutes of games."""
        with writing(self._engine, LOCK) as connection:
            connection.execute(delete(CHANGE).where(CHANGE.c.at_us < players.us(before)))
            return connection.execute(delete(MINUTE).where(MINUTE.c.minute < minute_number(before))).rowcount

    def reset(self) -> None:
        """Forget everything, features of players included: all of it can be counted again from the tables."""
        with writing(self._engine, LOCK, players.LOCK) as connection:
            for table in (MINUTE, SEEN, CHANGE, PLACE, players.PLAYER, players.SESSION):
                connection.execute(delete(table))


def known_rows(place: Place, before: Place, through: Place) -> int:
    """How many of the rows between `before` and `through`, of one commit, are up to `place`, which is not past them."""
    commit = through[0] if through[1] == 0 else through[0] + 1
    skipped, counted = (rows if version + 1 == commit else 0 for version, rows in (before, place))
    return max(0, counted - skipped)


def _place(connection: Connection, source: str) -> Place:
    found = connection.execute(select(PLACE).where(PLACE.c.source == source)).one_or_none()
    return _NOWHERE if found is None else (found.version, found.row_count)


def _move(connection: Connection, found: dict[str, object]) -> None:
    players.upsert(connection, PLACE, [found], most=("ingested_us", "newest_us"))
    # The place itself may have fewer rows than before, of a later version.
    place = {"version": found["version"], "row_count": found["row_count"]}
    connection.execute(PLACE.update().where(PLACE.c.source == found["source"]).values(**place))


def _put_minutes(connection: Connection, batch: MinuteState) -> None:
    counts = [{**row, "players": 0} for row in batch.counts.to_pylist()]
    players.upsert(connection, MINUTE, counts, sums=("events", "purchases", "revenue_micros", "errors"))
    players.upsert(connection, SEEN, batch.seen.to_pylist())
    touched = batch.seen.group_by(["game", "minute"]).aggregate([]).to_pylist()
    for minute in touched:
        ours = and_(SEEN.c.game == minute["game"], SEEN.c.minute == minute["minute"])
        there = connection.execute(select(func.count()).where(ours)).scalar_one()
        # Of a minute that was closed only those who came since are known.
        this = and_(MINUTE.c.game == minute["game"], MINUTE.c.minute == minute["minute"], MINUTE.c.players < there)
        connection.execute(MINUTE.update().where(this).values(players=there))

"""Figures by minute and changes of live-ops in the stores' database, with the last batch that was counted.

A batch is added whole, features of players included, in one transaction. Counting it is `counting`, in Spark.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, String, Table, and_, delete, func, select

from engagement_platform.engine.database import ensure_tables, reading, writing
from engagement_platform.pipelines.games import players
from engagement_platform.pipelines.games.counting import MICROS
from engagement_platform.pipelines.games.detection import Change
from engagement_platform.pipelines.games.figures import KPI_SCHEMA, minute_number, moment_of

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

# The last batch of each job that was counted, by its application id: sums must take a batch once.
COUNTED = Table(
    "live_ops_counted",
    METADATA,
    Column("app_id", String(256), primary_key=True),
    Column("batch_id", BigInteger, nullable=False),
    Column("ingested_us", BigInteger, nullable=False),
    Column("newest_us", BigInteger, nullable=False),
)

KEPT = timedelta(days=35)
"""How long figures and sessions are worth keeping: four weeks are looked at, and some days more."""

LOCK = "live-ops"
"""Of transactions that write the tables of this module."""


class LiveOpsStore:
    """What is known of the games of one database. Raises StoresUnavailable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        for metadata in (METADATA, players.METADATA):
            ensure_tables(engine, metadata)

    def add(self, app_id: str, batch_id: int, counted: pa.Table, ingested: datetime) -> bool:
        """Add the groups of a batch, once; False when this one, or a later one of the job, was added before.

        counted: at least one group, with the columns of `counting.counted`. ingested: when the batch was planned.
        20,000 players and 100,000 sessions take 3.6 s.
        """
        with writing(self._engine, LOCK, players.LOCK) as connection:
            known = select(COUNTED.c.batch_id).where(COUNTED.c.app_id == app_id)
            last = connection.execute(known).scalar_one_or_none()
            if last is not None and last >= batch_id:
                return False
            _put_minutes(connection, counted)
            players.put_players(connection, counted)
            players.upsert(connection, CHANGE, _changes(counted))
            row = {"app_id": app_id, "batch_id": batch_id, "ingested_us": players.us(ingested),
                   "newest_us": pc.max(counted.column("last_us")).as_py()}  # fmt: skip
            players.upsert(connection, COUNTED, [row], most=("batch_id", "ingested_us", "newest_us"))
        return True

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
            query = select(func.max(COUNTED.c.ingested_us), func.max(COUNTED.c.newest_us))
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
        """Forget everything but which batches were counted, features of players included."""
        with writing(self._engine, LOCK, players.LOCK) as connection:
            for table in (MINUTE, SEEN, CHANGE, players.PLAYER, players.SESSION):
                connection.execute(delete(table))


def _put_minutes(connection: Connection, counted: pa.Table) -> None:
    keys = ("game", "minute")
    sums = ("events", "purchases", "revenue_micros", "errors")
    minutes = players.folded(counted, keys, dict.fromkeys(sums, "sum"))
    players.upsert(connection, MINUTE, [{**row, "players": 0} for row in minutes], sums=sums)
    seen = players.folded(counted.filter(pc.is_valid(counted.column("player_id"))), (*keys, "player_id"), {})
    players.upsert(connection, SEEN, seen)
    for minute in {(row["game"], row["minute"]) for row in seen}:
        ours = and_(SEEN.c.game == minute[0], SEEN.c.minute == minute[1])
        there = connection.execute(select(func.count()).where(ours)).scalar_one()
        # Of a minute that was closed only those who came since are known.
        this = and_(MINUTE.c.game == minute[0], MINUTE.c.minute == minute[1], MINUTE.c.players < there)
        connection.execute(MINUTE.update().where(this).values(players=there))


def _changes(counted: pa.Table) -> list[dict[str, object]]:
    """Each server of a game tells of the same change; it is one within a minute, however events fall into batches."""
    groups = counted.filter(pc.greater(pc.list_value_length(counted.column("changes")), 0))
    rows = groups.select(["game", "minute", "changes"]).to_pylist()
    found = {(row["game"], row["minute"], name) for row in rows for name in row["changes"]}
    return [{"game": game, "at_us": minute * 60 * MICROS, "name": name} for game, minute, name in sorted(found)]

"""Figures of games by minute, changes of live-ops and features of players, in the stores' database.

A batch is added whole, in one transaction, and once. Counting it is `counting`, in Spark. A row a player and one a
session, found by primary key: half of the reads within 1.7 ms, 99 % within 32 ms (SQLite, 20,000 players, busy
machine); a Delta table would have to be opened, and read by files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    and_,
    case,
    delete,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from engagement_platform.engine.database import ensure_tables, reading, writing
from engagement_platform.pipelines.games.counting import MICROS, MOST
from engagement_platform.pipelines.games.detection import Change
from engagement_platform.pipelines.games.figures import KPI_SCHEMA, minute_number, moment_of
from engagement_platform.pipelines.games.rules import LONGEST_ID
from engagement_platform.sources.lateness import from_microseconds, microseconds

METADATA = MetaData()
_MICROSECOND = timedelta(microseconds=1)
_BY = "by"
"""How a column of known rows takes up a new one: sum (MOST at most), min, max or last. Others keep what they have."""


def _key(name: str) -> Column[str]:
    return Column(name, String(LONGEST_ID), primary_key=True)


def _number(name: str, by: str, *, of: str | None = None) -> Column[int]:
    """of: its name among the columns of `counting.counted`, where that is another one."""
    return Column(name, BigInteger, nullable=False, key=of or name, info={_BY: by})


MINUTE = Table(
    "live_ops_minute",
    METADATA,
    _key("game"),
    Column("minute", BigInteger, primary_key=True),
    _number("events", "sum"),
    _number("purchases", "sum"),
    _number("revenue_micros", "sum"),
    _number("errors", "sum"),
    Column("players", BigInteger, nullable=False, default=0),
)

# Who was there, by which a player of two batches counts once; let go when a minute is closed.
SEEN = Table(
    "live_ops_minute_player",
    METADATA,
    _key("game"),
    Column("minute", BigInteger, primary_key=True),
    _key("player_id"),
)

PLAYER = Table(
    "player_feature",
    METADATA,
    _key("game"),
    _key("player_id"),
    _number("first_us", "min"),
    _number("last_us", "max"),
    _number("events", "sum"),
    _number("spend_micros", "sum", of="revenue_micros"),
    _number("level", "max"),
)

SESSION = Table(
    "player_session",
    METADATA,
    _key("game"),
    _key("player_id"),
    _key("session_id"),
    _number("start_us", "min", of="first_us"),
    _number("end_us", "max", of="last_us"),
)

CHANGE = Table(
    "live_ops_change",
    METADATA,
    _key("game"),
    Column("at_us", BigInteger, primary_key=True),
    _key("name"),
)

# The last batch of each job that was counted, by its application id: sums must take a batch once.
COUNTED = Table(
    "live_ops_counted",
    METADATA,
    _key("app_id"),
    _number("batch_id", "max"),
    # By a clock that may have been ahead once.
    _number("ingested_us", "last"),
    _number("newest_us", "max"),
)

OF_PLAYERS = (PLAYER, SESSION, SEEN)
"""Tables with rows about one player, named by game and player_id."""
KEPT = timedelta(days=35)
"""How long figures and sessions are worth keeping: four weeks are looked at, and some days more."""
WINDOW = timedelta(days=28)
LOCK = "live-ops"
"""Of transactions that write the tables of this module."""


@dataclass(frozen=True)
class Features:
    """A player as an offer sees one."""

    recency_s: float
    """Seconds since the newest event; 0 when that is ahead of the clock."""
    frequency_per_day: float
    """Sessions begun in the last 28 days, a day; for a younger player a day since the first event, at least one."""
    spend: float
    """All that was paid, US dollars."""
    level: int
    """The highest of any event; 0: none."""
    mean_session_s: float
    """Mean length of those sessions, from first to last event; 0 without one."""


class LiveOpsStore:
    """What is known of the games of one database. Raises StoresUnavailable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        ensure_tables(engine, METADATA)

    def add(
        self, app_id: str, batch_id: int, counted: pa.Table, ingested: datetime, arrived: datetime | None = None
    ) -> bool:
        """Add the groups of a batch, once; False when this one, or a later one of the job, was added before.

        counted: columns as `counting.counted` has them. ingested: when the batch was planned. arrived: when its newest
        object did, beyond which no time of an event counts as its newest. 20,000 players and 100,000 sessions take 3.6
        s.
        """
        with writing(self._engine, LOCK) as connection:
            if _has(connection, app_id, batch_id):
                return False
            for table in (MINUTE, PLAYER, SESSION):
                _upsert(connection, table, _folded(counted, table))
            _count_players(connection, _folded(counted, SEEN))
            _upsert(connection, CHANGE, _changes(counted))
            _upsert(connection, COUNTED, [_counted_row(app_id, batch_id, ingested, counted, arrived)])
        return True

    def counted(self, app_id: str, batch_id: int) -> bool:
        """Whether a batch was added, or a later one of its application id."""
        with reading(self._engine) as connection:
            return _has(connection, app_id, batch_id)

    def figures(self, first: datetime, until: datetime) -> pa.Table:
        """As KPI_SCHEMA says, of minutes from `first` to before `until`, by game and minute."""
        query = (
            select(MINUTE)
            .where(MINUTE.c.minute >= minute_number(first), MINUTE.c.minute < minute_number(until))
            .order_by(MINUTE.c.game, MINUTE.c.minute)
        )
        with reading(self._engine) as connection:
            rows = [
                {**row, "minute": moment_of(row["minute"]), "revenue": row["revenue_micros"] / MICROS}
                for row in connection.execute(query).mappings()
            ]
        return pa.Table.from_pylist(rows, schema=KPI_SCHEMA)

    def changes(self, since: datetime) -> list[Change]:
        """Changes of live-ops from a time on, oldest first."""
        query = select(CHANGE).where(CHANGE.c.at_us >= microseconds(since)).order_by(CHANGE.c.at_us, CHANGE.c.name)
        with reading(self._engine) as connection:
            return [Change(row.game, from_microseconds(row.at_us), row.name) for row in connection.execute(query)]

    def newest(self) -> tuple[datetime, datetime] | None:
        """(newest time at which counted rows were ingested, newest time of an event that had come by then); None before
        the first."""
        with reading(self._engine) as connection:
            query = select(func.max(COUNTED.c.ingested_us), func.max(COUNTED.c.newest_us))
            ingested, event = connection.execute(query).one()
        return None if ingested is None else (from_microseconds(ingested), from_microseconds(event))

    def player(self, game: str, player_id: str, now: datetime) -> Features | None:
        """The features of one player at a time; None for one nobody has seen. Two look-ups by key."""
        at, window, day = (microseconds(now), WINDOW // _MICROSECOND, timedelta(days=1) // _MICROSECOND)
        with reading(self._engine) as connection:
            ours = and_(PLAYER.c.game == game, PLAYER.c.player_id == player_id)
            player = connection.execute(select(*PLAYER.c).where(ours)).mappings().one_or_none()
            if player is None:
                return None
            begun = SESSION.c.first_us
            lately = and_(SESSION.c.game == game, SESSION.c.player_id == player_id, begun > at - window, begun <= at)
            lengths = func.sum(SESSION.c.last_us - begun)
            count, total = connection.execute(select(func.count(), lengths).where(lately)).one()
        return Features(
            recency_s=max(0, at - player[PLAYER.c.last_us]) / MICROS,
            frequency_per_day=count / (min(window, max(day, at - player[PLAYER.c.first_us])) / day),
            spend=player[PLAYER.c.revenue_micros] / MICROS,
            level=player[PLAYER.c.level],
            mean_session_s=float(total or 0) / MICROS / max(count, 1),
        )

    def players(self) -> int:
        with reading(self._engine) as connection:
            return int(connection.execute(select(func.count()).select_from(PLAYER)).scalar_one())

    def forget(self, closed: datetime, old: datetime) -> None:
        """Let go who was there in minutes before `closed`, which keep their figures, and all that is before `old`.

        What comes for a closed minute later adds to all its figures but players.
        """
        with writing(self._engine, LOCK) as connection:
            connection.execute(delete(SEEN).where(SEEN.c.minute < minute_number(closed)))
            connection.execute(delete(CHANGE).where(CHANGE.c.at_us < microseconds(old)))
            connection.execute(delete(MINUTE).where(MINUTE.c.minute < minute_number(old)))
            connection.execute(delete(SESSION).where(SESSION.c.last_us < microseconds(old)))

    def reset(self, app_id: str, counted: Iterable[tuple[str, int]]) -> None:
        """Forget all figures and features, and that anything of `app_id` was added, under which they are counted anew.

        When batches were ingested is forgotten, too: the next one says what time it is.

        counted: batches that are among what is counted anew, by application id and number.
        """
        with writing(self._engine, LOCK) as connection:
            for table in (MINUTE, SEEN, CHANGE, PLAYER, SESSION):
                connection.execute(delete(table))
            connection.execute(delete(COUNTED).where(COUNTED.c.app_id == app_id))
            connection.execute(COUNTED.update().values(ingested_us=0))
            _upsert(connection, COUNTED, [_counted_row(*batch, moment_of(0), None) for batch in counted])


def _has(connection: Connection, app_id: str, batch_id: int) -> bool:
    last = connection.execute(select(COUNTED.c.batch_id).where(COUNTED.c.app_id == app_id)).scalar_one_or_none()
    return last is not None and last >= batch_id


def _counted_row(
    app_id: str, batch_id: int, ingested: datetime, counted: pa.Table | None, arrived: datetime | None = None
) -> dict[str, object]:
    newest = None if counted is None else pc.max(counted.column("last_us")).as_py()
    if newest is not None and arrived is not None:
        # One device whose clock is ahead must not have all games judged before their events have come.
        newest = min(newest, microseconds(arrived))
    return {"app_id": app_id, "batch_id": batch_id, "ingested_us": microseconds(ingested), "newest_us": newest or 0}


def _count_players(connection: Connection, seen: Sequence[Mapping[str, Any]]) -> None:
    _upsert(connection, SEEN, seen)
    for game, minute in {(row["game"], row["minute"]) for row in seen}:
        ours = and_(SEEN.c.game == game, SEEN.c.minute == minute)
        there = connection.execute(select(func.count()).where(ours)).scalar_one()
        # Of a minute that was closed only those who came since are known.
        this = and_(MINUTE.c.game == game, MINUTE.c.minute == minute, MINUTE.c.players < there)
        connection.execute(MINUTE.update().where(this).values(players=there))


def _changes(counted: pa.Table) -> list[dict[str, object]]:
    """Each server of a game tells of the same change; it is one within a minute, however events fall into batches."""
    groups = counted.filter(pc.greater(pc.list_value_length(counted.column("changes")), 0))
    rows = groups.select(["game", "minute", "changes"]).to_pylist()
    found = {(row["game"], row["minute"], name) for row in rows for name in row["changes"]}
    return [{"game": game, "at_us": minute * 60 * MICROS, "name": name} for game, minute, name in sorted(found)]


def _folded(counted: pa.Table, table: Table) -> list[dict[str, Any]]:
    """The groups by the table's key, with what its columns make of them; groups without a part of the key are out."""
    keys = [column.key for column in table.primary_key]
    how = {column.key: column.info[_BY] for column in table.columns if _BY in column.info}
    keyed = counted.filter(reduce(pc.and_, (pc.is_valid(counted.column(key)) for key in keys)))
    sums = [name for name, by in how.items() if by == "sum"]
    for name in sums:
        # Whole numbers of 64 bits turn negative beyond the largest one.
        at = keyed.column_names.index(name)
        keyed = keyed.set_column(at, name, keyed.column(name).cast(pa.decimal128(38)))
    found = keyed.group_by(keys).aggregate(list(how.items()))
    names = {f"{name}_{by}": name for name, by in how.items()}
    rows: list[dict[str, Any]] = found.rename_columns([names.get(n, n) for n in found.column_names]).to_pylist()
    return [{**row, **{name: max(-MOST, min(int(row[name]), MOST)) for name in sums}} for row in rows]


def _upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Rows by the table's primary key: new ones as they are; known ones take them up as their columns say."""
    if not rows:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    taken: dict[Column[Any], Any] = {}
    for column in table.columns:
        if (by := column.info.get(_BY)) is not None:
            taken[column] = _taken_up(by, column, statement.excluded[column.key])
    keys = list(table.primary_key)
    if taken:
        statement = statement.on_conflict_do_update(index_elements=keys, set_=taken)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    connection.execute(statement, rows)


def _taken_up(by: str, known: Column[Any], new: ColumnElement[Any]) -> ColumnElement[Any]:
    match by:
        case "sum":
            # In an order in which nothing goes beyond 64 bits, where PostgreSQL refuses and SQLite goes on in floats.
            more = case((known > MOST - new, MOST), else_=known + new)
            return case((new > 0, more), (known < -MOST - new, -MOST), else_=known + new)
        case "last":
            return new
        case _:
            return case((new < known if by == "min" else new > known, new), else_=known)

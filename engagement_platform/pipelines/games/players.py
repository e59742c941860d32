"""Features of players for whoever makes offers: kept in the stores' database, read by one player in some milliseconds.

A row a player and one a session, found by their primary keys (SQLite, 20,000 players, busy machine: half of the reads
within 1.7 ms, 99 % within 32 ms); a Delta table would have to be opened, and read by files.
What features are made of is `counting`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, String, Table, and_, case, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from engagement_platform.engine.database import reading, writing
from engagement_platform.pipelines.games.counting import MICROS

METADATA = MetaData()

PLAYER = Table(
    "player_feature",
    METADATA,
    Column("game", String(256), primary_key=True),
    Column("player_id", String(256), primary_key=True),
    Column("first_us", BigInteger, nullable=False),
    Column("last_us", BigInteger, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("spend_micros", BigInteger, nullable=False),
    Column("level", BigInteger, nullable=False),
)

SESSION = Table(
    "player_session",
    METADATA,
    Column("game", String(256), primary_key=True),
    Column("player_id", String(256), primary_key=True),
    Column("session_id", String(256), primary_key=True),
    Column("start_us", BigInteger, nullable=False),
    Column("end_us", BigInteger, nullable=False),
)

WINDOW = timedelta(days=28)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOCK = "player-features"
"""Of transactions that write the tables of this module."""


@dataclass(frozen=True)
class Features:
    """A player as an offer sees one."""

    recency_s: float
    """Seconds since the newest event; 0 when that is ahead of the clock."""
    frequency_per_day: float
    """Sessions begun in the last 28 days, a day; for a younger player a day since the first event, at least one."""
    spend: float
    """All that was paid, in the currency of the events."""
    level: int
    """The highest that was said; 0: none."""
    mean_session_s: float
    """Mean length of those sessions, from first to last event; 0 without one."""


class PlayerFeatures:
    """Features of one database. Raises StoresUnavailable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        with writing(engine, "player-feature-schema") as connection:
            METADATA.create_all(connection)

    def read(self, game: str, player_id: str, now: datetime) -> Features | None:
        """The features of one player at a time; None for one nobody has seen. Two look-ups by key."""
        at = us(now)
        with reading(self._engine) as connection:
            ours = and_(PLAYER.c.game == game, PLAYER.c.player_id == player_id)
            player = connection.execute(select(PLAYER).where(ours)).one_or_none()
            if player is None:
                return None
            lately = and_(
                SESSION.c.game == game, SESSION.c.player_id == player_id, SESSION.c.start_us > at - _span(WINDOW),
                SESSION.c.start_us <= at,
            )  # fmt: skip
            lengths = func.sum(SESSION.c.end_us - SESSION.c.start_us)
            count, total = connection.execute(select(func.count(), lengths).where(lately)).one()
        day = _span(timedelta(days=1))
        days = min(_span(WINDOW), max(day, at - player.first_us)) / day
        return Features(
            recency_s=max(0, at - player.last_us) / MICROS,
            frequency_per_day=count / days,
            spend=player.spend_micros / MICROS,
            level=player.level,
            mean_session_s=float(total or 0) / MICROS / max(count, 1),
        )

    def count(self) -> int:
        """How many players there are."""
        with reading(self._engine) as connection:
            return int(connection.execute(select(func.count()).select_from(PLAYER)).scalar_one())

    def forget_sessions(self, before: datetime) -> int:
        """Remove sessions that ended before a time, which should be more than 28 days ago; how many."""
        with writing(self._engine, LOCK) as connection:
            return connection.execute(delete(SESSION).where(SESSION.c.end_us < us(before))).rowcount

    def forget(self, game: str, player_id: str) -> bool:
        """Remove a player whole; whether there was one."""
        with writing(self._engine, LOCK) as connection:
            gone = [
                connection.execute(delete(table).where(table.c.game == game, table.c.player_id == player_id)).rowcount
                for table in (PLAYER, SESSION)
            ]
        return gone[0] > 0


def put_players(connection: Connection, counted: pa.Table) -> None:
    """Add the groups of a batch within somebody's transaction, who holds LOCK and sees to it that it comes once.

    counted: columns as `counting.counted` has them. Events without a player are left out.
    """
    ours = counted.filter(pc.is_valid(counted.column("player_id")))
    player, session = ("game", "player_id"), ("game", "player_id", "session_id")
    sums = {"events": "sum", "revenue_micros": "sum"}
    most = {"first_us": "min", "last_us": "max", "level": "max"}
    rows = folded(ours, player, {**sums, **most})
    for row in rows:
        row["spend_micros"] = row.pop("revenue_micros")
    upsert(connection, PLAYER, rows, least=("first_us",), most=("last_us", "level"), sums=("events", "spend_micros"))
    begun = ours.filter(pc.is_valid(ours.column("session_id")))
    rows = folded(begun, session, {"first_us": "min", "last_us": "max"})
    for row in rows:
        row["start_us"], row["end_us"] = row.pop("first_us"), row.pop("last_us")
    upsert(connection, SESSION, rows, least=("start_us",), most=("end_us",))


def folded(groups: pa.Table, keys: Sequence[str], how: Mapping[str, str]) -> list[dict[str, Any]]:
    """Fewer groups, by some of their keys. how: column -> sum, min or max."""
    found = groups.group_by(list(keys)).aggregate(list(how.items()))
    found = found.rename_columns([name if name in keys else name.rpartition("_")[0] for name in found.column_names])
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def upsert(
    connection: Connection, table: Table, rows: Sequence[dict[str, object]], *, least: Sequence[str] = (),
    most: Sequence[str] = (), sums: Sequence[str] = (),
) -> None:  # fmt: skip
    """Rows by the table's primary key: new ones as they are; of known ones the named columns, other columns stay."""
    if not rows:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    new = statement.excluded
    changed = {
        **{name: case((new[name] < table.c[name], new[name]), else_=table.c[name]) for name in least},
        **{name: case((new[name] > table.c[name], new[name]), else_=table.c[name]) for name in most},
        **{name: table.c[name] + new[name] for name in sums},
    }
    keys = list(table.primary_key)
    if changed:
        connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed), rows)
    else:
        connection.execute(statement.on_conflict_do_nothing(index_elements=keys), rows)


def us(at: datetime) -> int:
    """Microseconds since 1970."""
    return _span(at - _EPOCH)


def moment(at_us: int) -> datetime:
    """When so many microseconds since 1970 had passed, UTC."""
    return _EPOCH + timedelta(microseconds=at_us)


def _span(length: timedelta) -> int:
    return length // timedelta(microseconds=1)

"""Takes an erased player out of what live-ops keeps in the stores: features, sessions, who was there in which minute.

What it counts later without erased players is `job`. Figures of games stay: they name nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Engine, Table, and_, func, inspect, select

from engagement_platform.engine.database import open_engine, reading, writing
from engagement_platform.live_ops.minutes import LOCK, SEEN
from engagement_platform.live_ops.players import LOCK as PLAYERS_LOCK
from engagement_platform.live_ops.players import PLAYER, SESSION
from engagement_platform.pii.erasure import Subject
from engagement_platform.pii.keys import empty_log, overwrite_what_goes
from engagement_platform.settings import Settings

_TABLES = (PLAYER, SESSION, SEEN)


@dataclass(frozen=True)
class PlayersKept:
    """What live-ops keeps of each player. Raises StoresUnavailable."""

    settings: Settings
    name: str = "features of players"

    def erase(self, subject: Subject) -> int:
        """Remove the player's rows; how many. On SQLite the bytes are overwritten, and the write-ahead log emptied."""
        engine, gone = open_engine(self.settings.store_url), 0
        there = list(_there(engine))
        if not there:
            return 0
        with writing(engine, LOCK, PLAYERS_LOCK) as connection:
            overwrite_what_goes(connection)
            gone = sum(connection.execute(table.delete().where(_of(table, subject))).rowcount for table in there)
        empty_log(engine)
        return gone

    def left(self, subject: Subject) -> int:
        """How many rows there are of the player."""
        engine = open_engine(self.settings.store_url)
        with reading(engine) as connection:
            counts = (select(func.count()).where(_of(table, subject)) for table in _there(engine))
            return sum(connection.execute(query).scalar_one() for query in counts)


def _there(engine: Engine) -> Iterator[Table]:
    """Nobody who never counted has these tables."""
    names = set(inspect(engine).get_table_names())
    return (table for table in _TABLES if table.name in names)


def _of(table: Table, subject: Subject) -> ColumnElement[bool]:
    ours = table.c.player_id == subject.id
    return ours if subject.game is None else and_(ours, table.c.game == subject.game)

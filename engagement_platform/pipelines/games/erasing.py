"""Takes what live-ops keeps of an erased player out of the stores: features, sessions, who was there in which minute.

Figures of games stay: they name nobody. Tables of the lake are `erasing.places`, raw objects `raw_objects`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Engine, and_, func, inspect, select
from sqlalchemy import Table as Rows

from engagement_platform.engine.database import open_engine, reading, writing
from engagement_platform.pii.erasure import Erasable, Subject
from engagement_platform.pii.keys import empty_log
from engagement_platform.pipelines.games.live_ops_store import LOCK, OF_PLAYERS
from engagement_platform.settings import Settings


@dataclass
class PlayersKept(Erasable):
    """What live-ops keeps of each player. Raises StoresUnavailable."""

    settings: Settings
    name: str = "features of players"

    def erase(self, subject: Subject) -> int:
        """Remove the player's rows; how many. On SQLite the bytes are overwritten, and the write-ahead log emptied."""
        engine = open_engine(self.settings.store_url)
        tables = _tables_of_players(engine)
        if not tables:
            return 0
        with writing(engine, LOCK) as connection:
            gone = sum(connection.execute(table.delete().where(_player(table, subject))).rowcount for table in tables)
        empty_log(engine)
        return gone

    def left(self, subject: Subject) -> int:
        engine = open_engine(self.settings.store_url)
        with reading(engine) as connection:
            counts = (select(func.count()).where(_player(table, subject)) for table in _tables_of_players(engine))
            return sum(connection.execute(query).scalar_one() for query in counts)


def _tables_of_players(engine: Engine) -> list[Rows]:
    """Nobody who never counted has these tables."""
    names = set(inspect(engine).get_table_names())
    return [table for table in OF_PLAYERS if table.name in names]


def _player(table: Rows, subject: Subject) -> ColumnElement[bool]:
    ours = table.c.player_id == subject.id
    return ours if subject.game is None else and_(ours, table.c.game == subject.game)

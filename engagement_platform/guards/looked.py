"""Up to which version each table's log has been looked at for foreign commits, and those that were found.

Kept in the stores, so that a look reads only what came since the last one. What is foreign is `writers`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import BigInteger, Column, ColumnElement, Engine, MetaData, String, Table, Text, and_, select

from engagement_platform.engine.database import ensure_tables, reading, writing
from engagement_platform.engine.schema import UtcTimestamp

METADATA = MetaData()

LOG_LOOK = Table(
    "log_look",
    METADATA,
    Column("place", String(1024), primary_key=True),
    Column("table_id", String(64), nullable=False),
    Column("version", BigInteger, nullable=False),
)

FOREIGN_COMMIT = Table(
    "foreign_commit",
    METADATA,
    Column("place", String(1024), primary_key=True),
    Column("table_id", String(64), primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("operation", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("at", UtcTimestamp),
    Column("found_ts", UtcTimestamp, nullable=False),
)

_LOCK = "guards/log_look"


@dataclass(frozen=True)
class Look:
    """One table, and the newest version that was looked at."""

    place: str
    """Where the table is."""
    table_id: str
    """Of Delta: another table in the same place has another one, and is looked at anew."""
    version: int


@dataclass(frozen=True)
class Kept:
    """A foreign commit as it is kept."""

    place: str
    table_id: str
    version: int
    operation: str
    engine: str
    at: datetime | None
    found_ts: datetime


class LookStore:
    """What was looked at, and found. Raises StoresUnavailable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        ensure_tables(engine, METADATA)

    def looks(self) -> Mapping[str, Look]:
        """The last look at each table, by its place."""
        with reading(self._engine) as connection:
            return {row.place: Look(*row) for row in connection.execute(select(LOG_LOOK))}

    def found(self) -> Sequence[Kept]:
        """Every foreign commit that is kept, in no order."""
        columns = [FOREIGN_COMMIT.c[field.name] for field in fields(Kept)]
        with reading(self._engine) as connection:
            return [Kept(*row) for row in connection.execute(select(*columns))]

    def keep(self, looks: Iterable[Look], found: Collection[Kept], settled: Iterable[Kept] = ()) -> None:
        """Put what was looked at and what was found there, in one transaction; two who look at once find the same.

        settled: found before, and nobody is told of it any more. Of a table that takes another one's place, what was
        found in that one goes.
        """
        with writing(self._engine, _LOCK) as connection:
            for look in looks:
                connection.execute(LOG_LOOK.delete().where(LOG_LOOK.c.place == look.place))
                connection.execute(LOG_LOOK.insert().values(**vars(look)))
                gone = (FOREIGN_COMMIT.c.place == look.place) & (FOREIGN_COMMIT.c.table_id != look.table_id)
                connection.execute(FOREIGN_COMMIT.delete().where(gone))
            for one in (*found, *settled):
                connection.execute(FOREIGN_COMMIT.delete().where(_key(one)))
            for one in found:
                connection.execute(FOREIGN_COMMIT.insert().values(**vars(one)))


def _key(of: Kept) -> ColumnElement[bool]:
    return and_(*(FOREIGN_COMMIT.c[name] == getattr(of, name) for name in ("place", "table_id", "version")))

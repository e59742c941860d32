"""The tables of alerts and of messages about them, in the stores' database. Rows are made by `store` and `outbox`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Engine, Index, Integer, MetaData, String, Table, Text

from engagement_platform.engine.database import writing
from engagement_platform.engine.schema import JsonObject, UtcTimestamp

# Of its own and not among the stores' tables: whoever looks at alerts makes them, in older stores too.
METADATA = MetaData()

ALERT = Table(
    "alert",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("labels", JsonObject, nullable=False),
    Column("times", BigInteger, nullable=False),
    Column("since_ts", UtcTimestamp, nullable=False),
    Column("seen_ts", UtcTimestamp, nullable=False),
    Column("told_ts", UtcTimestamp),
    # The worst that was told since it began.
    Column("told_severity", String(16)),
    Column("recovered_ts", UtcTimestamp),
)

ALERT_MESSAGE = Table(
    "alert_message",
    METADATA,
    # SQLite numbers rows by itself only for a column that it calls INTEGER.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("target", String(64), nullable=False),
    Column("key", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("title", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("created_ts", UtcTimestamp, nullable=False),
    Column("not_before_ts", UtcTimestamp, nullable=False),
    # Somebody is sending it; when that is over and nothing was said, they died.
    Column("claimed_until_ts", UtcTimestamp),
    Column("attempts", Integer, nullable=False),
    # Why the last attempt failed.
    Column("reason", Text),
    # How it ended; null while it waits.
    Column("outcome", String(16)),
    Column("settled_ts", UtcTimestamp),
    Index("alert_message_waiting", "target", "outcome", "number"),
    Index("alert_message_by_key", "key", "outcome"),
    sqlite_autoincrement=True,
)


def make_tables(engine: Engine) -> None:
    """Create the tables where they are not there yet. Raises StoresUnavailable."""
    with writing(engine, "alert-schema") as connection:
        METADATA.create_all(connection)

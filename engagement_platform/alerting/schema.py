"""The tables of alerts and of what each URL was sent about them, in the stores' database. `store` makes the rows."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, String, Table, Text

from engagement_platform.engine.database import writing
from engagement_platform.engine.schema import JsonObject, UtcTimestamp

# Of its own and not among the stores' tables: whoever looks at alerts makes them.
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
    Column("recovered_ts", UtcTimestamp),
    # What is said of the recovery.
    Column("recovery", Text, nullable=False),
)

# What a URL was sent last about an alert.
ALERT_SENT = Table(
    "alert_sent",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("target", String(64), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("sent_ts", UtcTimestamp, nullable=False),
)

ALERT_TARGET = Table(
    "alert_target",
    METADATA,
    Column("target", String(64), primary_key=True),
    # Somebody is sending; when that is over and nothing was written, they died.
    Column("claimed_until_ts", UtcTimestamp),
    Column("not_before_ts", UtcTimestamp),
    # In a row that failed, and why the last one did.
    Column("failures", Integer, nullable=False),
    Column("reason", Text),
    # Messages of the minute that began then.
    Column("minute_ts", UtcTimestamp, nullable=False),
    Column("messages", Integer, nullable=False),
)


def make_tables(engine: Engine) -> None:
    """Create the tables where they are not there yet. Raises StoresUnavailable."""
    with writing(engine, "alert-schema") as connection:
        METADATA.create_all(connection)

"""The tables of personal data in the stores' database: keys, tombstones, erasures that are under way."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table

from engagement_platform.engine.schema import UtcTimestamp

METADATA = MetaData()

# Keys that are nobody's: what makes references, hashes, spool keys and signatures.
PII_SECRET = Table(
    "pii_secret",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("master_version", String(2048), nullable=False),
    Column("wrapped", LargeBinary, nullable=False),
)

PII_KEY = Table(
    "pii_key",
    METADATA,
    Column("game", String(256), primary_key=True),
    Column("subject_ref", String(64), primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("master_version", String(2048), nullable=False, index=True),
    Column("wrapped", LargeBinary, nullable=False),
    Column("created_ts", UtcTimestamp, nullable=False),
)

# Tombstones: players of a game, persons and engagements of an organization ("": of all), keys of an entity. By keyed
# hash, so the table does not name whom it is about.
PII_ERASED = Table(
    "pii_erased",
    METADATA,
    Column("kind", String(128), primary_key=True),
    Column("within", String(1024), primary_key=True),
    Column("ref", String(64), primary_key=True),
    # Of the stores, as batches have one: tells whether a batch began before or after.
    Column("sequence", BigInteger, nullable=False),
)

# Erasures of these tables that are asked for and not finished: who it is, encrypted. Emptied in the end.
PII_ERASURE = Table(
    "pii_erasure",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("subject_ref", String(64), nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

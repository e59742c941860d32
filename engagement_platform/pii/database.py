"""Tables of the stores' database for personal data: wrapped keys and tombstones. What they mean is `keys`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Engine, LargeBinary, MetaData, String, Table

from engagement_platform.microbatch.database import UtcTimestamp, ensure_tables, open_engine

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

# game "": in all games. The reference is a keyed hash, so the table does not name whom it is about.
PII_TOMBSTONE = Table(
    "pii_tombstone",
    METADATA,
    Column("game", String(256), primary_key=True),
    Column("subject_ref", String(64), primary_key=True),
    Column("erased_ts", UtcTimestamp, nullable=False),
)


def open_pii(url: str) -> Engine:
    """Connect to the stores, with these tables. Raises what `open_engine` raises."""
    engine = open_engine(url)
    ensure_tables(engine, METADATA)
    return engine

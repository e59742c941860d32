"""The tables of the stores, declared once, in column types that mean the same on SQLite and PostgreSQL.

What the rows mean is `stores` (checkpoints, batch metadata), `cursors` and `lease`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import BigInteger, Column, Dialect, Index, Integer, MetaData, String, Table, Text
from sqlalchemy.types import TypeDecorator


class UtcTimestamp(TypeDecorator[datetime]):
    """A time with microseconds as ISO 8601 text of fixed width in UTC: sorts as it reads, the same on both databases.

    Naive times are refused, because their zone would be a guess.
    """

    impl = String(32)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a zone cannot be stored: {value}")
        return value.astimezone(UTC).isoformat(timespec="microseconds")

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else datetime.fromisoformat(value)


class JsonObject(TypeDecorator[Mapping[str, object]]):
    """A JSON object as text with sorted keys. NaN is refused; PostgreSQL's own json type would refuse it later."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, object] | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else json.dumps(dict(value), sort_keys=True, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Mapping[str, object] | None:  # noqa: ARG002
        return None if value is None else json.loads(value)


METADATA = MetaData()

SCHEMA = Table("schema_version", METADATA, Column("version", Integer, primary_key=True))

BATCH = Table(
    "batch",
    METADATA,
    Column("job_name", String(256), primary_key=True),
    Column("app_id", String(300), primary_key=True),
    Column("batch_id", BigInteger, primary_key=True),
    # Text sorts @10 before @9, so the number is kept too.
    Column("generation", BigInteger, nullable=False),
    Column("job_state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    # As the commits of the batch carry it.
    Column("manifest", JsonObject, nullable=False),
    Column("ingestion_date", String(10), nullable=False),
    Column("started_ts", UtcTimestamp, nullable=False),
    Column("finished_ts", UtcTimestamp),
    Column("counts", JsonObject, nullable=False),
    Column("details", JsonObject, nullable=False),
    Column("reason", Text),
    Index("batch_newest_first", "job_name", "generation", "batch_id"),
    Index("batch_by_date", "job_name", "ingestion_date"),
    # By the end, too: what is forgotten at night is found without a look at what stays.
    Index("batch_by_state", "job_state", "finished_ts"),
)

BATCH_METADATA = Table(
    "batch_metadata",
    METADATA,
    Column("job_name", String(256), primary_key=True),
    Column("process_name", String(256), primary_key=True),
    Column("app_id", String(300), nullable=False),
    Column("batch_id", BigInteger, nullable=False),
    Column("modified_ts", UtcTimestamp, nullable=False),
    Column("counts", JsonObject, nullable=False),
)

# What those batches of a job come to of which there is no row any more.
FORGOTTEN_BATCHES = Table(
    "forgotten_batches",
    METADATA,
    Column("job_name", String(256), primary_key=True),
    Column("batches", BigInteger, nullable=False),
    Column("counts", JsonObject, nullable=False),
    Column("through", UtcTimestamp, nullable=False),
)

JOB_GENERATION = Table(
    "job_generation",
    METADATA,
    Column("job_name", String(256), primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("app_id", String(300), nullable=False),
)

# One row: the last number that a batch of any job was given.
SEQUENCE = Table(
    "sequence",
    METADATA,
    Column("name", String(16), primary_key=True),
    Column("last", BigInteger, nullable=False),
)

# Application ids that tables hold and these stores did not give out; a reset or a recovery found them.
FOREIGN_APPLICATION = Table(
    "foreign_application",
    METADATA,
    Column("app_id", String(300), primary_key=True),
    Column("job_name", String(256), nullable=False),
)

# A released lease keeps its row (owner null), because its fencing number must never be given out again.
LEASE = Table(
    "lease",
    METADATA,
    Column("name", String(256), primary_key=True),
    Column("owner", String(400)),
    Column("place", String(400)),
    Column("fencing", BigInteger, nullable=False),
    Column("purpose", Text),
    Column("acquired_ts", UtcTimestamp),
    Column("heartbeat_ts", UtcTimestamp),
    Column("expires_ts", UtcTimestamp),
)

LEASE_WAITER = Table(
    "lease_waiter",
    METADATA,
    # SQLite numbers rows by itself only for a column that it calls INTEGER.
    Column("ticket", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("name", String(256), nullable=False, index=True),
    Column("owner", String(400), nullable=False),
    Column("place", String(400), nullable=False),
    Column("purpose", Text, nullable=False),
    Column("since_ts", UtcTimestamp, nullable=False),
    Column("heartbeat_ts", UtcTimestamp, nullable=False),
    sqlite_autoincrement=True,
)

# Of every lake that is read with these stores: a consumer's name is unique within one.
CONSUMER = Table(
    "consumer",
    METADATA,
    Column("lake", String(1024), primary_key=True),
    Column("name", String(256), primary_key=True),
    Column("position", JsonObject, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("rows_read", BigInteger, nullable=False),
    Column("started_ts", UtcTimestamp, nullable=False),
    Column("committed_ts", UtcTimestamp, nullable=False),
)

STREAM_CHECKPOINT = Table(
    "stream_checkpoint",
    METADATA,
    Column("location", String(1024), primary_key=True),
    Column("stream", String(256), nullable=False, unique=True),
    Column("claimed_ts", UtcTimestamp, nullable=False),
)

STREAM_BATCH = Table(
    "stream_batch",
    METADATA,
    Column("stream", String(256), primary_key=True),
    Column("batch_id", BigInteger, nullable=False),
    Column("recorded_ts", UtcTimestamp, nullable=False),
)

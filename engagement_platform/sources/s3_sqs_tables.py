"""Tables of what the source knows about its streams. Reading and writing them is `s3_sqs_state`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, Text

# Of its own and not among the stores' tables: nobody who does without the source gets them.
METADATA = MetaData()

FILE = Table(
    "s3_sqs_file",
    METADATA,
    Column("stream", String(256), primary_key=True),
    Column("identity", String(64), primary_key=True),
    # Order of arrival; with it a batch that is planned again after a crash holds the same files.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), nullable=False),
    Column("batch", BigInteger),
    Column("bucket", String(255), nullable=False),
    Column("key", Text, nullable=False),
    Column("version_id", Text),
    Column("etag", Text),
    Column("size", BigInteger),
    Column("event_time", Text),
    Column("sequencer", Text),
    Column("sent_ms", BigInteger, nullable=False),
    Column("seen_s", BigInteger, nullable=False),
    Index("s3_sqs_file_by_batch", "stream", "batch", "number"),
    Index("s3_sqs_file_by_number", "stream", "number"),
    Index("s3_sqs_file_by_age", "stream", "seen_s"),
)

MESSAGE = Table(
    "s3_sqs_message",
    METADATA,
    Column("stream", String(256), primary_key=True),
    Column("message_id", String(128), primary_key=True),
    Column("receipt", Text, nullable=False),
)

NAMED = Table(
    "s3_sqs_named",
    METADATA,
    Column("stream", String(256), primary_key=True),
    Column("message_id", String(128), primary_key=True),
    Column("identity", String(64), primary_key=True),
)

REWRITTEN = Table(
    "s3_sqs_rewritten",
    METADATA,
    Column("identity", String(64), primary_key=True),
    Column("event_time", Text, nullable=False),
)
"""When objects arrived that were written anew since: S3 says when they were written last."""

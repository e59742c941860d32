"""The ingest server."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field

from engagement_platform.settings.section import Section

_KIB, _MIB, _GIB = 1024, 1024**2, 1024**3


class IngestServerSettings(Section):
    """The HTTP server that games send their events to."""

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. It speaks plain HTTP: for other machines put a proxy with TLS before it.",
    )
    port: int = Field(default=8088, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    sink: Literal["local", "s3", "firehose"] = Field(
        default="local",
        description="Where clean events go: `local` gzip objects in `folder`, `s3` the same in `games.bucket`, "
        "`firehose` the delivery stream `stream`.",
    )
    folder: Path | None = Field(default=None, description="Root of the sink `local`. Not set: <home>/games.")
    stream: str | None = Field(default=None, description="Delivery stream of Firehose for the sink `firehose`.")
    spool: Path | None = Field(
        default=None,
        description="Folder in which acknowledged events wait for the sink; on a disk that survives the machine's "
        "crash. Not set: <home>/ingest/spool.",
    )
    segment_bytes: int = Field(
        default=8 * _MIB,
        ge=1,
        description="A segment of the spool, which makes one object, is closed at this size before compression.",
    )
    segment_age: timedelta = Field(
        default=timedelta(seconds=60),
        description="A segment is closed at this age, and at the end of the hour. Shorter: events are queryable "
        "sooner, from more and smaller objects (Firehose's own default is 300 s).",
    )
    max_spool_bytes: int = Field(
        default=2 * _GIB,
        ge=1,
        description="More bytes waiting for the sink than this, and requests are answered with 503 until it catches "
        "up; 2 GiB are hours of a busy game.",
    )
    max_body_bytes: int = Field(default=1 * _MIB, ge=1, description="Largest body of a request as it is sent: 413.")
    max_inflated_bytes: int = Field(
        default=8 * _MIB, ge=1, description="Largest body after decompression: 413. No more than that is inflated."
    )
    max_events: int = Field(default=500, ge=1, description="Most events in a request: 413 (Firehose's own limit).")
    max_event_bytes: int = Field(
        default=64 * _KIB, ge=2, le=1000 * _KIB, description="A larger event is refused; Firehose takes 1,000 KiB."
    )
    max_depth: int = Field(default=16, ge=1, le=100, description="An event that is nested deeper is refused.")
    max_ahead: timedelta = Field(
        default=timedelta(days=1), description="An event from further ahead of the server's clock is refused."
    )
    rate_events: float = Field(
        default=5_000, gt=0, description="Events a second that a game may send for long; beyond, 429 with Retry-After."
    )
    burst_events: int = Field(default=20_000, ge=1, description="Events that a game may send at once after a pause.")
    key_refresh: timedelta = Field(
        default=timedelta(seconds=5), description="A new or revoked key is known to the server after so long."
    )
    refused_for: timedelta = Field(
        default=timedelta(days=30), description="Refused events are kept, encrypted, for so long."
    )
    retry_after: timedelta = Field(
        default=timedelta(seconds=5), description="Pause before a sink that failed is tried again; doubled up to 60 s."
    )
    stop_within: timedelta = Field(
        default=timedelta(seconds=10),
        description="When told to stop, the server delivers what is in the spool for at most so long; the rest is "
        "delivered by its next start.",
    )

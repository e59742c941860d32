"""Clients of AWS, and what their errors say. Credentials come from where AWS's own tools look."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from engagement_platform.sources.s3_sqs_options import S3SqsOptions


def client(service: Literal["s3", "sqs"], options: S3SqsOptions) -> Any:
    """A client that may be used by many threads at once. Opens no connection yet."""
    config = Config(
        connect_timeout=10,
        # Longer than the longest poll.
        read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": 6},
        max_pool_connections=max(10, options.fetch_parallelism * 2),
        # Emulators and most stores that are not AWS know no host name for each bucket.
        s3={"addressing_style": "path"} if options.endpoint else None,
    )
    return _session(options.region).client(service, endpoint_url=options.endpoint, config=config)


def impatient_client(service: str, *, read_timeout: int) -> Any:
    """A client whose calls end soon, with the region and endpoint of the environment. read_timeout: seconds."""
    config = Config(connect_timeout=5, read_timeout=read_timeout, retries={"mode": "standard", "total_max_attempts": 4})
    return boto3.client(service, config=config)


@cache
def _session(region: str | None) -> Any:
    # One for a process: it reads descriptions of the services from files, which takes longer than a call to them.
    return boto3.session.Session(region_name=region)


def reason_of(failed: BotoCoreError | ClientError) -> str:
    """The code and words of a failed call, without what it was called with."""
    if isinstance(failed, ClientError):
        error = failed.response.get("Error", {})
        return f"{error.get('Code', 'unknown')}: {error.get('Message', '')}".rstrip(": ").rstrip(".")
    return str(failed).rstrip(".")

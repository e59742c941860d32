"""Reading objects once more, by prefix or day of arrival: lost rows come back, and nothing that stands is doubled.

The only place that lists a bucket, since somebody asked for it by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from engagement_platform.errors import PlatformError
from engagement_platform.games.job import REPLAY_GAME_EVENTS
from engagement_platform.games.objects import ReplaySource, options_of
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_sqs_aws import client, said
from engagement_platform.sources.s3_sqs_queue import Queue


class NoGameBucket(PlatformError):
    """A replay without a bucket to replay from."""

    def __init__(self) -> None:
        super().__init__(
            "No bucket of game events is configured. Nothing was read. Set ENGAGEMENT_PLATFORM_GAMES__BUCKET."
        )


class BucketNotListed(PlatformError):
    """S3 did not say which objects there are."""

    def __init__(self, bucket: str, prefix: str, reason: str) -> None:
        super().__init__(
            f"The objects of s3://{bucket}/{prefix} cannot be listed: {reason}. Nothing was read. Check the name, the "
            "region and the right s3:ListBucket of these credentials."
        )


class NothingToReplay(PlatformError):
    """No object has the prefix."""

    def __init__(self, bucket: str, prefix: str) -> None:
        super().__init__(
            f"There is no object at s3://{bucket}/{prefix}. Nothing was read. A prefix is the beginning of a key, such "
            "as events/2026/11/22/ for a day of arrival."
        )


def folder_of(day: date, settings: Settings) -> str:
    """The prefix of what arrived on a UTC day."""
    return f"{settings.games.prefix}{day:%Y/%m/%d}/"


def replay_source(
    settings: Settings, prefixes: Sequence[str], *, name: str = REPLAY_GAME_EVENTS, may_be_empty: bool = False
) -> ReplaySource:
    """The objects below these prefixes, in the order of their arrival. Listed when the first batch is planned.

    settings: those of the feed. name: of the replay.
    Raises NoGameQueue, NoGameBucket; planning raises BucketNotListed and, unless may_be_empty, NothingToReplay.
    """
    if settings.games.bucket is None:
        raise NoGameBucket
    queue = Queue(options_of(settings))
    try:
        dead_letters = queue.dead_letter_queue()
    finally:
        queue.close()

    def listed() -> list[S3File]:
        found = {file.key: file for prefix in prefixes for file in objects_below(settings, prefix)}
        if not found and not may_be_empty:
            raise NothingToReplay(settings.games.bucket or "", ", ".join(prefixes))
        return sorted(found.values(), key=lambda file: (file.event_time or "", file.key))

    return ReplaySource(name, settings, listed, dead_letters)


def objects_below(settings: Settings, prefix: str) -> list[S3File]:
    """Objects whose keys begin so, as their announcements named them. Raises BucketNotListed."""
    bucket = settings.games.bucket or ""
    try:
        pages = client("s3", options_of(settings)).get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix
        )  # fmt: skip
        there = [entry for page in pages for entry in page.get("Contents", ())]
    except ClientError as failed:
        raise BucketNotListed(bucket, prefix, said(failed)) from failed
    except BotoCoreError as failed:
        raise BucketNotListed(bucket, prefix, said(failed)) from failed
    return [_told(bucket, entry) for entry in there if not (entry["Key"].endswith("/") and not entry["Size"])]


def _told(bucket: str, entry: Mapping[str, Any]) -> S3File:
    etag, arrived = str(entry["ETag"]).strip('"'), entry["LastModified"].isoformat()
    return S3File(bucket=bucket, key=entry["Key"], etag=etag, size=entry["Size"], event_time=arrived)

"""Reading objects once more, by prefix or day of arrival: lost rows come back, and nothing that stands is doubled.

The only place that lists a bucket, since an operator asks for it by hand; erasures list by it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from engagement_platform.engine.model import Offsets
from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.games.job import REPLAY_GAME_EVENTS
from engagement_platform.pipelines.games.objects import BATCH, ReplaySource, options_of, state_of
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_events import S3File, is_folder_marker
from engagement_platform.sources.s3_sqs_aws import client, reason_of
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


class ObjectsNotKnown(PlatformError):
    """Which objects some batches read is no longer known to the last one."""

    def __init__(self, job: str, after: int, days: int) -> None:
        super().__init__(
            f"Which objects {job} read after its batch {after} of objects is remembered for {days} days only. Give up "
            "what came since, and then read what is still in the bucket with `engagement-platform replay --prefix`: "
            "rows that stand are recognized."
        )


class ObjectsGone(PlatformError):
    """Objects that would have to be read again are not in the bucket any more, or hold something else."""

    def __init__(self, missing: Sequence[S3File]) -> None:
        self.missing = tuple(missing)
        super().__init__(
            f"{len(missing)} objects are gone or were overwritten, the first is {missing[0].shown}; their rows would "
            "be lost. Put them back, or give up what came since, and then read what is still in the bucket with "
            "`engagement-platform replay --prefix`: rows that stand are recognized."
        )


@dataclass(frozen=True)
class LandedObjects:
    """What the job of a feed has read, as its state remembers it: whether that can be read again. Offsets are its."""

    job: str
    settings: Settings
    """Those of the feed."""

    def check(self, start: Offsets, end: Offsets) -> None:
        """Look whether each object of a range is there as it was, by listing the folders that they are in.

        Raises NoGameQueue, NoGameBucket, ObjectsNotKnown, ObjectsGone, BucketNotListed, StoresUnavailable.
        """
        bucket = self.settings.games.bucket
        if bucket is None:
            raise NoGameBucket
        state = state_of(self.settings)
        if not state.remembers_after(self.job, start[BATCH]):
            raise ObjectsNotKnown(self.job, start[BATCH], options_of(self.settings).remember_days)
        files = [file for file in state.files(self.job, start[BATCH], end[BATCH]) if file.bucket == bucket]
        folders = sorted({file.key[: file.key.rfind("/") + 1] for file in files})
        there = {file.key: file.etag for folder in folders for file in objects_below(self.settings, folder)}
        gone = [file for file in files if file.key not in there or (file.etag or there[file.key]) != there[file.key]]
        if gone:
            raise ObjectsGone(gone)

    def size(self, start: Offsets, end: Offsets) -> int:
        """How many objects are known of a range. Raises NoGameQueue, StoresUnavailable."""
        return len(state_of(self.settings).files(self.job, start[BATCH], end[BATCH]))


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
        below = (file for prefix in prefixes for file in objects_below(settings, prefix))
        found = {file.key: file for file in below if not is_folder_marker(file.key, file.size)}
        if not found and not may_be_empty:
            raise NothingToReplay(settings.games.bucket or "", ", ".join(prefixes))
        return sorted(found.values(), key=lambda file: (file.event_time or "", file.key))

    return ReplaySource(name, settings, listed, dead_letters)


def objects_below(settings: Settings, prefix: str) -> list[S3File]:
    """Objects whose keys begin so, as their announcements named them. Raises BucketNotListed."""
    bucket = settings.games.bucket or ""
    try:
        listing = client("s3", options_of(settings)).get_paginator("list_objects_v2")
        pages = listing.paginate(Bucket=bucket, Prefix=prefix)
        there = [entry for page in pages for entry in page.get("Contents", ())]
    except (BotoCoreError, ClientError) as failed:
        raise BucketNotListed(bucket, prefix, reason_of(failed)) from failed
    found = [_listed_file(bucket, entry) for entry in there if not (entry["Key"].endswith("/") and not entry["Size"])]
    return state_of(settings).arrived(found)


def _listed_file(bucket: str, entry: Mapping[str, Any]) -> S3File:
    etag, arrived = str(entry["ETag"]).strip('"'), entry["LastModified"].isoformat()
    return S3File(bucket=bucket, key=entry["Key"], etag=etag, size=entry["Size"], event_time=arrived)

"""Takes raw events of an erased player out of the objects in a feed's bucket: each is written anew under its name.

Found by a listing, since an erasure is rare. Tables are `erasing`; objects of the sink `local` are the ingest server's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, cast

from botocore.exceptions import BotoCoreError, ClientError

from engagement_platform.engine.database import open_engine, utc_now
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.errors import PlatformError
from engagement_platform.pii.erasure import Erasable, Subject, is_event_of, nobody_writes
from engagement_platform.pipelines.games.backlog import depth
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.games.objects import BATCH, options_of, state_of
from engagement_platform.pipelines.games.replay import objects_below
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_compression import BROKEN, compressing, decompressed
from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_sqs_aws import client, reason_of
from engagement_platform.sources.s3_sqs_state import S3SqsState

_LONGEST_LINE = 64 * 1024 * 1024
_IN_MEMORY_BYTES = 64 * 1024 * 1024
"""A larger object goes by way of a temporary file."""
_ANNOUNCED_WITHIN = timedelta(hours=1)
"""S3 announces an object within seconds, "on rare occasions" later (AWS, "Amazon S3 Event Notifications")."""
_LONGEST_IN_QUEUE = timedelta(days=14)
"""SQS keeps no message longer."""
_KEPT_HEADERS = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentType", "Metadata", "StorageClass")
_ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")
"""Storage classes whose objects can be read once they are restored only: what is written anew has to be looked at."""


class LineTooLong(OSError):
    """A line of an object is longer than any that is read; a small object may hold one that no memory does."""


class RawObjectsNotErased(PlatformError):
    """S3 refused what an erasure needs."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        super().__init__(
            f"Raw events at {url} cannot be erased: {reason}. Keys are destroyed, and what the erasure came to before "
            "is done. It needs s3:ListBucket, s3:GetObject and s3:PutObject, in a bucket with versions also "
            "s3:ListBucketVersions and s3:DeleteObjectVersion. Grant them and make the same call again, or have "
            "objects left alone, and named in the receipt, with ENGAGEMENT_PLATFORM_PII__RAW_OBJECTS=leave."
        )


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines with their ends. Raises LineTooLong."""
    while line := stream.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise LineTooLong
        yield line


@dataclass
class RawObjects(Erasable):
    """The objects of a feed. settings: those of the feed.

    Lines keep their numbers, by which rows and refused lines name them: an erased one is blank from then on. What is
    announced and not read yet stays as it is, since nobody could say that its other lines were read.
    """

    settings: Settings
    feed: Feed
    objects: list[str] = field(default_factory=list)
    stays: list[str] = field(default_factory=list)
    _seen: dict[str, S3File] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.name = f"s3://{self.settings.games.bucket}/{self.settings.games.prefix}"

    @property
    def is_reached(self) -> bool:
        """Whether an erasure looks into them: who reads them has to be known."""
        games = self.settings.games
        return None not in (games.bucket, games.queue_url) and self.settings.pii.raw_objects == "rewrite"

    def erase(self, subject: Subject) -> int:
        """Write objects with the player's events anew; how many events. Reads every object of the prefix.

        Raises RawObjectsNotErased, BucketNotListed, QueueUnavailable, LeaseUnavailable, OthersBatchUnfinished; the same
        call does the rest.
        """
        gone, self._seen = 0, {}
        with nobody_writes(self.settings, (self.feed.quarantine.name,)) as (lease,):
            unfinished = self._state.being_rewritten(self.feed.job)
            for file in self._listed():
                lease.check()
                found, stays = self._look(file, subject)
                # What an erasure that ended has put there, perhaps with former versions of it.
                if not found and not stays and file.key not in unfinished:
                    continue
                self._seen[file.key] = file
                if not stays and self._is_unread(file):
                    stays.append(
                        f"{file.shown} was not read yet. `engagement-platform run {self.feed.job} --until-idle`, which "
                        "drops the events; then erase again."
                    )
                if not stays:
                    with _readable(file.shown, stays):
                        self._write_anew(file, subject)
                        self.objects.append(file.url)
                        gone += found
                self.stays += stays
        return gone

    def left(self, subject: Subject) -> int:
        """How many events of the player there are, one at least in an object that cannot be read.

        Right after an erasure only in the objects that had any.
        """
        files = self._listed() if self._seen is None else [replace(file, etag=None) for file in self._seen.values()]
        return sum(max(found, len(stays)) for found, stays in (self._look(file, subject) for file in files))

    def _listed(self) -> list[S3File]:
        return objects_below(self.settings, self.settings.games.prefix)

    def _look(self, file: S3File, subject: Subject) -> tuple[int, list[str]]:
        """(events of the player, why the object stays where it cannot be read)."""
        is_of, found, stays = is_event_of(subject, self.settings), 0, list[str]()
        with _readable(file.shown, stays), self._content(file)[0] as content:
            for line in _lines(decompressed(content, file.key)):
                found += is_of(line)
        return found, stays

    def _content(self, file: S3File) -> tuple[BinaryIO, Mapping[str, Any]]:
        """The object from its beginning, on this machine, and how it was stored."""
        content = cast(BinaryIO, SpooledTemporaryFile(_IN_MEMORY_BYTES))  # noqa: SIM115
        answer = self._s3.get_object(Bucket=file.bucket, Key=file.key)
        copyfileobj(answer["Body"], content, 1024 * 1024)
        content.seek(0)
        kept = {name: answer[name] for name in _KEPT_HEADERS if answer.get(name)}
        return content, {name: value for name, value in kept.items() if value not in _ARCHIVED}

    def _write_anew(self, file: S3File, subject: Subject) -> None:
        is_of = is_event_of(subject, self.settings)
        content, headers = self._content(file)
        with content, cast(BinaryIO, SpooledTemporaryFile(_IN_MEMORY_BYTES)) as made:
            with compressing(made, file.key) as packed:
                for line in _lines(decompressed(content, file.key)):
                    packed.write((b"\n" if line.endswith(b"\n") else b"") if is_of(line) else line)
            size = made.tell()
            made.seek(0)
            # First, so that a process that dies in between leaves an announcement of something that is known.
            self._state.rewriting(self.feed.job, file, self._committed, self.feed.replay_job)
            with _named_if_refused(file.shown):
                done = self._s3.put_object(Bucket=file.bucket, Key=file.key, Body=made, **headers)
        version = done.get("VersionId")
        version = None if version == "null" else version
        if version is not None:
            self._remove_versions_before(file, version)
        # Last, so that the next erasure finds out what was not done to the end.
        now = replace(file, etag=str(done["ETag"]).strip('"'), size=size, version_id=version)
        self._state.rewritten(self.feed.job, now, self.feed.replay_job)

    def _remove_versions_before(self, file: S3File, newest: str) -> None:
        with _named_if_refused(file.shown):
            listing = self._s3.get_paginator("list_object_versions")
            for page in listing.paginate(Bucket=file.bucket, Prefix=file.key):
                for each in page.get("Versions", ()):
                    if each["Key"] == file.key and each["VersionId"] != newest:
                        self._s3.delete_object(Bucket=file.bucket, Key=file.key, VersionId=each["VersionId"])

    def _is_unread(self, file: S3File) -> bool:
        """Whether its other events may still have to be read."""
        known, batch = self._state.batch_of(self.feed.job, file)
        if known:
            return batch is None or batch > self._committed
        age = utc_now() - datetime.fromisoformat(file.event_time or "").astimezone(UTC)
        # Forgotten, or announced and not received. Nobody can look into a queue without taking from it.
        return age < _ANNOUNCED_WITHIN or (age < _LONGEST_IN_QUEUE and self._queue_has_any)

    @cached_property
    def _queue_has_any(self) -> bool:
        now = depth(self.settings)
        return now.visible + now.in_flight > 0

    @cached_property
    def _committed(self) -> int:
        last = CheckpointStore(open_engine(self.settings.store_url)).latest(self.feed.job)
        return 0 if last is None else last.manifest.end[BATCH]

    @cached_property
    def _state(self) -> S3SqsState:
        return state_of(self.settings)

    @cached_property
    def _s3(self) -> Any:
        return client("s3", options_of(self.settings))


@contextmanager
def _named_if_refused(url: str) -> Iterator[None]:
    """Raise RawObjectsNotErased where S3 refuses a call for an object."""
    try:
        yield
    except (BotoCoreError, ClientError) as failed:
        raise RawObjectsNotErased(url, reason_of(failed)) from failed


@contextmanager
def _readable(url: str, stays: list[str]) -> Iterator[None]:
    """Add to `stays` why an object cannot be read, where that ends the block; one that is gone meanwhile is no reason.

    Raises RawObjectsNotErased where S3 does not answer.
    """
    try:
        yield
    except LineTooLong:
        stays.append(
            f"{url} has a line of more than {_LONGEST_LINE} bytes, which is no event, and nobody looks into it. Delete "
            "it; then erase again."
        )
    except BROKEN:
        stays.append(
            f"{url} is damaged, so that it cannot be written anew. Restore it, or delete it; then erase again."
        )
    except ClientError as refused:
        # Of what S3 says the code only: its words may name who asked.
        code = refused.response.get("Error", {}).get("Code", "unknown")
        if code != "NoSuchKey":
            stays.append(
                f"S3 does not hand out {url} ({code}), and it may have more of the player. Restore it, grant "
                "s3:GetObject, or delete it; then erase again."
            )
    except BotoCoreError as failed:
        raise RawObjectsNotErased(url, reason_of(failed)) from failed

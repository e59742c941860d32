"""Where delivered events go: gzip objects of JSON lines in a folder or a bucket, or a delivery stream of Firehose.

Which lines, and when again after a failure, is `delivery`.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from engagement_platform.engine.durable_files import private_folder, write_durably
from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server.spool import Segment, spool_folder
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_sqs_aws import impatient_client, reason_of

EVENTS = "events"
_NOTHING_SENT: tuple[tuple[str, int], int, list[int]] = ("", 0), 0, []
"""(segment as spool and number), place where its next call begins, places of the last call that are not sent."""


class SinkNotConfigured(PlatformError):
    """A sink was chosen without its place."""

    def __init__(self, sink: str, variable: str) -> None:
        super().__init__(
            f"The sink {sink} needs ENGAGEMENT_PLATFORM_{variable}. Nothing was started. Set it, or choose another "
            "with ENGAGEMENT_PLATFORM_INGEST_SERVER__SINK."
        )


class SinkUnavailable(PlatformError):
    """Events could not be delivered."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} did not take events: {why}. They stay in the spool and are delivered again; nothing is lost. "
            "Check that it exists, its region, AWS_ENDPOINT_URL, and the rights."
        )


def object_key(segment: Segment) -> str:
    """Name of a segment's object, as Firehose lays them out: `events/2026/11/22/10/<spool>-<number>.json.gz`.

    The same segment always has the same name. An object that is there stays: a spool that was restored from a copy may
    have less of the segment than was delivered.
    """
    return f"{EVENTS}/{segment.opened:%Y/%m/%d/%H}/{segment.spool}-{segment.number:013d}.json.gz"


def packed(lines: Sequence[bytes]) -> bytes:
    """The content of an object; the same lines make the same bytes."""
    return gzip.compress(b"".join(lines), compresslevel=6, mtime=0)


class FolderSink:
    """Objects as files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, segment: Segment, lines: Sequence[bytes]) -> None:
        """Write the object, whole or not at all, where it is not there yet."""
        path = self.folder / object_key(segment)
        if path.exists():
            return
        try:
            private_folder(path.parent)
            write_durably(path, packed(lines))
        except OSError as error:
            raise SinkUnavailable(str(self.folder), error.strerror or str(error)) from error


class BucketSink:
    """Objects in a bucket of S3."""

    def __init__(self, bucket: str) -> None:
        self.bucket, self._client = bucket, impatient_client("s3", read_timeout=30)

    def put(self, segment: Segment, lines: Sequence[bytes]) -> None:
        """Put the object where it is not there yet."""
        put = {"Bucket": self.bucket, "Key": object_key(segment), "ContentType": "application/gzip", "IfNoneMatch": "*"}
        try:
            self._client.put_object(Body=packed(lines), **put)
        except (BotoCoreError, ClientError) as failed:
            if isinstance(failed, ClientError) and failed.response["Error"]["Code"] == "PreconditionFailed":
                return
            raise SinkUnavailable(f"s3://{self.bucket}", reason_of(failed)) from None


class FirehoseSink:
    """Records of a delivery stream, one for each event.

    `firehose.json` in the folder says how far the last segment is: after a crash, or with a disk that is full, at most
    the last call's records come twice.
    """

    # Limits of PutRecordBatch (AWS, "Amazon Data Firehose Quota").
    RECORDS, BYTES = 500, 4 * 1024 * 1024
    ATTEMPTS, FIRST_PAUSE_S, LONGEST_PAUSE_S = 6, 0.1, 3.2

    def __init__(self, stream: str, folder: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.stream, self._progress, self._sleep = stream, folder / "firehose.json", sleep
        self._client = impatient_client("firehose", read_timeout=30)

    def put(self, segment: Segment, lines: Sequence[bytes]) -> None:
        """Send what was not sent yet; records that Firehose refuses for the moment are sent again, alone."""
        name = [segment.spool, segment.number]
        (of, last), begin, left = json.loads(self._progress.read_text()) if self._progress.exists() else _NOTHING_SENT
        if of == segment.spool and last > segment.number:
            # Sent before; the spool was restored from a copy.
            return
        if [of, last] != name:
            begin, left = 0, []
        left = [place for place in left if lines[place]]
        while left or begin < len(lines):
            if not left:
                left, begin = self._next(lines, begin)
            in_vain, pause = 0, self.FIRST_PAUSE_S
            while left:
                before = len(left)
                # Before, so that nothing is sent where this cannot be written: each attempt would send it again.
                self._note(name, begin, left)
                left, why = self._send(lines, left)
                # As long as some are taken the stream is only slower than we are.
                in_vain = in_vain + 1 if len(left) == before else 0
                if in_vain == self.ATTEMPTS:
                    raise SinkUnavailable(f"The delivery stream {self.stream}", f"{len(left)} records: {why}")
                if left:
                    self._sleep(pause)
                    pause = min(pause * 2, self.LONGEST_PAUSE_S)
        self._note(name, begin, [])

    def _note(self, name: Sequence[object], begin: int, left: list[int]) -> None:
        write_durably(self._progress, json.dumps([name, begin, left]).encode())

    def _next(self, lines: Sequence[bytes], begin: int) -> tuple[list[int], int]:
        """Places of one call, without empty lines, and where the next one begins."""
        taken: list[int] = []
        size, place = 0, begin
        while place < len(lines) and len(taken) < self.RECORDS:
            size += len(lines[place])
            if taken and size > self.BYTES:
                break
            if lines[place]:
                taken.append(place)
            place += 1
        return taken, place

    def _send(self, lines: Sequence[bytes], places: list[int]) -> tuple[list[int], str]:
        """Places that were refused, and why."""
        records = [{"Data": lines[place]} for place in places]
        try:
            answer: dict[str, Any] = self._client.put_record_batch(DeliveryStreamName=self.stream, Records=records)
        except (BotoCoreError, ClientError) as failed:
            raise SinkUnavailable(f"The delivery stream {self.stream}", reason_of(failed)) from None
        codes = zip(places, (each.get("ErrorCode") for each in answer["RequestResponses"]), strict=True)
        refused = {place: code for place, code in codes if code}
        return list(refused), ", ".join(sorted(set(refused.values())))


Sink = FolderSink | BucketSink | FirehoseSink
"""Where events go. `put` delivers all lines of a segment, which end in a line feed; empty ones are erased events.
Delivering a segment again does no harm. Raises SinkUnavailable."""


def open_sink(settings: Settings) -> Sink:
    """The sink that settings name. Raises SinkNotConfigured. Opens no connection yet."""
    server = settings.ingest_server
    if server.sink == "local":
        return FolderSink(local_folder(settings))
    if server.sink == "s3":
        if not settings.games.bucket:
            raise SinkNotConfigured("s3", "GAMES__BUCKET")
        return BucketSink(settings.games.bucket)
    if not server.stream:
        raise SinkNotConfigured("firehose", "INGEST_SERVER__STREAM")
    return FirehoseSink(server.stream, spool_folder(settings))


def local_folder(settings: Settings) -> Path:
    """Root of the sink `local`."""
    return (settings.ingest_server.folder or settings.home / "games").expanduser().absolute()


def objects(folder: Path) -> Iterator[Path]:
    """Every object of the sink `local`."""
    return (path for path in sorted((folder / EVENTS).rglob("*.json.gz")) if not path.name.startswith("."))


def unfinished(folder: Path) -> Iterator[Path]:
    """Files of the sink `local` that are being written, or were when their writer was killed."""
    return (folder / EVENTS).rglob(".*.json.gz.*")

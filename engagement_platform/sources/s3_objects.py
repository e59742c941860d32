"""What one task does: reads its share of a batch's objects by name, the very content that an event announced.

Objects are opened a few ahead and never listed; each that cannot be read becomes a dead letter. What bytes mean is
`s3_formats`.
"""

from __future__ import annotations

import io
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from botocore.exceptions import BotoCoreError, ClientError, FlexibleChecksumError, ParamValidationError
from urllib3.exceptions import HTTPError

from engagement_platform.errors import PlatformError
from engagement_platform.sources.s3_events import Refusal, S3File
from engagement_platform.sources.s3_formats import Bad, Shape, Unreadable, decode
from engagement_platform.sources.s3_sqs_aws import client, reason_of
from engagement_platform.sources.s3_sqs_errors import BadRecords, NoDeadLetterQueue, ObjectNotReadable
from engagement_platform.sources.s3_sqs_options import S3SqsOptions
from engagement_platform.sources.s3_sqs_queue import send_dead_letter

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

# Most objects are small, and most of the time goes into waiting for the first byte.
_AHEAD = 4
_SMALL_BYTES = 4 * 1024 * 1024

_GONE = {
    "NoSuchKey": Refusal("deleted", "The object was deleted before it was read."),
    "NoSuchVersion": Refusal("deleted", "This version of the object was deleted before it was read."),
    "404": Refusal("deleted", "The object was deleted before it was read."),
    "NoSuchBucket": Refusal("no_bucket", "The bucket does not exist."),
    "PreconditionFailed": Refusal("overwritten", "The object was overwritten before it was read."),
    "412": Refusal("overwritten", "The object was overwritten before it was read."),
    "MethodNotAllowed": Refusal("deleted", "This version of the object is a delete marker."),
    "InvalidArgument": Refusal("no_version", "S3 cannot have a version of this name."),
    "KeyTooLongError": Refusal("bad_key", "S3 cannot have a key of this length."),
    "InvalidBucketName": Refusal("no_bucket", "S3 cannot have a bucket of this name."),
    "InvalidObjectState": Refusal("archived", "The object lies in an archive and has to be restored first."),
}


_NOT_THE_OBJECT = frozenset(
    {
        *("ExpiredToken", "InvalidAccessKeyId", "InvalidSecurity", "InvalidToken", "NotSignedUp", "RequestExpired"),
        *("RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired", "UnrecognizedClientException"),
        *("RequestLimitExceeded", "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"),
        *("408", "429"),
    }
)
"""Refusals that are about the caller, its credentials or clock, whatever it asks for."""
_NO_OBJECT = "engagement-platform/no-such-object"


class Gone(Exception):
    """The content that an event announced is not there any more."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


class Objects:
    """Reads objects, for one task."""

    def __init__(self, options: S3SqsOptions) -> None:
        self._s3: Any = client("s3", options)
        self._buckets = options.buckets

    def each(self, files: Sequence[S3File]) -> Iterator[tuple[S3File, Callable[[], BinaryIO]]]:
        """Files in order, each with what opens it: small ones are fetched while those before are being read.

        Opening raises Gone, Unreadable or ObjectNotReadable.
        """
        ahead: deque[Future[BinaryIO | None]] = deque()
        small = [file for file in files if file.size is not None and file.size <= _SMALL_BYTES]
        remaining = iter(small)
        with ThreadPoolExecutor(_AHEAD, "s3-sqs-fetch") as fetchers:
            try:
                for file in files:
                    if file.size is None or file.size > _SMALL_BYTES:
                        yield file, partial(self._open, file)
                        continue
                    while len(ahead) < _AHEAD and (following := next(remaining, None)) is not None:
                        ahead.append(fetchers.submit(self._fetch, following))
                    yield file, partial(self._fetched, ahead.popleft(), file)
            finally:
                fetchers.shutdown(wait=False, cancel_futures=True)

    def _fetched(self, ahead: Future[BinaryIO | None], file: S3File) -> BinaryIO:
        return ahead.result() or self._open(file)

    def _fetch(self, file: S3File) -> BinaryIO | None:
        """A small object whole; None where there is more of it than its announcement names."""
        with io.BufferedReader(cast(Any, self._open(file))) as opened:
            content = opened.read(_SMALL_BYTES + 1)
        return io.BytesIO(content) if len(content) <= _SMALL_BYTES else None

    def _open(self, file: S3File) -> BinaryIO:
        content: dict[str, str] = {}
        if file.version_id:
            content["VersionId"] = file.version_id
        elif file.etag:
            # Otherwise an object that is overwritten between its event and now, or between two attempts at a batch,
            # would be read as what it is by then.
            content["IfMatch"] = f'"{file.etag}"'
        try:
            answer = self._s3.get_object(Bucket=file.bucket, Key=file.key, **content)
        except ClientError as failed:
            code = failed.response.get("Error", {}).get("Code", "")
            if (refusal := _GONE.get(code)) is not None:
                raise Gone(refusal) from None
            if _is_about_what_was_asked(failed) and self._is_refused_alone(file):
                raise Unreadable(f"S3 refuses the object: {reason_of(failed)}") from None
            raise ObjectNotReadable(file.shown, reason_of(failed)) from failed
        except ParamValidationError:
            raise Gone(Refusal("bad_name", "S3 cannot have an object of this name.")) from None
        except BotoCoreError as failed:
            raise ObjectNotReadable(file.shown, reason_of(failed)) from failed
        return cast(BinaryIO, _Body(answer["Body"], file))

    def _is_refused_alone(self, file: S3File) -> bool:
        """Whether a refusal is about this object, and not about every object of a bucket that the stream is for.

        Asks for an object that is not there: "not found" says that the bucket can be read. A bucket that nobody named
        in the option buckets belongs to another stream.
        """
        if file.bucket not in self._buckets:
            return True
        try:
            self._s3.get_object(Bucket=file.bucket, Key=_NO_OBJECT)
        except ClientError as failed:
            return failed.response.get("Error", {}).get("Code") in _GONE
        except BotoCoreError:
            return False
        return True


class _Body(io.RawIOBase):
    """botocore's stream as a file of Python's."""

    def __init__(self, body: Any, file: S3File) -> None:
        self._body, self._file = body, file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._body.read(len(buffer))
        except FlexibleChecksumError:
            raise Unreadable("its content has another checksum than S3 says") from None
        except BotoCoreError as failed:
            raise ObjectNotReadable(self._file.shown, reason_of(failed)) from failed
        except (OSError, HTTPError) as failed:
            # Of a connection; botocore passes some on as they are.
            raise ObjectNotReadable(self._file.shown, type(failed).__name__) from failed
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._body.close()
        super().close()


def _is_about_what_was_asked(failed: ClientError) -> bool:
    """Whether S3 refuses this request (4xx) for what it asks, such as an object under a key of its sender's."""
    status = failed.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return 400 <= status < 500 and failed.response.get("Error", {}).get("Code") not in _NOT_THE_OBJECT


def share_out(files: Sequence[S3File], tasks: int) -> list[tuple[S3File, ...]]:
    """Files in at most so many groups of about equal bytes, largest first; the same files always fall the same way."""
    # An object costs a request beside its bytes: about what 256 KiB take (a guess).
    groups: list[list[S3File]] = [[] for _ in range(min(tasks, len(files)))]
    loads = [0] * len(groups)
    for file in sorted(files, key=lambda file: (-(file.size or 0), file.bucket, file.key, file.version_id or "")):
        lightest = loads.index(min(loads))
        groups[lightest].append(file)
        loads[lightest] += (file.size or 0) + 256 * 1024
    return [tuple(group) for group in groups]


def read_files(files: Sequence[S3File], shape: Shape, dead_letters: str | None) -> Iterator[pa.RecordBatch]:
    """The records of all files, batch by batch. dead_letters: URL of the queue for what cannot be read, or None.

    Raises ObjectNotReadable, NoDeadLetterQueue, BadRecords (badRecords = fail), QueueUnavailable.
    """
    options = shape.options

    def bury(file: S3File, refusal: Refusal) -> None:
        if dead_letters is None:
            raise NoDeadLetterQueue(file.shown, refusal.sentence)
        send_dead_letter(client("sqs", options), dead_letters, file.as_event(), [refusal], file.shown)

    def refuse(file: S3File, refusal: Refusal) -> None:
        if options.bad_records == "fail":
            raise BadRecords(file.shown, refusal.sentence)
        bury(file, refusal)

    if options.buckets:
        # Remembered from before the option named its buckets; asking for one may be what a stream ended for.
        for file in files:
            if file.bucket not in options.buckets:
                bury(file, Refusal("other_bucket", "The object is in a bucket that the option buckets does not allow."))
        files = [file for file in files if file.bucket in options.buckets]
    for file, opening in Objects(options).each(files):
        bad = Bad()
        try:
            with opening() as stream:
                yield from decode(stream, file, shape, bad)
        except Gone as gone:
            if options.missing_files == "fail":
                raise ObjectNotReadable(file.shown, gone.refusal.sentence.rstrip(".")) from None
            if dead_letters is None:
                # Nobody can bring it back, so a stream that waited for it would wait for ever.
                log.warning("s3-sqs: %s was skipped: %s", file.shown, gone.refusal.sentence)
            else:
                bury(file, gone.refusal)
        except Unreadable as unreadable:
            refuse(file, Refusal("unreadable", str(unreadable)))
        except (PlatformError, MemoryError):
            raise
        except Exception as error:
            # Whatever it is, it is about this object, and those beside it can be read.
            log.exception("s3-sqs: %s cannot be read", file.shown)
            refuse(file, Refusal("unreadable", f"{type(error).__name__} while it was read."))
        if bad.count and options.bad_records != "column":
            refuse(file, Refusal("bad_records", str(bad)))

"""Objects by name from S3: the very content that an event told of, opened a few ahead. Never a listing.

What their bytes mean is `s3_formats`.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO, cast

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from engagement_platform.sources.s3_events import Refusal, S3File
from engagement_platform.sources.s3_sqs_aws import client, said
from engagement_platform.sources.s3_sqs_errors import ObjectNotReadable
from engagement_platform.sources.s3_sqs_options import S3SqsOptions

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


class Gone(Exception):
    """The content that an event told of is not there any more."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


class Objects:
    """Reads objects, for one task."""

    def __init__(self, options: S3SqsOptions) -> None:
        self._s3: Any = client("s3", options)

    def each(self, files: Sequence[S3File]) -> Iterator[tuple[S3File, Callable[[], BinaryIO]]]:
        """Files in order, each with what opens it: small ones are fetched while those before are being read.

        Opening raises Gone, or ObjectNotReadable.
        """
        ahead: deque[Future[BinaryIO]] = deque()
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
                    yield file, ahead.popleft().result
            finally:
                fetchers.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, file: S3File) -> BinaryIO:
        with self._open(file) as opened:
            return io.BytesIO(opened.read())

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
            if (refusal := _GONE.get(failed.response.get("Error", {}).get("Code", ""))) is not None:
                raise Gone(refusal) from None
            raise ObjectNotReadable(file.url, said(failed)) from failed
        except ParamValidationError:
            raise Gone(Refusal("bad_name", "S3 cannot have an object of this name.")) from None
        except BotoCoreError as failed:
            raise ObjectNotReadable(file.url, said(failed)) from failed
        return cast(BinaryIO, _Body(answer["Body"], file))


class _Body(io.RawIOBase):
    """botocore's stream as a file of Python's."""

    def __init__(self, body: Any, file: S3File) -> None:
        self._body, self._file = body, file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._body.read(len(buffer))
        except BotoCoreError as failed:
            raise ObjectNotReadable(self._file.url, said(failed)) from failed
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._body.close()
        super().close()

"""What a message in the queue says: which objects were created, in all the wrappings that S3 events arrive in.

Needs nothing but Python. What becomes of the objects is `s3_sqs`; nothing here raises on any text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple
from urllib.parse import quote_plus, unquote_to_bytes

from engagement_platform.errors import plain
from engagement_platform.sources.strict_json import JsonObject, Refused, object_parser

Wrapper = Literal["auto", "none", "sns", "eventbridge"]

MAX_MESSAGE_BYTES = 2 * 1024 * 1024
"""SQS takes at most 1 MiB; what is larger did not come from there."""
_MAX_DEPTH = 64
# SNS inside SNS does not happen; a bound so that a message cannot nest without end.
_MAX_WRAPPINGS = 4
_BUCKET = re.compile(
    r"(?!xn--|sthree-|.*(?:--(?:x|xa|ol|op|table)-s3|-s3alias|\.mrap)$)[A-Za-z0-9][A-Za-z0-9._-]{1,254}"
)
"""What S3 has ever taken as the name of a bucket that announces objects; the others are of access points, of buckets
without announcements (directories, tables) and reserved, and clients of AWS call other hosts for them, if any."""
_MAX_KEY_BYTES = 1024
_MAX_SIZE = 2**63 - 1
_GIVEN_OUT = re.compile(r"[!-~]{1,1024}")
"""What S3 gives out as version, ETag, sequencer or time."""
_VERSION = "?versionId="
_LIKE_VERSION = re.compile(r"\?versionId=|%(?:25)*3FversionId=")
"""In a key: what would be read as a version behind it, and how that is written instead, however often."""
_CONFIRMATIONS = frozenset({"SubscriptionConfirmation", "UnsubscribeConfirmation"})


@dataclass(frozen=True)
class S3File:
    """An object as its event named it; the key as it is in the bucket, no longer encoded."""

    bucket: str
    key: str
    version_id: str | None = None
    etag: str | None = None
    size: int | None = None
    event_time: str | None = None
    sequencer: str | None = None

    @property
    def url(self) -> str:
        """For the column `_file`, and for looking it up."""
        version = f"{_VERSION}{self.version_id}" if self.version_id else ""
        key = self.key
        if _LIKE_VERSION.search(key):
            # In a key these words are no version, which readers of the column cut off; no two keys have one URL.
            key = key.replace("%", "%25").replace(_VERSION, _VERSION.replace("?", "%3F"))
        return f"s3://{self.bucket}/{key}{version}"

    @property
    def shown(self) -> str:
        """For logs and errors, where a key has no line feed and nothing that a terminal obeys."""
        return plain(self.url)

    def identity(self, *, allow_overwrites: bool) -> str:
        """What two events about the same content have in common, 64 hexadecimal digits.

        allow_overwrites: a key that is written again with other content is another file; otherwise it is known.
        """
        content = (self.version_id or self.etag or self.sequencer or "") if allow_overwrites else ""
        return hashlib.sha256(json.dumps([self.bucket, self.key, content]).encode()).hexdigest()

    def as_event(self) -> str:
        """A message that names this object as S3 does, so that a dead letter can be moved back to the queue."""
        return event_of([self])

    def _record(self) -> JsonObject:
        s3_object = {
            "key": quote_plus(self.key),
            "size": self.size,
            "eTag": self.etag,
            "versionId": self.version_id,
            "sequencer": self.sequencer,
        }
        return {
            "eventSource": "aws:s3",
            "eventName": "ObjectCreated:Put",
            "eventTime": self.event_time,
            "s3": {
                "bucket": {"name": self.bucket},
                "object": {name: value for name, value in s3_object.items() if value is not None},
            },
        }


def event_of(files: Sequence[S3File]) -> str:
    """One event of S3 that names all these objects."""
    return json.dumps({"Records": [file._record() for file in files]})


class Refusal(NamedTuple):
    """Why a message, or a record in it, cannot be used. Codes go into the dead letter: never rename one."""

    code: str
    sentence: str


@dataclass(frozen=True)
class Announced:
    """What one message announces."""

    files: tuple[S3File, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    """Records that name nothing to read, by why: test_event, not_created, folder_marker."""
    refused: tuple[Refusal, ...] = ()
    """A message with any goes to the dead-letter queue; its files are read all the same."""


class _Unusable(Exception):
    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(code)
        self.refusal = Refusal(code, sentence)


class _Nothing(Exception):
    """A record that is fine and names no object to read."""


def read_message(
    body: str,
    *,
    wrapper: Wrapper = "auto",
    buckets: frozenset[str] = frozenset(),
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> Announced:
    """The objects a message names, what it says that is of no interest, and what is wrong with it.

    wrapper: the only wrapping that is taken; `auto` takes every one. buckets: others are refused; empty allows all.
    An object that a message names twice comes twice: only the caller knows what is a repetition.
    """
    try:
        return _message(_parse(body, max_bytes), wrapper, buckets, _MAX_WRAPPINGS)
    except _Unusable as unusable:
        return Announced(refused=(unusable.refusal,))


_parser: Callable[[int], Callable[[bytes | None], JsonObject]] = cache(
    lambda max_bytes: object_parser(max_bytes, _MAX_DEPTH)
)


def _parse(text: str, max_bytes: int = MAX_MESSAGE_BYTES) -> JsonObject:
    try:
        return _parser(max_bytes)(text.encode())
    except Refused as refused:
        raise _Unusable(str(refused.rejection.code), refused.rejection.sentence) from None
    except UnicodeEncodeError:
        raise _Unusable("not_utf8", "The message holds half of a surrogate pair.") from None


def _message(message: JsonObject, wrapper: Wrapper, buckets: frozenset[str], wrappings: int) -> Announced:
    if message.get("Event") == "s3:TestEvent":
        return Announced(ignored={"test_event": 1})
    kind = message.get("Type")
    if isinstance(kind, str) and kind in _CONFIRMATIONS:
        # Nobody but a person may follow its link: who can write to the queue could make this process call anything.
        raise _Unusable("confirmation", "SNS asks to confirm a subscription; open SubscribeURL by hand if it is yours.")
    if isinstance(inner := message.get("Message"), str) and ("TopicArn" in message or kind == "Notification"):
        if wrapper not in ("auto", "sns"):
            raise _Unusable("other_wrapper", f"The message came through SNS, and messageWrapper is {wrapper}.")
        if wrappings == 0:
            raise _Unusable("too_deep", "The message is wrapped again and again.")
        return _message(_parse(inner), wrapper if wrapper == "auto" else "none", buckets, wrappings - 1)
    if "detail-type" in message:
        if wrapper not in ("auto", "eventbridge"):
            raise _Unusable("other_wrapper", f"The message came through EventBridge, and messageWrapper is {wrapper}.")
        return _collected(_bridged, [message], buckets)
    records = message.get("Records")
    if not isinstance(records, list) or not records:
        raise _Unusable("no_s3_event", "The message is JSON, but no event of S3: it has no Records.")
    if wrapper not in ("auto", "none"):
        raise _Unusable("other_wrapper", f"The message came without a wrapper, and messageWrapper is {wrapper}.")
    return _collected(_record, records, buckets)


def _collected(
    read: Callable[[JsonObject, frozenset[str]], S3File], records: Iterable[object], buckets: frozenset[str]
) -> Announced:
    files: list[S3File] = []
    ignored: dict[str, int] = {}
    refused: list[Refusal] = []
    for record in records:
        try:
            files.append(read(_object(record, "A record"), buckets))
        except _Nothing as nothing:
            ignored[str(nothing)] = ignored.get(str(nothing), 0) + 1
        except _Unusable as unusable:
            refused.append(unusable.refusal)
    return Announced(tuple(files), ignored, tuple(refused))


def _record(record: JsonObject, buckets: frozenset[str]) -> S3File:
    """One of the Records of S3 itself, whose keys are form-encoded."""
    source = record.get("eventSource")
    if source is not None and not (isinstance(source, str) and source.endswith(":s3")):
        raise _Unusable("other_source", "A record comes from another service than S3.")
    if not _text(record, "eventName").removeprefix("s3:").startswith("ObjectCreated:"):
        raise _Nothing("not_created")
    s3 = _object(record.get("s3"), "s3 of a record")
    s3_object = _object(s3.get("object"), "object of a record")
    bucket = _text(_object(s3.get("bucket"), "bucket of a record"), "name")
    key = _decoded(_text(s3_object, "key"))
    if buckets and bucket not in buckets:
        raise _Unusable("other_bucket", "A record names a bucket that the option buckets does not allow.")
    if not _BUCKET.fullmatch(bucket):
        raise _Unusable("bad_bucket", "A record names a bucket that S3 cannot have.")
    if len(key.encode()) > _MAX_KEY_BYTES or "\0" in key:
        raise _Unusable("bad_key", "A record names a key that S3 cannot have.")
    size = s3_object.get("size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_SIZE):
        raise _Unusable("wrong_type", "size of a record is no number of bytes.")
    if is_folder_marker(key, size):
        raise _Nothing("folder_marker")
    event_time = record.get("eventTime")
    return S3File(
        bucket=bucket,
        key=key,
        version_id=_optional(s3_object, "versionId"),
        etag=(_optional(s3_object, "eTag") or "").strip('"') or None,
        size=size,
        event_time=event_time if isinstance(event_time, str) and _GIVEN_OUT.fullmatch(event_time) else None,
        sequencer=_optional(s3_object, "sequencer"),
    )


def is_folder_marker(key: str, size: int | None) -> bool:
    """Whether an object is what consoles and Hadoop leave so that an empty folder shows."""
    return (key.endswith("/") and not size) or key.endswith("_$folder$")


def _bridged(event: JsonObject, buckets: frozenset[str]) -> S3File:
    """An event of EventBridge, read as the record that S3 itself would send; it names one object, by its plain key."""
    if event.get("source") != "aws.s3":
        raise _Unusable("other_source", "The event of EventBridge comes from another service than S3.")
    if event.get("detail-type") != "Object Created":
        raise _Nothing("not_created")
    detail = _object(event.get("detail"), "detail")
    s3_object = _object(detail.get("object"), "object")
    renamed = {
        "key": quote_plus(_text(s3_object, "key")),
        "versionId": s3_object.get("version-id"),
        "eTag": s3_object.get("etag"),
    }
    s3 = {"bucket": detail.get("bucket"), "object": s3_object | renamed}
    return _record({"eventName": "ObjectCreated:", "eventTime": event.get("time"), "s3": s3}, buckets)


def _decoded(key: str) -> str:
    try:
        return unquote_to_bytes(key.replace("+", " ")).decode()
    except UnicodeDecodeError:
        raise _Unusable("bad_key", "The key of a record is not form-encoded UTF-8.") from None


def _object(value: object, what: str) -> JsonObject:
    if not isinstance(value, dict):
        raise _Unusable("wrong_type", f"{what} is missing, or no JSON object.")
    return value


def _text(value: JsonObject, name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not text:
        raise _Unusable("missing_field", f"{name} of a record is missing, or no text.")
    return text


def _optional(value: JsonObject, name: str) -> str | None:
    text = value.get(name)
    if not isinstance(text, str) or not text:
        return None
    if not _GIVEN_OUT.fullmatch(text):
        raise _Unusable("wrong_type", f"{name} of a record is nothing that S3 gives out.")
    # S3 says "null" for objects from before a bucket was versioned, and takes that as a version.
    return text

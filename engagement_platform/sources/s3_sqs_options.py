"""The options of the `s3-sqs` source: names, defaults, limits. `docs/s3_sqs.md` lists them; reading is `s3_sqs`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from engagement_platform.settings import Settings
from engagement_platform.sources.s3_events import S3File, Wrapper, read_message
from engagement_platform.sources.s3_sqs_errors import S3SqsOptionRefused

FileFormat = Literal["json", "csv", "parquet", "text"]
Compression = Literal["auto", "none", "gzip", "bz2", "xz", "zstd"]
BadRecordPolicy = Literal["deadLetter", "column", "fail"]
MissingFiles = Literal["skip", "fail"]

_MAX_OBJECTS_BYTES = 1024**3
"""Of the option `objects`: a million of them are some 400 MB."""


@dataclass(frozen=True)
class S3SqsOptions:
    """What a stream, or a read, was asked to do; checked, and free of secrets."""

    queue_url: str = ""
    """Empty only in a read of given objects."""
    objects: tuple[S3File, ...] = ()
    """What a read reads; a stream reads what its queue announces."""
    file_format: FileFormat = "json"
    region: str | None = None
    endpoint: str | None = None
    """Of both S3 and SQS. Not set: AWS's own, or AWS_ENDPOINT_URL."""
    max_files_per_trigger: int = 1000
    max_bytes_per_trigger: int | None = None
    """Of objects as they lie in the bucket; one that is larger makes a batch alone."""
    fetch_parallelism: int = 4
    visibility_timeout_s: int = 300
    wait_time_s: int = 2
    allow_overwrites: bool = False
    message_wrapper: Wrapper = "auto"
    compression: Compression = "auto"
    bad_records: BadRecordPolicy = "deadLetter"
    missing_files: MissingFiles = "skip"
    buckets: frozenset[str] = frozenset()
    dead_letter_queue_url: str | None = None
    state_location: str = ""
    """SQLAlchemy URL; made from a folder, or the default below the platform's home."""
    remember_days: int = 7
    tasks: int = 8
    header: bool = False
    delimiter: str = ","
    max_record_bytes: int = 64 * 1024 * 1024
    max_object_bytes: int = 1024**3
    """Unpacked."""


def parse_options(given: Mapping[str, str]) -> S3SqsOptions:
    """The options by name, whatever their case. Raises S3SqsOptionRefused, which lists the right names."""
    by_name = {name.lower(): name for name in _READ}
    read: dict[str, Any] = {}
    for name, value in given.items():
        known = by_name.get(name.lower())
        if known is None:
            raise S3SqsOptionRefused(f"there is no option {name}{_hint(name.lower(), by_name)}", _READ)
        field, reader = _READ[known]
        try:
            read[field] = reader(value)
        except ValueError as wrong:
            raise S3SqsOptionRefused(f"{known} is {value!r}, and must be {wrong}", _READ) from None
    if not read.get("queue_url") and "objects" not in read:
        raise S3SqsOptionRefused("queueUrl is missing", _READ)
    read["state_location"] = read.get("state_location") or _state_url("")
    read["region"] = read.get("region") or _region(read.get("queue_url", ""))
    return S3SqsOptions(**read)


def _hint(name: str, by_name: Mapping[str, str]) -> str:
    # Spark hands names over in lower case: what was written cannot be shown, what was meant can.
    if name == "path":
        return " (a queue has no path: name it in queueUrl)"
    near = get_close_matches(name, by_name, n=1)
    return f" (did you mean {by_name[near[0]]}?)" if near else ""


def _one_of(*words: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        for word in words:
            if value.lower() == word.lower():
                return word
        raise ValueError(f"one of {', '.join(words)}")

    return read


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        if not re.fullmatch(r"\d{1,12}", value.strip()) or not least <= int(value) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(value)

    return read


def _flag(value: str) -> bool:
    return _one_of("true", "false")(value) == "true"


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://\S+", value):
        raise ValueError("a URL that begins with http:// or https://")
    return value


def _bucket_names(value: str) -> frozenset[str]:
    names = frozenset(filter(None, (name.strip() for name in value.split(","))))
    if not names:
        raise ValueError("names of buckets, separated by commas")
    return names


def _objects(value: str) -> tuple[S3File, ...]:
    found = read_message(value, wrapper="none", max_bytes=_MAX_OBJECTS_BYTES)
    if found.refused:
        raise ValueError(f"an event of S3 ({found.refused[0].sentence.rstrip('.')})")
    return found.files


def _one_character(value: str) -> str:
    if len(value) != 1 or value in '"\r\n':
        raise ValueError("one character, no quote and no line break")
    return value


def _state_url(value: str) -> str:
    """A folder as the URL of a SQLite file in it; a URL of a database as it is."""
    if "://" in value:
        if not re.match(r"(sqlite|postgresql)(\+\w+)?://", value):
            raise ValueError("a folder on a disk of the driver, or a URL that begins with sqlite or postgresql")
        return value
    folder = Path(value).expanduser() if value else Settings.model_fields["home"].get_default(call_default_factory=True)
    return f"sqlite:///{Path(folder).absolute() / 's3_sqs.db'}"


def _region(queue_url: str) -> str | None:
    """What AWS's own URLs say; None leaves it to the environment."""
    found = re.match(r"https?://(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com", queue_url)
    return (found[1] or found[2]) if found else None


# Name -> field, how its text is read. In the order of the page.
_READ: dict[str, tuple[str, Callable[[str], object]]] = {
    "queueUrl": ("queue_url", _url),
    "objects": ("objects", _objects),
    "fileFormat": ("file_format", _one_of("json", "csv", "parquet", "text")),
    "region": ("region", str),
    "endpoint": ("endpoint", _url),
    "maxFilesPerTrigger": ("max_files_per_trigger", _number(1, 1_000_000)),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", _number(1, 999_999_999_999)),
    "fetchParallelism": ("fetch_parallelism", _number(1, 64)),
    # SQS's own limits: 12 hours, 20 seconds.
    "visibilityTimeout": ("visibility_timeout_s", _number(3, 43_200)),
    "waitTime": ("wait_time_s", _number(0, 20)),
    "allowOverwrites": ("allow_overwrites", _flag),
    "messageWrapper": ("message_wrapper", _one_of("auto", "none", "sns", "eventbridge")),
    "compression": ("compression", _one_of("auto", "none", "gzip", "bz2", "xz", "zstd")),
    "badRecords": ("bad_records", _one_of("deadLetter", "column", "fail")),
    "missingFiles": ("missing_files", _one_of("skip", "fail")),
    "buckets": ("buckets", _bucket_names),
    "deadLetterQueueUrl": ("dead_letter_queue_url", _url),
    "stateLocation": ("state_location", _state_url),
    "rememberDays": ("remember_days", _number(1, 3650)),
    "tasks": ("tasks", _number(1, 10_000)),
    "header": ("header", _flag),
    "delimiter": ("delimiter", _one_character),
    "maxRecordBytes": ("max_record_bytes", _number(1, 2**31 - 1)),
    "maxObjectBytes": ("max_object_bytes", _number(1, 999_999_999_999)),
}
OPTION_NAMES = tuple(_READ)

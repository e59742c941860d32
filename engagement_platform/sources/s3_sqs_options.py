"""The options of the `s3-sqs` source: names, defaults, limits. `docs/s3_sqs.md` lists them; reading is `s3_sqs`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from engagement_platform.settings import Settings
from engagement_platform.sources.s3_events import S3File, Wrapper, read_message
from engagement_platform.sources.s3_sqs_errors import S3SqsOptionRefused

FileFormat = Literal["json", "csv", "parquet", "text"]
Compression = Literal["auto", "none", "gzip", "bz2", "xz", "zstd"]
BadRecordPolicy = Literal["deadLetter", "column", "fail"]
MissingFiles = Literal["skip", "fail"]

_MAX_OBJECTS_BYTES = 1024**3
"""Of the option `objects`: a million of them are some 400 MB."""


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


class _Option(NamedTuple):
    """Of a field of S3SqsOptions: its name as an option, and how its text is read."""

    name: str
    read: Callable[[str], object]


@dataclass(frozen=True)
class S3SqsOptions:
    """What a stream, or a read, was asked to do; checked, and free of secrets. In the order of the page."""

    queue_url: Annotated[str, _Option("queueUrl", _url)] = ""
    """Empty only in a read of given objects."""
    objects: Annotated[tuple[S3File, ...], _Option("objects", _objects)] = ()
    """What a read reads; a stream reads what its queue announces."""
    file_format: Annotated[FileFormat, _Option("fileFormat", _one_of(*get_args(FileFormat)))] = "json"
    region: Annotated[str | None, _Option("region", str)] = None
    endpoint: Annotated[str | None, _Option("endpoint", _url)] = None
    """Of both S3 and SQS. Not set: AWS's own, or AWS_ENDPOINT_URL."""
    max_files_per_trigger: Annotated[int, _Option("maxFilesPerTrigger", _number(1, 1_000_000))] = 1000
    max_bytes_per_trigger: Annotated[int | None, _Option("maxBytesPerTrigger", _number(1, 999_999_999_999))] = None
    """Of objects as they lie in the bucket; one that is larger makes a batch alone."""
    fetch_parallelism: Annotated[int, _Option("fetchParallelism", _number(1, 64))] = 4
    # SQS's own limits: 12 hours, 20 seconds.
    visibility_timeout_s: Annotated[int, _Option("visibilityTimeout", _number(3, 43_200))] = 300
    wait_time_s: Annotated[int, _Option("waitTime", _number(0, 20))] = 2
    allow_overwrites: Annotated[bool, _Option("allowOverwrites", _flag)] = False
    message_wrapper: Annotated[Wrapper, _Option("messageWrapper", _one_of(*get_args(Wrapper)))] = "auto"
    compression: Annotated[Compression, _Option("compression", _one_of(*get_args(Compression)))] = "auto"
    bad_records: Annotated[BadRecordPolicy, _Option("badRecords", _one_of(*get_args(BadRecordPolicy)))] = "deadLetter"
    missing_files: Annotated[MissingFiles, _Option("missingFiles", _one_of(*get_args(MissingFiles)))] = "skip"
    buckets: Annotated[frozenset[str], _Option("buckets", _bucket_names)] = frozenset()
    dead_letter_queue_url: Annotated[str | None, _Option("deadLetterQueueUrl", _url)] = None
    state_location: Annotated[str, _Option("stateLocation", _state_url)] = ""
    """SQLAlchemy URL; made from a folder, or the default below the platform's home."""
    remember_days: Annotated[int, _Option("rememberDays", _number(1, 3650))] = 7
    tasks: Annotated[int, _Option("tasks", _number(1, 10_000))] = 8
    header: Annotated[bool, _Option("header", _flag)] = False
    delimiter: Annotated[str, _Option("delimiter", _one_character)] = ","
    max_record_bytes: Annotated[int, _Option("maxRecordBytes", _number(1, 2**31 - 1))] = 64 * 1024 * 1024
    max_object_bytes: Annotated[int, _Option("maxObjectBytes", _number(1, 999_999_999_999))] = 1024**3
    """Unpacked."""


_BY_NAME: dict[str, tuple[str, _Option]] = {
    hint.__metadata__[0].name: (field, hint.__metadata__[0])
    for field, hint in get_type_hints(S3SqsOptions, include_extras=True).items()
}
OPTION_NAMES = tuple(_BY_NAME)


def parse_options(given: Mapping[str, str]) -> S3SqsOptions:
    """The options by name, whatever their case. Raises S3SqsOptionRefused, which lists the right names."""
    by_name = {name.lower(): name for name in OPTION_NAMES}
    read: dict[str, Any] = {}
    for name, value in given.items():
        known = by_name.get(name.lower())
        if known is None:
            raise S3SqsOptionRefused(f"there is no option {name}{_hint(name.lower(), by_name)}", OPTION_NAMES)
        field, option = _BY_NAME[known]
        try:
            read[field] = option.read(value)
        except ValueError as wrong:
            raise S3SqsOptionRefused(f"{known} is {value!r}, and must be {wrong}", OPTION_NAMES) from None
    if not read.get("queue_url") and "objects" not in read:
        raise S3SqsOptionRefused("queueUrl is missing", OPTION_NAMES)
    read["state_location"] = read.get("state_location") or _state_url("")
    read["region"] = read.get("region") or _region(read.get("queue_url", ""))
    return S3SqsOptions(**read)


def _hint(name: str, by_name: Mapping[str, str]) -> str:
    # Spark hands names over in lower case: what was written cannot be shown, what was meant can.
    if name == "path":
        return " (a queue has no path: name it in queueUrl)"
    near = get_close_matches(name, by_name, n=1)
    return f" (did you mean {by_name[near[0]]}?)" if near else ""

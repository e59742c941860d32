"""What one task does: read its share of a batch's files, and say of each that cannot be read what becomes of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from engagement_platform.errors import PlatformError
from engagement_platform.sources.s3_events import Refusal, S3File
from engagement_platform.sources.s3_formats import Bad, Shape, Unreadable, decode
from engagement_platform.sources.s3_objects import Gone, Objects
from engagement_platform.sources.s3_sqs_aws import client
from engagement_platform.sources.s3_sqs_errors import BadRecords, NoDeadLetterQueue, ObjectNotReadable
from engagement_platform.sources.s3_sqs_options import S3SqsOptions
from engagement_platform.sources.s3_sqs_queue import send_dead_letter

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


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
    outcome = _Outcome(shape.options, dead_letters)
    for file, opening in Objects(shape.options).each(files):
        bad = Bad()
        try:
            with opening() as stream:
                yield from decode(stream, file, shape, bad)
        except Gone as gone:
            outcome.gone(file, gone.refusal)
        except Unreadable as unreadable:
            outcome.bad(file, Refusal("unreadable", str(unreadable)))
        except PlatformError:
            raise
        except Exception as error:
            # Whatever it is, it is about this object, and those beside it can be read.
            log.exception("s3-sqs: %s cannot be read", file.url)
            outcome.bad(file, Refusal("unreadable", f"{type(error).__name__} while it was read."))
        if bad.count and shape.options.bad_records != "column":
            outcome.bad(file, Refusal("bad_records", str(bad)))


class _Outcome:
    """What becomes of a file that could not be read, or not whole."""

    def __init__(self, options: S3SqsOptions, dead_letters: str | None) -> None:
        self._options, self._dead_letters = options, dead_letters

    def gone(self, file: S3File, refusal: Refusal) -> None:
        if self._options.missing_files == "fail":
            raise ObjectNotReadable(file.url, refusal.sentence.rstrip("."))
        if self._dead_letters is None:
            # Nobody can bring it back, so a stream that waited for it would wait for ever.
            log.warning("s3-sqs: %s was skipped: %s", file.url, refusal.sentence)
            return
        self._bury(self._dead_letters, file, refusal)

    def bad(self, file: S3File, refusal: Refusal) -> None:
        if self._options.bad_records == "fail":
            raise BadRecords(file.url, refusal.sentence)
        if self._dead_letters is None:
            raise NoDeadLetterQueue(file.url, refusal.sentence)
        self._bury(self._dead_letters, file, refusal)

    def _bury(self, queue_url: str, file: S3File, refusal: Refusal) -> None:
        send_dead_letter(client("sqs", self._options), queue_url, file.as_event(), [refusal], file.url)

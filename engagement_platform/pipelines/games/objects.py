"""Where batches of game events come from: objects that S3 announces through SQS, or those of a prefix, once more.

What is in a batch is durable before the batch begins; Spark reads the objects, through the source `s3-sqs`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import types as T
from pyspark.sql.streaming.datasource import ReadMaxFiles

from engagement_platform.engine.model import Limits, NoIdentity, Offsets
from engagement_platform.errors import PlatformError
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_events import S3File, event_of
from engagement_platform.sources.s3_formats import Shape
from engagement_platform.sources.s3_sqs import Offset, S3SqsStreamReader
from engagement_platform.sources.s3_sqs_errors import S3SqsStateLost
from engagement_platform.sources.s3_sqs_options import S3SqsOptions
from engagement_platform.sources.s3_sqs_state import S3SqsState

Range = tuple[Offsets, Offsets]

BATCH = "batch"
"""The one partition of offsets: number of the last batch of objects that was read."""

LINE_SCHEMA = (
    T.StructType().add("value", "binary").add("_file", "string").add("_line", "long").add("_event_ts", "timestamp")
)
"""What is read of an object: a row a line."""
_REMEMBER_DAYS = 7


class NoGameQueue(PlatformError):
    """No queue is configured."""

    def __init__(self) -> None:
        super().__init__(
            "No queue of game events is configured. Nothing was read. Set ENGAGEMENT_PLATFORM_GAMES__QUEUE_URL (and "
            "ENGAGEMENT_PLATFORM_GAMES__BUCKET for replays); docs/aws.md shows how to make the queue."
        )


class ObjectsForgotten(PlatformError):
    """A batch names objects that nobody remembers."""

    def __init__(self, job: str, batch: int) -> None:
        super().__init__(
            f"{job} needs the objects of batch {batch}, which the stores' database does not know. Nothing was read. "
            f"Connect to the database that the job was run with; if it is gone, `engagement-platform reset {job} "
            "--abandon`, and read the objects again with `engagement-platform replay`."
        )


@dataclass(frozen=True)
class BatchObjects:
    """The objects of a batch, for `spark.read.format("s3-sqs")`."""

    files: tuple[S3File, ...]
    options: S3SqsOptions
    dead_letters: str | None
    """URL of the queue for objects that cannot be read."""

    def as_options(self) -> dict[str, str]:
        """As options of the source, which needs neither queue nor state for them."""
        given = {
            "objects": event_of(self.files),
            "fileFormat": self.options.file_format,
            "region": self.options.region,
            "endpoint": self.options.endpoint,
            "tasks": str(self.options.tasks),
            "deadLetterQueueUrl": self.dead_letters,
            "buckets": ",".join(sorted(self.options.buckets)) or None,
        }
        return {name: value for name, value in given.items() if value is not None}


class ObjectSource(NoIdentity, ABC):
    """A source whose batches are objects. Which those of a batch are is durable before it begins."""

    def __init__(self, stream: str, settings: Settings) -> None:
        """stream: name of the job."""
        self._options = options_of(settings)
        self._stream, self._max_objects = stream, settings.games.max_objects
        self._state = state_of(settings)

    @abstractmethod
    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> Range | None:
        """The next objects; None when none waits."""

    @abstractmethod
    def objects(self, start: Offsets, end: Offsets) -> BatchObjects:
        """The objects of a range; the same ones each time, unless it was split. Raises ObjectsForgotten."""

    def check(self, start: Offsets, end: Offsets) -> None:
        """Raise ObjectsForgotten when the state does not know the batch."""
        self.objects(start, end)

    def split(self, end: Offsets) -> None:
        """Let the later half of the objects of the batch that ends there wait for the next; one stays."""
        self._state.split(self._stream, end[BATCH])


def options_of(settings: Settings) -> S3SqsOptions:
    """The source's options as the settings ask for them. Raises NoGameQueue."""
    games = settings.games
    if games.queue_url is None:
        raise NoGameQueue
    return S3SqsOptions(
        queue_url=games.queue_url,
        file_format="text",
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        endpoint=os.environ.get("AWS_ENDPOINT_URL"),
        max_bytes_per_trigger=games.max_bytes,
        visibility_timeout_s=max(3, int(games.visibility.total_seconds())),
        buckets=frozenset([games.bucket]) if games.bucket else frozenset(),
        # In the database of the stores, since a checkpoint without it says nothing.
        state_location=settings.store_url,
        remember_days=_REMEMBER_DAYS,
        tasks=max(1, settings.spark.default_parallelism),
    )


def state_of(settings: Settings) -> S3SqsState:
    """What the source remembers of objects and their batches. Raises NoGameQueue, StoresUnavailable."""
    return S3SqsState.open(options_of(settings).state_location, allow_overwrites=False)


class QueueSource(ObjectSource):
    """New objects, in the order of their announcement. Raises what the source `s3-sqs` raises.

    stream: name of the job. It has its checkpoint in the stores; the protocol with SQS is that of `s3-sqs`, in which
    a later start proves that a batch is committed, and only then its messages are deleted. wait_s: how long to wait for
    a first announcement where there is none.
    """

    def __init__(self, stream: str, settings: Settings, wait_s: int = 1) -> None:
        super().__init__(stream, settings)
        self._options = replace(self._options, wait_time_s=wait_s)
        self._reader = S3SqsStreamReader(Shape.of(LINE_SCHEMA, self._options))

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> Range | None:  # noqa: ARG002
        """The objects that wait longest; None when none does. After a reset all that are remembered come again."""
        begin = self._offset(start or {BATCH: 0})
        with self._remembered():
            end = self._reader.latestOffset(begin, ReadMaxFiles(self._max_objects))
        if start is not None:
            self._reader.commit(begin)
        return None if end == begin else ({BATCH: int(str(begin["batch"]))}, {BATCH: int(str(end["batch"]))})

    def objects(self, start: Offsets, end: Offsets) -> BatchObjects:
        with self._remembered():
            shares = self._reader.partitions(self._offset(start), self._offset(end))
        if not shares:
            raise ObjectsForgotten(self._stream, end[BATCH])
        files = tuple(file for share in shares for file in share.files)
        return BatchObjects(files, self._options, shares[0].dead_letters)

    @contextmanager
    def _remembered(self) -> Iterator[None]:
        """Name the job where its checkpoint is ahead of the state: after `recover`, which brings back no objects."""
        try:
            yield
        except S3SqsStateLost as error:
            raise ObjectsForgotten(self._stream, error.batch) from error

    def close(self) -> None:
        """Let go of the queue: what was not committed becomes visible to others again in time."""
        self._reader.stop()

    def _offset(self, offsets: Offsets) -> Offset:
        return {"stream": self._stream, "batch": offsets[BATCH]}


class ReplaySource(ObjectSource):
    """Given objects, once more, batch after batch; first those that an interrupted run was given and has not read.

    list_objects: called once, when nothing of those is left. dead_letters: URL of the queue for objects that
    cannot be read.
    """

    def __init__(
        self,
        stream: str,
        settings: Settings,
        list_objects: Callable[[], Sequence[S3File]],
        dead_letters: str | None,
    ) -> None:
        super().__init__(stream, settings)
        self._list: Callable[[], Sequence[S3File]] | None = list_objects
        self._dead_letters = dead_letters

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> Range | None:  # noqa: ARG002
        """The next of the objects; None after the last."""
        after = (start or {BATCH: 0})[BATCH]
        # A reset gives up what the run before it has left.
        left = start is not None and (
            self._state.waiting(self._stream) or self._state.planned(self._stream, after) is not None
        )
        if self._list is not None and not left:
            self._state.renew(self._stream, self._list())
            self._list = None
        planned = self._state.planned(self._stream, after)
        if planned is None:
            planned = self._state.plan(
                self._stream, after, self._max_objects, max_bytes=self._options.max_bytes_per_trigger
            )
        return None if planned == after else ({BATCH: after}, {BATCH: planned})

    def objects(self, start: Offsets, end: Offsets) -> BatchObjects:
        found = self._state.files(self._stream, start[BATCH], end[BATCH])
        if not found:
            raise ObjectsForgotten(self._stream, end[BATCH])
        return BatchObjects(tuple(found), self._options, self._dead_letters)

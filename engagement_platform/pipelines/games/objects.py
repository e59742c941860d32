"""Where batches of game events come from: objects that S3 announces through SQS, or those of a prefix, once more.

What is in a batch is durable before the batch begins; reading an object is `sources.s3_sqs_read`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from pyspark.sql import types as T
from pyspark.sql.streaming.datasource import ReadMaxFiles

from engagement_platform.engine.model import Limits, NoIdentity, Offsets, Source
from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.games.sorting import Line
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_formats import Shape
from engagement_platform.sources.s3_sqs import Offset, S3SqsPartition, S3SqsStreamReader
from engagement_platform.sources.s3_sqs_options import S3SqsOptions
from engagement_platform.sources.s3_sqs_read import read_files, share_out
from engagement_platform.sources.s3_sqs_state import S3SqsState

Range = tuple[Offsets, Offsets]
Shares = tuple[S3SqsPartition, ...]
"""The objects of a batch, one share for each task that reads them; picklable."""

BATCH = "batch"
"""The one partition of offsets: number of the last batch of objects that was read."""

SCHEMA = T.StructType().add("value", "binary").add("_file", "string").add("_line", "long").add("_event_ts", "timestamp")
_REMEMBER_DAYS = 7
_BLANKS = b" \t\r\n"


class NoGameQueue(PlatformError):
    """No queue is configured."""

    def __init__(self) -> None:
        super().__init__(
            "No queue of game events is configured. Nothing was read. Set ENGAGEMENT_PLATFORM_GAMES__QUEUE_URL (and "
            "ENGAGEMENT_PLATFORM_GAMES__BUCKET for replays); docs/aws.md shows how to make the queue."
        )


class ObjectsForgotten(PlatformError):
    """A batch names objects that nobody remembers."""

    def __init__(self, job: str, batch: int, location: str) -> None:
        super().__init__(
            f"{job} needs the objects of batch {batch}, which the state at {location} does not know. Nothing was read. "
            f"Connect to the database that the job was run with; if it is gone, `engagement-platform reset {job} "
            "--abandon`, and read the objects again with `engagement-platform replay`."
        )


class ObjectSource(Source, Protocol):
    """A source whose batches are objects."""

    @property
    def options(self) -> S3SqsOptions:
        """How objects are read."""
        ...

    def shares(self, start: Offsets, end: Offsets) -> Shares:
        """The objects of a range."""
        ...


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


class QueueSource(NoIdentity):
    """New objects, in the order of their announcement. Raises what the source `s3-sqs` raises.

    stream: name of the job. It has its checkpoint in the stores; the protocol with SQS is that of `s3-sqs`, in which
    a later start proves that a batch is committed, and only then its messages are deleted. wait_s: how long to wait for
    a first announcement where there is none.
    """

    def __init__(self, stream: str, settings: Settings, wait_s: int = 1) -> None:
        self.options = replace(options_of(settings), wait_time_s=wait_s)
        self._stream, self._max_objects = stream, settings.games.max_objects
        self._reader = S3SqsStreamReader(Shape.of(SCHEMA, self.options))

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> Range | None:  # noqa: ARG002
        """The objects that wait longest; None when none does. After a reset all that are remembered come again."""
        begin = self._offset(start or {BATCH: 0})
        end = self._reader.latestOffset(begin, ReadMaxFiles(self._max_objects))
        if start is not None:
            self._reader.commit(begin)
        return None if end == begin else ({BATCH: int(str(begin["batch"]))}, {BATCH: int(str(end["batch"]))})

    def check(self, start: Offsets, end: Offsets) -> None:
        """Raise ObjectsForgotten, S3SqsStateLost when the state does not know the batch."""
        self.shares(start, end)

    def size(self, start: Offsets, end: Offsets) -> None:
        """Not known before objects are read."""

    def shares(self, start: Offsets, end: Offsets) -> Shares:
        """The objects of a range; the same ones each time."""
        found = tuple(self._reader.partitions(self._offset(start), self._offset(end)))
        if not found:
            raise ObjectsForgotten(self._stream, end[BATCH], "the stores' database")
        return found

    def close(self) -> None:
        """Let go of the queue: what was not committed becomes visible to others again in time."""
        self._reader.stop()

    def _offset(self, offsets: Offsets) -> Offset:
        return {"stream": self._stream, "batch": offsets[BATCH]}


class ReplaySource(NoIdentity):
    """Given objects, once more, batch after batch; a run that was interrupted finishes its batch and lists again.

    list_objects: called once, when the first new batch is planned. dead_letters: URL of the queue for objects that
    cannot be read.
    """

    def __init__(
        self,
        stream: str,
        settings: Settings,
        list_objects: Callable[[], Sequence[S3File]],
        dead_letters: str | None,
    ) -> None:
        self.options = options_of(settings)
        self._stream, self._max_objects = stream, settings.games.max_objects
        self._list: Callable[[], Sequence[S3File]] | None = list_objects
        self._dead_letters = dead_letters
        self._state = S3SqsState.open(self.options.state_location, allow_overwrites=False)

    def plan(self, start: Offsets | None, limits: Limits, mean_bytes: float | None) -> Range | None:  # noqa: ARG002
        """The next of the objects; None after the last."""
        after = (start or {BATCH: 0})[BATCH]
        if self._list is not None:
            self._state.renew(self._stream, self._list())
            self._list = None
        planned = self._state.planned(self._stream, after)
        if planned is None:
            planned = self._state.plan(
                self._stream, after, self._max_objects, max_bytes=self.options.max_bytes_per_trigger
            )
        return None if planned == after else ({BATCH: after}, {BATCH: planned})

    def check(self, start: Offsets, end: Offsets) -> None:
        """Raise ObjectsForgotten when the state does not know the batch."""
        self.shares(start, end)

    def size(self, start: Offsets, end: Offsets) -> None:
        """Not known before objects are read."""

    def shares(self, start: Offsets, end: Offsets) -> Shares:
        """The objects of a range."""
        found = self._state.files(self._stream, start[BATCH], end[BATCH])
        if not found:
            raise ObjectsForgotten(self._stream, end[BATCH], self._state.location)
        return tuple(S3SqsPartition(group, self._dead_letters) for group in share_out(found, self.options.tasks))


def lines_of(shares: Sequence[S3SqsPartition], options: S3SqsOptions, planned: datetime) -> Iterator[Line]:
    """The lines of the objects, blank ones left out. Objects that cannot be read become dead letters.

    planned: when the batch was planned, UTC; then an object has arrived whose announcement does not say when it did.
    """
    shape = Shape.of(SCHEMA, options)
    for share in shares:
        for batch in read_files(share.files, shape, share.dead_letters):
            # One batch is of one object. Versions are left out: listings, by which objects are replayed, have none.
            name = str(batch.column("_file")[0].as_py()).partition("?versionId=")[0]
            arrived = _second(batch.column("_event_ts")[0].as_py() or planned)
            numbered = zip(batch.column("_line").to_pylist(), batch.column("value").to_pylist(), strict=True)
            for number, value in numbered:
                if value.strip(_BLANKS):
                    yield Line(name, number, arrived, value)


def _second(moment: datetime) -> datetime:
    """Whole seconds, since listings tell no more, and a replay has to decide as the first reading did."""
    return moment.astimezone(UTC).replace(microsecond=0)

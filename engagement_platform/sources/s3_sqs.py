"""The Spark data source `s3-sqs`: objects that S3 announces through SQS, as a stream, without ever listing a bucket.

`spark.read` reads objects that are given to it, in the same way. Register `S3SqsDataSource`; `docs/s3_sqs.md` shows how
to use it. Here is the protocol with Spark: what an offset is, when a batch is durable, when messages may go. The parts
are in the modules beside it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, MutableMapping
from contextlib import closing
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from engagement_platform.sources.s3_events import S3File, read_message
from engagement_platform.sources.s3_formats import Shape
from engagement_platform.sources.s3_objects import read_files, share_out
from engagement_platform.sources.s3_sqs_errors import (
    NoDeadLetterQueue,
    S3SqsOptionRefused,
    S3SqsSchemaRefused,
    S3SqsStateLost,
)
from engagement_platform.sources.s3_sqs_options import OPTION_NAMES, S3SqsOptions, parse_options
from engagement_platform.sources.s3_sqs_queue import Message, Queue
from engagement_platform.sources.s3_sqs_state import Arrived, S3SqsState

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

Offset = dict[str, Any]
"""{"stream": id of the checkpoint's stream, "batch": number of its last batch, 0 before the first}."""

# A queue that is written to all the time is never empty; longer than this a batch does not wait for more.
_GATHER_S = 2.0
# What was there when a run with Trigger.AvailableNow began has been read when SQS, which asks all of its servers only
# while it waits, twice has nothing but newer messages.
_LEAST_WAIT_S = 1
_EMPTY_ANSWERS = 2


class S3SqsDataSource(DataSource):
    """`spark.readStream.format("s3-sqs")`, or `spark.read` with `objects`. Options and schema are checked before
    anything is read.

    Raises S3SqsOptionRefused, S3SqsSchemaRefused.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "s3-sqs"

    def schema(self) -> NoReturn:
        # Spark asks only when none was given. Looking into an object would have to guess, and to list.
        raise S3SqsSchemaRefused("there is no schema")

    def streamReader(self, schema: StructType) -> S3SqsStreamReader:  # noqa: N802
        if not self._options.queue_url:
            raise S3SqsOptionRefused("queueUrl is missing", OPTION_NAMES)
        return S3SqsStreamReader(Shape.of(schema, self._options))

    def reader(self, schema: StructType) -> S3SqsReader:
        if not self._options.objects:
            raise S3SqsOptionRefused("objects is missing, which says what spark.read reads", OPTION_NAMES)
        return S3SqsReader(Shape.of(schema, self._options))


class S3SqsPartition(InputPartition):
    """A task's share of a batch."""

    def __init__(self, files: tuple[S3File, ...], dead_letters: str | None) -> None:
        super().__init__(files)
        self.files, self.dead_letters = files, dead_letters


class S3SqsReader(DataSourceReader):
    """Reads given objects, each with the version or ETag that is given. Receives no message and deletes none."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def partitions(self) -> list[InputPartition]:
        options = self._shape.options
        dead_letters = options.dead_letter_queue_url
        if dead_letters is None and options.queue_url:
            with closing(Queue(options)) as queue:
                dead_letters = queue.dead_letter_queue()
        return [S3SqsPartition(group, dead_letters) for group in share_out(options.objects, options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, S3SqsPartition)
        return read_files(partition.files, self._shape, partition.dead_letters)


class S3SqsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream. Spark keeps one in a process of the driver's, and sends copies, which only read, to tasks.

    A batch is durable in the state before Spark hears its number. Messages are deleted when a later call proves that
    Spark has committed all their files: `commit`, or `latestOffset` with that batch as its start, after a restart.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._options: S3SqsOptions = shape.options
        self._stream = secrets.token_hex(16)
        self._until_ms: int | None = None
        self._drained = False
        self._resumed: str | None = None

    def __reduce__(self) -> tuple[type[S3SqsStreamReader], tuple[Shape]]:
        # Clients, threads and the database stay where they were opened.
        return S3SqsStreamReader, (self._shape,)

    @cached_property
    def _queue(self) -> Queue:
        return Queue(self._options)

    @cached_property
    def _state(self) -> S3SqsState:
        return S3SqsState.open(self._options.state_location, allow_overwrites=self._options.allow_overwrites)

    def initialOffset(self) -> Offset:  # noqa: N802
        return {"stream": self._stream, "batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxFiles(self._options.max_files_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until_ms = self._queue.now_ms()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        stream, after = str(start["stream"]), int(start["batch"])
        self._resume(stream, after)
        # Spark asks for what follows a batch once that batch is in its log of commits.
        self._finish(stream, after)
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        # Planned, and Spark did not hear of it, or forgot: it comes again as it was, whatever the limit is now.
        batch = self._state.planned(stream, after)
        if batch is None:
            self._fill(stream, most)
            # What came once more, long after its files were committed, need not wait for another batch.
            self._finish(stream, after)
            batch = self._state.plan(stream, after, most, self._until_ms, max_bytes=self._options.max_bytes_per_trigger)
        return {"stream": stream, "batch": batch}

    def partitions(self, start: Offset, end: Offset) -> list[S3SqsPartition]:
        stream, after, upto = str(end["stream"]), int(start["batch"]), int(end["batch"])
        self._resume(stream, upto)
        files = self._state.files(stream, after, upto)
        if not files:
            return []
        dead_letters = self._queue.dead_letter_queue()
        return [S3SqsPartition(group, dead_letters) for group in share_out(files, self._options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, S3SqsPartition)
        return read_files(partition.files, self._shape, partition.dead_letters)

    def commit(self, end: Offset) -> None:
        stream, upto = str(end["stream"]), int(end["batch"])
        self._finish(stream, upto)
        self._state.forget_files(stream, upto, timedelta(days=self._options.remember_days))

    def stop(self) -> None:
        # Tasks stop a reader that never opened anything.
        for name in ("_queue", "_state"):
            opened = self.__dict__.pop(name, None)
            if opened is not None:
                opened.close()

    def _resume(self, stream: str, batch: int) -> None:
        """Once for a start: is this state the checkpoint's, and which messages are still in work."""
        if self._resumed == stream:
            return
        if not self._state.knows(stream, batch):
            raise S3SqsStateLost(stream, batch, self._state.location)
        self._queue.hold(self._state.in_flight(stream))
        self._resumed = stream

    def _finish(self, stream: str, upto: int) -> None:
        """Delete the messages whose files Spark has all committed. Those that SQS keeps are tried again next time."""
        finished = self._state.finished(stream, upto)
        if finished:
            self._state.forget_messages(stream, self._queue.delete(finished))

    def _fill(self, stream: str, most: int | None) -> None:
        """Receive until enough files wait for a batch, or nothing more comes."""
        deadline = time.monotonic() + _GATHER_S
        empty = 0
        while True:
            waiting = self._state.waiting(stream, self._until_ms)
            if self._drained or (most is not None and waiting >= most):
                return
            if self._until_ms is None:
                messages = self._queue.receive(0 if waiting else self._options.wait_time_s)
                self._take(stream, messages)
                if not messages or time.monotonic() > deadline:
                    return
            else:
                messages = self._queue.receive(max(_LEAST_WAIT_S, self._options.wait_time_s))
                self._take(stream, messages)
                if all(message.sent_ms > self._until_ms for message in messages):
                    empty += 1
                    self._drained = empty == _EMPTY_ANSWERS

    def _take(self, stream: str, messages: list[Message]) -> None:
        """Write down which files messages name, bury what cannot be used, and let go of what names nothing."""
        wrapper, buckets = self._options.message_wrapper, self._options.buckets
        parsed = [(message, read_message(message.body, wrapper=wrapper, buckets=buckets)) for message in messages]
        self._state.arrive(
            stream, [Arrived(m.message_id, m.receipt, m.sent_ms, body.files) for m, body in parsed if body.files]
        )
        for message, body in parsed:
            if body.refused:
                dead_letters = self._queue.dead_letter_queue()
                if dead_letters is None:
                    raise NoDeadLetterQueue(f"Message {message.message_id}", body.refused[0].sentence)
                self._queue.bury(dead_letters, message, body.refused)
                log.warning("s3-sqs: message %s is a dead letter: %s", message.message_id, body.refused[0].sentence)
        self._queue.delete({m.message_id: m.receipt for m, body in parsed if not body.files})

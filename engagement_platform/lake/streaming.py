"""Drains a streaming frame into an append-only table, in Structured Streaming's own exactly-once batches.

The checkpoint folder knows what was read, and Delta's sink skips a batch that it has (Delta protocol: txn action). Who
owns which folder is `engine.cursors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake import driver_lease, log
from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform.lake.contract import Mode, NotAStreamSource, Table
from engagement_platform.lake.lake import Lake


class StreamFailed(PlatformError):
    """Spark ended a stream in the middle of a batch."""

    def __init__(self, table: str, checkpoint: str, why: str) -> None:
        self.table, self.why = table, why
        super().__init__(
            f"The stream into {table} failed: {why}. What its finished batches wrote stands, and the next run does "
            "again what failed: mend the cause, then run it. Where what it has yet to read is gone for good, begin "
            f"anew: move the checkpoint folder {checkpoint} and the table away, and those of the streams after it, and "
            "forget each by `engagement-platform consumers --forget-stream`."
        )


@dataclass(frozen=True)
class Drained:
    """Sums of Spark's reports of the batches of one drain."""

    batches: int
    rows_in: int
    late: int
    """Rows that came after their watermark and were left out of aggregations, as the stream declares."""
    watermark: str | None
    """Event time before which nothing is waited for any more, ISO 8601; None without one."""


def drain_stream(frame: DataFrame, table: Table, lake: Lake, checkpoint: str) -> Drained:
    """Append all available rows to an existing table, and return once they are there.

    frame: streaming, with the table's columns. checkpoint: a folder that is this stream's alone.
    Raises NotAStreamSource where the table is mutable, StreamFailed.
    """
    if table.mode is not Mode.APPEND_ONLY:
        raise NotAStreamSource(table)
    writer = frame.select(*table.column_names).writeStream.format("delta").outputMode("append")
    with commit_lock(lake.root, table.name):
        driver_lease.check(lake.root)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(lake.uri(table))
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise StreamFailed(table.name, checkpoint, _cause(error)) from error
        finally:
            query.stop()
    return summed([dict(progress) for progress in query.recentProgress])


def _cause(error: StreamingQueryException) -> str:
    """What Spark says after the ids of its query."""
    _, _, cause = str(error).partition(" terminated with exception: ")
    return first_line(RuntimeError(cause)) if cause else first_line(error)


def finished_batch(checkpoint: str) -> int | None:
    """The number of the last batch in a checkpoint folder's `commits`; None where there is none."""
    listed = log.listed(*log.opened(f"{checkpoint}/commits"))
    return max((int(one.base_name) for one in listed if one.base_name.isdigit()), default=None)


def summed(progresses: list[Mapping[str, Any]]) -> Drained:
    """Spark's reports of all batches, in one."""
    # Of all sources: what a Connect server says of a batch lacks their sum (Spark 4.2).
    rows = [sum(int(source.get("numInputRows") or 0) for source in one.get("sources") or ()) for one in progresses]
    worked = [one for one, came in zip(progresses, rows, strict=True) if came or one.get("sink")]
    late = sum(
        int(operator.get("numRowsDroppedByWatermark") or 0)
        for progress in worked
        for operator in progress.get("stateOperators") or ()
    )
    marks = [str((progress.get("eventTime") or {}).get("watermark")) for progress in worked]
    marks = [mark for mark in marks if mark != "None"]
    return Drained(
        batches=sum(1 for came in rows if came),
        rows_in=sum(rows),
        late=late,
        watermark=max(marks) if marks else None,
    )

"""Incremental read with Spark: a stream of notifications, each micro-batch joined to the rows as they are now.

Writes nothing. Which stream owns which checkpoint folder is kept in the stores; the same without a JVM is `changes`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.consumers.current_rows import KEY
from engagement_platform.consumers.lag import behind
from engagement_platform.consumers.reader import Position, TooFarBehind
from engagement_platform.consumers.streams import Followed, followed
from engagement_platform.engine.cursors import StreamCheckpoints, checkpoint_folder
from engagement_platform.engine.database import open_engine
from engagement_platform.lake import log
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.lake.lake import Lake, any_of
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW
from engagement_platform.pipelines.snapshot import current, snapshot

MAX_VALUES = 1_000
"""More organizations or days than this are not listed; then the join alone finds the rows."""


def stream(lake: Lake, *, name: str, checkpoint: str, store_url: str | None = None) -> DataFrame:
    """Notifications as a streaming frame, for a query whose checkpointLocation is `checkpoint`; that becomes its own.

    Join each micro-batch with `as_now` in foreachBatch: joined as a stream, rows would be those of when it started. For
    some organizations only, filter the frame; for a pull now and then, use the trigger `availableNow`.
    Raises CheckpointRefused when the folder belongs to another stream or this stream has another one, TooFarBehind,
    StoresUnavailable.
    """
    # Before anything is read of the folder: what another stream has yet to read says nothing of this one.
    StreamCheckpoints(open_engine(store_url or lake.settings.store_url)).claim(name, checkpoint)
    uri, folder = lake.uri(NOTIFICATION), checkpoint_folder(checkpoint)
    table_id = log.table_id(uri)
    at = followed(folder, table_id) or followed(folder, None)
    if isinstance(at, Followed):
        position = Position(at.version, table_id=at.table_id)
        if (why := behind(uri, position).lost) is not None:
            raise TooFarBehind(name, position, why, NOTIFICATION.name, stream=True)
    return lake.stream(NOTIFICATION)


def as_now(lake: Lake, notified: DataFrame) -> DataFrame:
    """What became of the engagements that some notifications name, one row each.

    In:  rows of `engagement/notification`, not streaming.
    Out: the columns of CURRENT_ROW with `change_type` first and `previous_person_id` last. A DELETE has only
         organization_id, engagement_id, engagement_date and previous_person_id.
    Cost: one pass over the notifications for their organizations and days, by which files of the Data Table are
    skipped, then one join.
    """
    changed = notified.groupBy(*KEY).agg(
        F.first("engagement_date").alias("changed_date"),
        F.min_by(F.struct("previous_person_id"), "batch_sequence").alias("before"),
    )
    rows = current(lake, snapshot(lake.root))
    for column in ("organization_id", "engagement_date"):
        values = [row[0] for row in notified.select(column).distinct().limit(MAX_VALUES + 1).collect()]
        if len(values) <= MAX_VALUES:
            rows = rows.where(any_of(column, values))
    joined = changed.join(rows.withColumn("stands", F.lit(True)), list(KEY), "left")
    previous = F.col("before.previous_person_id")
    kind = F.when(F.col("stands").isNull(), "DELETE").when(previous.isNull(), "INSERT").otherwise("UPDATE")
    shown = joined.withColumns(
        {"engagement_date": F.col("changed_date"), "change_type": kind, "previous_person_id": previous}
    )
    return shown.select("change_type", *CURRENT_ROW.names, "previous_person_id")

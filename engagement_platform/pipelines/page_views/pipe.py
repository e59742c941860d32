"""What each hop makes of the one before, from streaming frames to frames. Running them is `job`.

Rows are written when nothing can change them any more, which the watermarks say.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.pipelines.page_views.rules import refused_ahead
from engagement_platform.pipelines.page_views.tables import DAILY, PAGE_VIEW, SESSION, SHAPE, VIEW_QUARANTINE
from engagement_platform.sources.decoded_batches import decode_records, records_ddl
from engagement_platform.sources.messages import DecodingLimits

_NEVER = datetime(9999, 1, 1, tzinfo=UTC)


def decoded(raw: DataFrame, limits: DecodingLimits) -> DataFrame:
    """Every message with what became of it: `records_ddl`, one row each.

    A time may lie at most limits.max_ahead after the moment at which the message was produced: a stream has no other
    moment that is the same when it is read again, and one message from the future would close every session, and make
    all that comes until then late.
    """
    step = decode_records(SHAPE, limits, _NEVER)

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for found in step(iter([batch])):
                yield refused_ahead(batch, found, limits.max_ahead)

    return raw.mapInArrow(decode, records_ddl(SHAPE))


def page_views(raw: DataFrame, limits: DecodingLimits) -> DataFrame:
    """Messages that are page views: the columns of PAGE_VIEW."""
    return decoded(raw, limits).where(F.col("reason_code").isNull()).select(*PAGE_VIEW.column_names)


def refused(raw: DataFrame, limits: DecodingLimits) -> DataFrame:
    """The others: the columns of VIEW_QUARANTINE."""
    return decoded(raw, limits).where(F.col("reason_code").isNotNull()).select(*VIEW_QUARANTINE.column_names)


def sessions(views: DataFrame, gap: timedelta, late: timedelta) -> DataFrame:
    """Sessions that are over: the columns of SESSION.

    Two views of a user less than `gap` apart are of one session. A session is written when a view has come that is
    `late` after its end plus the gap; a view that comes later than that is counted as late and left out.
    """
    window = F.session_window("viewed_at", _interval(gap))
    timed = views.withWatermark("viewed_at", _interval(late))
    grouped = timed.groupBy(window, "user_id").agg(
        F.count("*").alias("views"), F.min("viewed_at").alias("started_at"), F.max("viewed_at").alias("ended_at")
    )
    return grouped.withColumn("session_date", F.to_date("ended_at")).select(*SESSION.column_names)


def daily(ended: DataFrame, late: timedelta) -> DataFrame:
    """Days that are over: the columns of DAILY.

    Sessions come nearly in the order of their ends, since the watermark of the hop before lets them go in that order;
    so none is late here. A day is written when a session has come that ended `late` after it.
    """
    timed = ended.withWatermark("ended_at", _interval(late))
    seconds = F.expr("(unix_micros(ended_at) - unix_micros(started_at)) div 1000000")
    grouped = timed.groupBy(F.window("ended_at", "1 day")).agg(
        F.count("*").alias("sessions"), F.sum("views").alias("views"), F.sum(seconds).alias("seconds")
    )
    return grouped.withColumn("session_date", F.to_date("window.start")).select(*DAILY.column_names)


def _interval(time: timedelta) -> str:
    return f"{int(time.total_seconds() * 1000)} milliseconds"

"""The chain of view analytics: its tables, and what each hop makes of the one before. Pure, from frames to frames.

Running the hops is `run`. Every table is append-only, so that the next hop, or anybody, may stream it; rows are written
when nothing can change them any more, which the watermarks say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.sources.messages import EVENT_DATE, DecodingLimits, Reason, RecordShape
from engagement_platform.sources.recorded_batches import decode_records, records_ddl

SHAPE = RecordShape(
    columns=(("view_id", "string"), ("user_id", "string"), ("page", "string"), ("viewed_at", "timestamp")),
    required=frozenset({"view_id", "user_id", "page", "viewed_at"}),
    ids=frozenset({"view_id", "user_id"}),
    event_time="viewed_at",
)
_COORDINATES = (
    Column("topic", "string", "Kafka topic."),
    Column("partition", "int", "Kafka partition."),
    Column("offset", "long", "Kafka offset."),
)

PAGE_VIEW = Table(
    key=("view", "page_view"),
    description="Page views as they came.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=(EVENT_DATE,),
    columns=(
        Column(EVENT_DATE, "date", "UTC day of viewed_at."),
        Column("viewed_at", "timestamp", "When, UTC."),
        Column("user_id", "string", "Who."),
        Column("page", "string", "What."),
        Column("view_id", "string", "As the producer calls it."),
        *_COORDINATES,
    ),
)
VIEW_QUARANTINE = Table(
    key=("view", "quarantine"),
    description="Messages that are no page views, whole, with the reason.",
    mode=Mode.APPEND_ONLY,
    columns=(
        *_COORDINATES,
        Column("key", "binary", "Kafka key, as it came."),
        Column("value", "binary", "Kafka value, as it came."),
        Column("reason_code", "string", "Stable code of the rule that was broken."),
        Column("reason", "string", "The same as a sentence."),
    ),
)
SESSION = Table(
    key=("view", "session"),
    description="Page views of one user without a longer pause between them; written once nothing can join it.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("session_date",),
    columns=(
        Column("session_date", "date", "UTC day of ended_at."),
        Column("ended_at", "timestamp", "Its last view, UTC."),
        Column("started_at", "timestamp", "Its first view, UTC."),
        Column("user_id", "string", "Who."),
        Column("views", "long", "How many."),
    ),
)
DAILY = Table(
    key=("view", "daily"),
    description="Sessions by the day they ended on; written once the day is over for the stream.",
    mode=Mode.APPEND_ONLY,
    columns=(
        Column("session_date", "date", "UTC day."),
        Column("sessions", "long", "How many ended."),
        Column("views", "long", "Their page views."),
        Column("seconds", "long", "Whole seconds from first to last view, all sessions together."),
    ),
)

_NEVER = datetime(9999, 1, 1, tzinfo=UTC)


def decoded(raw: DataFrame, limits: DecodingLimits) -> DataFrame:
    """Every message with what became of it: `records_ddl`, one row each.

    A time may lie at most limits.max_ahead after the moment at which the message was produced: a stream has no other
    moment that is the same when it is read again, and one message from the future would close every session.
    """
    return raw.mapInArrow(_decoder(limits), records_ddl(SHAPE))


def _decoder(limits: DecodingLimits) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    step = decode_records(SHAPE, limits, _NEVER)

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for found in step(iter([batch])):
                yield refused_ahead(batch, found, limits.max_ahead)

    return decode


def refused_ahead(raw: pa.RecordBatch, found: pa.RecordBatch, max_ahead: timedelta) -> pa.RecordBatch:
    """Decoded rows, those refused whose time is too far after they were produced."""
    latest = pc.add(found.column("produced_ts"), pa.scalar(max_ahead, pa.duration("us")))
    ahead = pc.fill_null(pc.greater(found.column("viewed_at"), latest), False)
    if not ahead.true_count:
        return found
    said = {
        "key": raw.column("key"),
        "value": raw.column("value"),
        "reason_code": pa.scalar(Reason.TIME_OUT_OF_RANGE.value),
        "reason": pa.scalar(Reason.TIME_OUT_OF_RANGE.rejection("viewed_at").sentence),
    }
    columns = {name: found.column(name) for name in found.schema.names}
    columns |= {name: pc.if_else(ahead, value, columns[name]) for name, value in said.items()}
    for name in (EVENT_DATE, *(name for name, _ in SHAPE.columns)):
        columns[name] = pc.if_else(ahead, pa.scalar(None, columns[name].type), columns[name])
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


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

"""Tables of page views, of sessions of them, and of days of those. All append-only: what reads on streams them."""

from __future__ import annotations

from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.sources.messages import EVENT_DATE, RecordShape

SHAPE = RecordShape(
    columns=(("view_id", "string"), ("user_id", "string"), ("page", "string"), ("viewed_at", "timestamp")),
    required=frozenset({"view_id", "user_id", "page", "viewed_at"}),
    ids=frozenset({"view_id", "user_id"}),
    event_time="viewed_at",
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
        *QUARANTINE.columns[:3],
    ),
)
VIEW_QUARANTINE = Table(
    key=("view", "quarantine"),
    description="Messages that are no page views, whole, with the reason.",
    mode=Mode.APPEND_ONLY,
    # Without the audit columns of a batch, since a stream has none.
    columns=QUARANTINE.columns[:7],
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

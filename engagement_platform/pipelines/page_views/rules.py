"""Which page views are refused by their time. No Spark, no I/O; what else is refused is `sources.decoding`."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.pipelines.page_views.tables import SHAPE
from engagement_platform.sources.messages import EVENT_DATE, Reason

AHEAD = "viewed_at is more than page_views.max_ahead after it was produced."


def refused_ahead(raw: pa.RecordBatch, found: pa.RecordBatch, max_ahead: timedelta) -> pa.RecordBatch:
    """Decoded rows, those refused whose time is too far after they were produced."""
    latest = pc.add(found.column("produced_ts"), pa.scalar(max_ahead, pa.duration("us")))
    ahead = pc.fill_null(pc.greater(found.column("viewed_at"), latest), False)
    if not ahead.true_count:
        return found
    refused = {
        "key": raw.column("key"),
        "value": raw.column("value"),
        "reason_code": pa.scalar(Reason.TIME_OUT_OF_RANGE.value),
        "reason": pa.scalar(AHEAD),
    }
    columns = {name: found.column(name) for name in found.schema.names}
    columns |= {name: pc.if_else(ahead, value, columns[name]) for name, value in refused.items()}
    for name in (EVENT_DATE, *(name for name, _ in SHAPE.columns)):
        columns[name] = pc.if_else(ahead, pa.scalar(None, columns[name].type), columns[name])
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

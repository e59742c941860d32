"""Whether those who read changes keep up, as an asset check. What lag is, is decided in `consumers.lag`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from engagement_platform.consumers.lag import Lag, lags, row_lags, stream_lags, told
from engagement_platform.defs.specs import key_of
from engagement_platform.engine.cursors import CursorStore, StreamCheckpoints
from engagement_platform.engine.job import Stores
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.settings import Settings

CONSUMERS_KEEP_UP = "consumers_keep_up"


def keep_up(settings: Settings, stores: Stores) -> dg.AssetCheckResult:
    """The check as it stands now. Reads cursors and the ends of the logs of the tables that are followed."""
    cursors, streams = CursorStore(stores.leases.engine), StreamCheckpoints(stores.leases.engine)
    found = [*lags(settings, cursors), *row_lags(settings, cursors), *stream_lags(settings, streams)]
    return keep_up_result(found, datetime.now(UTC), settings.consumers.max_lag)


def keep_up_result(found: Sequence[Lag], now: datetime, max_lag: timedelta) -> dg.AssetCheckResult:
    """Passed when no consumer is lost or further behind than max_lag; exactly that is fine. Nobody reading is fine."""
    late = told(found, now, max_lag)
    columns = [dg.TableColumn(name) for name in ("consumer", "of", "waiting", "oldest_waiting_s", "last_commit")]
    records = [
        dg.TableRecord(
            {
                "consumer": lag.name,
                "of": lag.table,
                "waiting": str(lag.rows),
                "oldest_waiting_s": f"{lag.age(now).total_seconds():.0f}",
                "last_commit": f"{lag.committed_ts:%Y-%m-%d %H:%M:%S}",
            }
        )
        for lag in found
    ]
    return dg.AssetCheckResult(
        passed=not late,
        asset_key=key_of(NOTIFICATION),
        check_name=CONSUMERS_KEEP_UP,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(late) or None,
        metadata={
            "consumers": len(found),
            "waiting": max((lag.rows for lag in found), default=0),
            "oldest_waiting_s": round(max((lag.age(now).total_seconds() for lag in found), default=0.0), 1),
            "each": dg.MetadataValue.table(records, dg.TableSchema(columns)),
        },
    )

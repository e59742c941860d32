"""Asset checks that need no run and no Spark: a sensor reports them from broker and stores.

`verification` has those that read the tables; conservation comes with the runs (`ingestion`).
"""

# No `from __future__ import annotations` beside Dagster's decorators.

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from engagement_platform.consumers.lag import Lag, lags, late
from engagement_platform.defs.backlog import Waiting, waiting
from engagement_platform.defs.evaluations import report_news
from engagement_platform.defs.mutation_checks import ANNOUNCED_BATCHES, Announced, announced_rows, not_announced
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.specs import DATA_TABLE, key_of
from engagement_platform.engine.job import Stores
from engagement_platform.errors import PlatformError
from engagement_platform.lake.engagement import MUTATION_REQUEST, NOTIFICATION, QUARANTINE
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, JOB_NAMES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka_errors import TopicMissing
from engagement_platform.status import Waiting as Pending
from engagement_platform.status import pending_changes, succeeded, summed

DATA, NOTIFIED, REQUESTS, REJECTED = map(key_of, (DATA_TABLE, NOTIFICATION, MUTATION_REQUEST, QUARANTINE))

FRESH = "fresh"
QUARANTINE_SHARE = "quarantine_share"
ANNOUNCED_ROWS = "announced_rows"
PENDING_AGE = "pending_age"
# A guess: sample traffic rejects 0.1 %, a producer that changed its format nearly all.
QUARANTINE_WARN_PERCENT = 5
QUARANTINE_BATCHES = 100
CONSUMERS_KEEP_UP = "consumers_keep_up"


def freshness_result(
    asset: dg.AssetKey, oldest: datetime | None, backlog: int, now: datetime, limit: timedelta
) -> dg.AssetCheckResult:
    """Passed when nothing waits for longer than the limit; exactly the limit is fine."""
    age = now - oldest if oldest else timedelta(0)
    late = age > limit
    return dg.AssetCheckResult(
        passed=not late,
        asset_key=asset,
        check_name=FRESH,
        description=f"The oldest of {backlog:,} waiting messages is {age.total_seconds():.0f} s old; the limit "
        f"is {limit.total_seconds():.0f} s. Look at the sensors and at the last runs." if late else None,
        metadata={"oldest_waiting_s": round(max(0.0, age.total_seconds()), 1), "waiting": backlog},
    )  # fmt: skip


def freshness(job: str, asset: dg.AssetKey, looked: Waiting, topic: str | None = None) -> dg.AssetCheckResult:
    """Age of the oldest message that no finished batch has read. A warning, not a failure, where nobody can tell."""
    try:
        oldest, backlog = looked.oldest(job, topic), looked.backlog(job, topic)
    except PlatformError as error:
        return dg.AssetCheckResult(
            passed=False,
            asset_key=asset,
            check_name=FRESH,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"Nobody can tell: {error}",
        )
    return freshness_result(asset, oldest, backlog, datetime.now(UTC), looked.settings.quality.freshness)


def fresh_result(job: str, asset: dg.AssetKey, looked: Waiting, topic: str) -> dg.AssetCheckResult:
    """As `freshness`; who has no topic for this, and never had one, has nothing to be told of."""
    if looked.checkpoint(job) is None:
        try:
            looked.backlog(job, topic)
        except TopicMissing:
            return dg.AssetCheckResult(passed=True, asset_key=asset, check_name=FRESH, description="No topic.")
    return freshness(job, asset, looked, topic)


def pending_age_result(pending: Pending, now: datetime, max_pending: timedelta) -> dg.AssetCheckResult:
    """Passed when no change pends for longer than twice max_pending, the second half of which is for the move itself.

    Exactly that is fine.
    """
    age = timedelta(0) if pending.since is None else now - pending.since
    late = age > 2 * max_pending
    return dg.AssetCheckResult(
        passed=not late,
        asset_key=DATA,
        check_name=PENDING_AGE,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{pending.rows:,} rows pend, the oldest for {age.total_seconds():.0f} s; mutation.max_pending is "
        f"{max_pending.total_seconds():.0f} s. Look at the last runs of rematerialize_aliases." if late else None,
        metadata={"pending_rows": pending.rows, "oldest_pending_s": round(max(0.0, age.total_seconds()), 1)},
    )  # fmt: skip


def pending_age(looked: Waiting) -> dg.AssetCheckResult:
    """How long changes of engagements and names pend."""
    waits = pending_changes(looked.settings, looked.stores)
    return pending_age_result(waits, datetime.now(UTC), looked.settings.mutation.max_pending)


def quarantine_share_result(rows_in: int, quarantined: int, warn_percent: int) -> dg.AssetCheckResult:
    """Passed when at most warn_percent of the records were rejected. Nothing received is fine."""
    too_many = quarantined * 100 > warn_percent * rows_in
    return dg.AssetCheckResult(
        passed=not too_many,
        asset_key=REJECTED,
        check_name=QUARANTINE_SHARE,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{quarantined:,} of the last {rows_in:,} records were rejected, more than {warn_percent} %. The "
        "column reason of engagement/quarantine says why." if too_many else None,
        metadata={"rows_in": rows_in, "quarantined": quarantined},
    )  # fmt: skip


def quarantine_share(looked: Waiting) -> dg.AssetCheckResult:
    """Rejected records among those of the last batches of all jobs."""
    history = looked.stores.checkpoints.history
    totals = summed(record for job in JOB_NAMES for record in succeeded(history(job, limit=QUARANTINE_BATCHES)))
    return quarantine_share_result(totals["rows_in"], totals["quarantined"], QUARANTINE_WARN_PERCENT)


def announced_rows_result(found: Sequence[Announced]) -> dg.AssetCheckResult:
    """Passed when every batch of `apply-mutations` announced each row it counted, and no other. No batch is fine."""
    wrong = not_announced(found)
    return dg.AssetCheckResult(
        passed=not wrong,
        asset_key=NOTIFIED,
        check_name=ANNOUNCED_ROWS,
        description="; ".join(wrong) or None,
        metadata={
            "batches": len(found),
            "rows_changed": sum(of.seen for of in found),
            "notifications": sum(of.notifications for of in found),
        },
    )


def keep_up(settings: Settings, stores: Stores) -> dg.AssetCheckResult:
    """The check as it stands now. Reads cursors and the ends of the logs of the tables that are followed."""
    return keep_up_result(lags(settings, stores.leases.engine), datetime.now(UTC), settings.consumers.max_lag)


def keep_up_result(found: Sequence[Lag], now: datetime, max_lag: timedelta) -> dg.AssetCheckResult:
    """Passed when no consumer is lost or further behind than max_lag; exactly that is fine. Nobody reading is fine."""
    wrong = late(found, now, max_lag)
    columns = [dg.TableColumn(name) for name in ("consumer", "of", "waiting", "oldest_waiting_s", "last_commit")]
    records = [
        dg.TableRecord(
            {
                "consumer": lag.name,
                "of": lag.table,
                "waiting": str(lag.behind.rows),
                "oldest_waiting_s": f"{lag.age_s(now):.0f}",
                "last_commit": f"{lag.committed_ts:%Y-%m-%d %H:%M:%S}",
            }
        )
        for lag in found
    ]
    return dg.AssetCheckResult(
        passed=not wrong,
        asset_key=NOTIFIED,
        check_name=CONSUMERS_KEEP_UP,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(wrong) or None,
        metadata={
            "consumers": len(found),
            "waiting": max((lag.behind.rows for lag in found), default=0),
            "oldest_waiting_s": max((lag.age_s(now) for lag in found), default=0.0),
            "each": dg.MetadataValue.table(records, dg.TableSchema(columns)),
        },
    )


def watched(looked: Waiting) -> list[dg.AssetCheckResult]:
    """The checks that need no Spark, as they stand now. Within PATIENCE for each when the broker is down."""
    return [
        freshness(INGEST_ENGAGEMENTS, DATA, looked),
        freshness(INGEST_MUTATION_REQUESTS, REQUESTS, looked),
        freshness(APPLY_MUTATIONS, NOTIFIED, looked),
        pending_age(looked),
        quarantine_share(looked),
        announced_rows_result(announced_rows(looked.settings, looked.stores)),
        keep_up(looked.settings, looked.stores),
    ]


def selected(
    context: dg.AssetCheckExecutionContext, results: Sequence[dg.AssetCheckResult]
) -> Iterator[dg.AssetCheckResult]:
    """Those a run asked for: one that materializes some assets by hand asks for the checks of those."""
    for result in results:
        if dg.AssetCheckKey(result.asset_key or DATA, result.check_name or "") in context.selected_asset_check_keys:
            yield result


@dg.multi_asset_check(
    name="watch_stores_and_broker",
    can_subset=True,
    specs=[
        dg.AssetCheckSpec(FRESH, asset=DATA, description="No message waits longer than `quality.freshness`."),
        dg.AssetCheckSpec(FRESH, asset=REQUESTS, description="No message waits longer than `quality.freshness`."),
        dg.AssetCheckSpec(
            FRESH, asset=NOTIFIED, description="No request waits longer than `quality.freshness` to be announced."
        ),
        dg.AssetCheckSpec(
            PENDING_AGE, asset=DATA, description="No change waits longer than twice `mutation.max_pending` to be moved."
        ),
        dg.AssetCheckSpec(
            ANNOUNCED_ROWS, asset=NOTIFIED,
            description=f"The last {ANNOUNCED_BATCHES} batches of requests announced every row they changed, once.",
        ),
        dg.AssetCheckSpec(
            CONSUMERS_KEEP_UP, asset=NOTIFIED,
            description="No consumer of changes is further behind than `consumers.max_lag`.",
        ),
        dg.AssetCheckSpec(
            QUARANTINE_SHARE, asset=REJECTED,
            description=f"At most {QUARANTINE_WARN_PERCENT} % of the last {QUARANTINE_BATCHES} batches were rejected.",
        ),
    ],
)  # fmt: skip
def watch_stores_and_broker(
    context: dg.AssetCheckExecutionContext, platform: Platform
) -> Iterator[dg.AssetCheckResult]:
    """Freshness and quarantine from broker and stores; the sensor `watch` reports the same without a run."""
    yield from selected(context, watched(waiting(platform.settings())))


@dg.sensor(
    minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reports the checks that need no run: freshness, and the share of rejected records.",
)  # fmt: skip
def watch(context: dg.SensorEvaluationContext, platform: Platform) -> dg.SkipReason:
    """Freshness and quarantine, from broker and stores."""
    return dg.SkipReason(f"Reported {report_news(context, watched(waiting(platform.settings())))} checks.")


def definitions() -> dg.Definitions:
    """Checks and sensor of this module."""
    return dg.Definitions(asset_checks=[watch_stores_and_broker], sensors=[watch])

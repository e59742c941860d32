"""Asset checks that need no run and no Spark: a sensor reports them from broker and stores.

`verification` has those that read the tables; conservation comes with the runs (`ingestion`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg
from deltalake.exceptions import DeltaError
from sqlalchemy import Engine

from engagement_platform.consumers.lag import Lag, lags, late
from engagement_platform.defs.backlog import Waiting
from engagement_platform.defs.batches import rows_table
from engagement_platform.defs.evaluations import WARN, cannot_tell, check_result
from engagement_platform.defs.mutation_checks import ANNOUNCED_BATCHES, Announced, announced_rows
from engagement_platform.defs.sensors import watched
from engagement_platform.defs.specs import DATA_TABLE, key_of
from engagement_platform.engine.model import Counts
from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake.engagement import MUTATION_REQUEST, NOTIFICATION, QUARANTINE
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, JOB_NAMES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.status import Waiting as Pending
from engagement_platform.pipelines.status import pending_changes, succeeded, summed
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka_errors import TopicMissing

DATA, NOTIFIED, REQUESTS, REJECTED = map(key_of, (DATA_TABLE, NOTIFICATION, MUTATION_REQUEST, QUARANTINE))

FRESH = "fresh"
QUARANTINE_SHARE = "quarantine_share"
ANNOUNCED_ROWS = "announced_rows"
PENDING_AGE = "pending_age"
CONSUMERS_KEEP_UP = "consumers_keep_up"
QUARANTINE_WARN_PERCENT = 5
"""A guess: sample traffic rejects 0.1 %, a producer that changed its format nearly all."""
QUARANTINE_BATCHES = 100

CHECKS = {
    (DATA, FRESH): "No message waits longer than `quality.freshness`.",
    (REQUESTS, FRESH): "No message waits longer than `quality.freshness`.",
    (NOTIFIED, FRESH): "No request waits longer than `quality.freshness` to be announced.",
    (DATA, PENDING_AGE): "No change waits longer than twice `mutation.max_pending` to be moved.",
    (NOTIFIED, ANNOUNCED_ROWS): f"The last {ANNOUNCED_BATCHES} batches of requests announced every row they changed.",
    (NOTIFIED, CONSUMERS_KEEP_UP): "No consumer of changes is further behind than `consumers.max_lag`.",
    (REJECTED, QUARANTINE_SHARE): (
        f"At most {QUARANTINE_WARN_PERCENT} % of the last {QUARANTINE_BATCHES} batches of each job were rejected."
    ),
}


def freshness_result(
    asset: dg.AssetKey, oldest: datetime | None, backlog: int, now: datetime, limit: timedelta
) -> dg.AssetCheckResult:
    """Passed when nothing waits for longer than the limit; exactly the limit is fine."""
    age = now - oldest if oldest else timedelta(0)
    stale = (
        f"The oldest of {backlog:,} waiting messages is {age.total_seconds():.0f} s old; the limit is "
        f"{limit.total_seconds():.0f} s. Look at the sensors and at the last runs."
    )
    shown = {"oldest_waiting_s": round(max(0.0, age.total_seconds()), 1), "waiting": backlog}
    return check_result(asset, FRESH, stale if age > limit else None, shown)


def freshness(job: str, asset: dg.AssetKey, looked: Waiting, topic: str | None = None) -> dg.AssetCheckResult:
    """Age of the oldest message that no finished batch has read; a topic that is not there and never was is fine."""
    try:
        oldest, backlog = looked.oldest(job, topic), looked.backlog(job, topic)
    except PlatformError as error:
        if isinstance(error, TopicMissing) and topic is not None and looked.checkpoint(job) is None:
            return dg.AssetCheckResult(passed=True, asset_key=asset, check_name=FRESH, description="No topic.")
        return cannot_tell(asset, FRESH, error)
    return freshness_result(asset, oldest, backlog, datetime.now(UTC), looked.settings.quality.freshness)


def pending_age_result(pending: Pending, now: datetime, max_pending: timedelta) -> dg.AssetCheckResult:
    """Passed when no change pends for longer than twice max_pending, the second half of which is for the move itself.

    Exactly that is fine.
    """
    age = timedelta(0) if pending.since is None else now - pending.since
    stale = (
        f"{pending.rows:,} rows pend, the oldest for {age.total_seconds():.0f} s; mutation.max_pending is "
        f"{max_pending.total_seconds():.0f} s. Look at the last runs of rematerialize_aliases."
    )
    shown = {"pending_rows": pending.rows, "oldest_pending_s": round(max(0.0, age.total_seconds()), 1)}
    return check_result(DATA, PENDING_AGE, stale if age > 2 * max_pending else None, shown, severity=WARN)


def quarantine_share_result(jobs: Mapping[str, Counts], warn_percent: int) -> dg.AssetCheckResult:
    """Passed when at most warn_percent of what each job received was rejected: a large one must not hide a small one.

    jobs: sums of the counts of their last batches. Nothing received is fine, and so is one record that was rejected.
    """
    received = {job: (counts.get("rows_in", 0), counts.get("quarantined", 0)) for job, counts in jobs.items()}
    wrong = [
        f"{rejected:,} of the last {rows_in:,} records of {job} were rejected, more than {warn_percent} %"
        for job, (rows_in, rejected) in received.items()
        if rejected > 1 and rejected * 100 > warn_percent * rows_in
    ]
    says = f"{'; '.join(wrong)}. The column reason of the quarantine says why." if wrong else None
    shown = {name: sum(each[n] for each in received.values()) for n, name in enumerate(("rows_in", "quarantined"))}
    return check_result(REJECTED, QUARANTINE_SHARE, says, shown, severity=WARN)


def announced_rows_result(found: Sequence[Announced]) -> dg.AssetCheckResult:
    """Passed when every batch of `apply-mutations` announced each row it counted, and no other. No batch is fine."""
    shown = {
        "batches": len(found),
        "rows_changed": sum(of.seen for of in found),
        "notifications": sum(of.notifications for of in found),
    }
    wrong = [
        f"{of.batch} changed {of.seen:,} rows for readers and announced {of.notifications:,}"
        for of in found
        if of.seen != of.notifications
    ]
    return check_result(NOTIFIED, ANNOUNCED_ROWS, "; ".join(wrong), shown)


def keep_up_result(found: Sequence[Lag], now: datetime, max_lag: timedelta) -> dg.AssetCheckResult:
    """Passed when no consumer is lost or further behind than max_lag; exactly that is fine, and so is no consumer."""
    rows = [
        {
            "consumer": lag.name,
            "of": lag.table,
            "waiting": str(lag.behind.rows),
            "oldest_waiting_s": f"{lag.age_s(now):.0f}",
            "last_commit": f"{lag.committed_ts:%Y-%m-%d %H:%M:%S}",
        }
        for lag in found
    ]
    shown = {
        "consumers": len(found),
        "waiting": max((lag.behind.rows for lag in found), default=0),
        "oldest_waiting_s": max((lag.age_s(now) for lag in found), default=0.0),
        **({"each": rows_table(rows)} if rows else {}),
    }
    return check_result(NOTIFIED, CONSUMERS_KEEP_UP, " ".join(late(found, now, max_lag)), shown, severity=WARN)


def results(looked: Waiting) -> list[dg.AssetCheckResult]:
    """The checks as they are now. Within PATIENCE for each of freshness when the broker is down."""
    settings, stores, now = looked.settings, looked.stores, datetime.now(UTC)
    batches = {job: stores.checkpoints.history(job, limit=QUARANTINE_BATCHES) for job in JOB_NAMES}
    received = {job: summed(succeeded(history)) for job, history in batches.items()}
    return [
        freshness(INGEST_ENGAGEMENTS, DATA, looked),
        freshness(INGEST_MUTATION_REQUESTS, REQUESTS, looked),
        freshness(APPLY_MUTATIONS, NOTIFIED, looked),
        pending_age_result(pending_changes(settings, stores), now, settings.mutation.max_pending),
        quarantine_share_result(received, QUARANTINE_WARN_PERCENT),
        announced_rows_result(announced_rows(settings, stores)),
        _keep_up(settings, stores.leases.engine, now),
    ]


def _keep_up(settings: Settings, engine: Engine, now: datetime) -> dg.AssetCheckResult:
    """A table of a consumer whose log nobody can read must not keep the other checks from being reported."""
    try:
        found = lags(settings, engine)
    except (PlatformError, DeltaError, OSError) as error:
        return cannot_tell(NOTIFIED, CONSUMERS_KEEP_UP, first_line(error))
    return keep_up_result(found, now, settings.consumers.max_lag)


def definitions() -> dg.Definitions:
    reports = "Reports the checks that need no run: freshness, and the share of rejected records."
    return watched("watch_stores_and_broker", CHECKS, results, "watch", reports)

"""The replica in DuckDB as an asset that follows the notifications, and the check that it equals the tables.

What it is made of, and how it is compared, is in the package `replica`. Nothing here starts Spark.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from engagement_platform.consumers.lag import Lag
from engagement_platform.defs.batches import Metadata
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.plot import histogram
from engagement_platform.defs.specs import DATA_TABLE, GROUP, OWNERS, column_schema, key_of
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.replica.compare import Compared, compare
from engagement_platform.replica.refresh import Refreshed, place_of, refresh
from engagement_platform.replica.summaries import Day, Summary, lag_of, summary

REPLICA = dg.AssetKey(["engagement", "replica"])
EQUALS_TABLE = "replica_equals_table"

# One process at a time has the file open.
REPLICA_POOL = "engagement_replica"

DAYS_SHOWN = 14
_DIFFERENCES_SHOWN = 20

# Runs that write notifications materialize them when they end, and every five minutes while they drain.
# A refresh is a run of its own, some 5 s of one core on two cores, so that there is one a minute at most. Not
# `eager()`: that waits for runs that write the notifications, which drain for minutes. What comes between a request and
# the next evaluation counts as handled by it (Dagster 1.13), whether or not the run has seen it: hence the look every
# quarter of an hour.
_MINUTE, _QUARTER, _HOURLY = "* * * * *", "*/15 * * * *", "17 * * * *"


def _unhandled(condition: dg.AutomationCondition[Any]) -> dg.AutomationCondition[Any]:
    """Since the last run that was asked for."""
    return condition.since_last_handled()


def _passed(cron: str) -> dg.AutomationCondition[Any]:
    return _unhandled(dg.AutomationCondition.cron_tick_passed(cron, "UTC"))


_CAME = _unhandled(dg.AutomationCondition.any_deps_updated()) & _passed(_MINUTE)
REFRESHED: dg.AutomationCondition[Any] = (
    (_CAME | _passed(_QUARTER)) & ~dg.AutomationCondition.in_progress()
).with_label("something came, at most once a minute; or a quarter of an hour has passed")
# The comparison reads the whole Data Table.
COMPARED: dg.AutomationCondition[Any] = (_passed(_HOURLY) & ~dg.AutomationCondition.in_progress()).with_label(
    "once an hour"
)


def refreshed_metadata(done: Refreshed, found: Summary, lag: Lag | None, now: datetime) -> Metadata:
    """What a refresh says of itself: rows, lag, what changed, and the last days as a picture."""
    value, totals = dg.MetadataValue, found.totals
    shown: Metadata = {
        "last_days": value.md(days_picture(found.days)),
        "rows": value.int(totals.engagements),
        "organizations": value.int(totals.organizations),
        "persons": value.int(totals.persons),
        "converted": value.int(totals.converted),
        "waiting": value.int(0 if lag is None else lag.rows),
        "lag_s": value.float(0.0 if lag is None else round(lag.age(now) / timedelta(seconds=1), 1)),
        "bytes": value.int(totals.bytes),
    }
    shown |= {name: value.int(getattr(done, name)) for name in ("batches", "inserted", "updated", "deleted")}
    if done.snapshot is not None:
        shown["snapshot"] = value.text(done.snapshot)
    if done.state.batch is not None:
        shown["batch"] = value.text(done.state.batch)
    return shown


def days_picture(days: Sequence[Day]) -> str:
    """Engagements of the newest days, of all organizations together."""
    summed: dict[str, int] = {}
    for day in days:
        summed[day.day.isoformat()] = summed.get(day.day.isoformat(), 0) + day.engagements
    newest = sorted(summed)[-DAYS_SHOWN:]
    return histogram("engagements per day", newest, [summed[day] for day in newest])


def compared_result(found: Compared) -> dg.AssetCheckResult:
    """Passed when no organization differs."""
    shown = [str(difference) for difference in found.differences[:_DIFFERENCES_SHOWN]]
    return dg.AssetCheckResult(
        passed=not found.differences,
        asset_key=REPLICA,
        check_name=EQUALS_TABLE,
        description="; ".join(shown) or None,
        metadata={
            "differing_organizations": len(found.differences),
            "organizations": found.organizations,
            "rows": found.rows,
            "attempts": found.attempts,
        },
    )


@dg.asset(
    key=REPLICA,
    deps=[key_of(NOTIFICATION)],
    group_name=GROUP,
    owners=list(OWNERS),
    kinds={"duckdb"},
    pool=REPLICA_POOL,
    automation_condition=REFRESHED,
    metadata={"dagster/column_schema": column_schema(DATA_TABLE)},
    description="Engagements as they are now, in one DuckDB file, refreshed by what changed. The first consumer of the "
    "notifications; draw it with `engagement-platform replica page`.",
)
def engagement_replica(context: dg.AssetExecutionContext, platform: Platform) -> dg.MaterializeResult[None]:
    """All that was announced since the last refresh."""
    settings = platform.settings()
    place = place_of(settings)
    done = refresh(settings, place)
    if done.snapshot is not None:
        context.log.info(f"All rows were replaced: {done.snapshot}")
    return dg.MaterializeResult(
        metadata=refreshed_metadata(done, summary(place), lag_of(settings, place), datetime.now(UTC))
    )


@dg.asset_check(
    asset=REPLICA,
    name=EQUALS_TABLE,
    pool=REPLICA_POOL,
    automation_condition=COMPARED,
    description="For each organization the replica has the rows that readers of the tables see: as many, with the same "
    "checksum. Reads the whole Data Table.",
)
def replica_equals_table(platform: Platform) -> dg.AssetCheckResult:
    """Refreshes first, so that only what no refresh mends is told."""
    settings = platform.settings()
    return compared_result(compare(settings, place_of(settings)))


replica_automation = dg.AutomationConditionSensorDefinition(
    "replica_automation",
    target=dg.AssetSelection.assets(REPLICA) | dg.AssetSelection.checks_for_assets(REPLICA),
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description="Refreshes the replica in DuckDB after notifications, and compares it once an hour.",
)


def definitions() -> dg.Definitions:
    """Asset, check and the sensor that evaluates their conditions."""
    return dg.Definitions(
        assets=[engagement_replica], asset_checks=[replica_equals_table], sensors=[replica_automation]
    )

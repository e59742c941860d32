"""Jobs that look after the files of tables, when they are launched, and the asset by which one organization is.

What they do is in `layout/`, what they show in `upkeep`.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

from functools import partial

import dagster as dg

from engagement_platform.defs.platform import Platform, open_spark
from engagement_platform.defs.specs import GROUP, OWNERS, column_schema, key_of
from engagement_platform.defs.upkeep import (
    MAX_PARTITIONS,
    Context,
    callbacks_of,
    key_of_organization,
    observe_tables,
    optimized_metadata,
    organization_of,
    refuse_failed,
    vacuumed_metadata,
)
from engagement_platform.lake.layout import LAYOUT_HISTORY
from engagement_platform.layout.optimize import Asked
from engagement_platform.settings import Settings

# Its own, and one for all of it: two runs would rewrite the same files. Writers are in other pools and not kept out;
# between them and maintenance the tables' leases decide, slice by slice.
MAINTENANCE_POOL = "maintenance"

ORGANIZATIONS = dg.DynamicPartitionsDefinition(name="organization")


def optimize(context: Context, settings: Settings, asked: Asked) -> dg.MaterializeResult[None]:
    """Plan, do, and say what came of it."""
    from engagement_platform.layout import optimize as layout

    plan, spark = layout.planned(settings, asked), partial(open_spark, settings, "optimize")
    outcomes = list(layout.optimize(settings, plan, callbacks_of(context), spark))
    observe_tables(context, outcomes)
    refuse_failed(outcomes)
    return dg.MaterializeResult(metadata=optimized_metadata(outcomes, plan.unread))


@dg.op(pool=MAINTENANCE_POOL)
def optimize_changed(context: dg.OpExecutionContext, platform: Platform) -> None:
    """Partitions that changed and gain most, within the budget; the next run goes on with the others."""
    done = optimize(context, platform.settings(), Asked())
    context.add_output_metadata(done.metadata or {})


@dg.op(pool=MAINTENANCE_POOL)
def merge_further(context: dg.OpExecutionContext, platform: Platform) -> None:
    """Everything below the larger target, changed or not."""
    done = optimize(context, platform.settings(), Asked(second_round=True))
    context.add_output_metadata(done.metadata or {})


@dg.op(pool=MAINTENANCE_POOL)
def vacuum(context: dg.OpExecutionContext, platform: Platform) -> None:
    """Files that nobody may still read, as the guard of each table says."""
    from engagement_platform.layout.vacuum import vacuum_tables

    settings = platform.settings()
    done = vacuum_tables(settings, open_spark=partial(open_spark, settings, "vacuum"))
    context.add_output_metadata(vacuumed_metadata(done))


@dg.job
def optimize_tables() -> None:
    """Merge small files and order them anew where tables changed since the last time. No row changes."""
    optimize_changed()


@dg.job
def second_round() -> None:
    """Merge what the daily runs left, up to a larger size of files. No row changes."""
    merge_further()


@dg.job
def vacuum_tables() -> None:
    """Delete files that tables no longer consist of and nobody may still read: older versions cannot be read then."""
    vacuum()


@dg.asset(
    key=key_of(LAYOUT_HISTORY),
    partitions_def=ORGANIZATIONS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool=MAINTENANCE_POOL,
    group_name=GROUP,
    owners=list(OWNERS),
    kinds={"deltalake"},
    description=f"{LAYOUT_HISTORY.description} Materialize a partition to optimize the tables of that organization.",
    metadata={"dagster/column_schema": column_schema(LAYOUT_HISTORY)},
)
def layout_history(context: dg.AssetExecutionContext, platform: Platform) -> dg.MaterializeResult[None]:
    """All tables' partitions of the chosen organizations, in one run."""
    chosen = tuple(map(organization_of, context.partition_keys))
    return optimize(context, platform.settings(), Asked(organizations=chosen))


optimize_organizations = dg.define_asset_job(
    "optimize_organizations",
    # The checks of this table's own files come with those of the others.
    selection=dg.AssetSelection.assets(layout_history).without_checks(),
    description="Optimize the partitions of chosen organizations; a backfill of several is one run.",
)


@dg.sensor(
    minimum_interval_seconds=600, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Adds organizations that have landed to the partitions by which one can be optimized.",
)  # fmt: skip
def organizations_found(context: dg.SensorEvaluationContext, platform: Platform) -> dg.SensorResult | dg.SkipReason:
    """Partition values of the tables that Dagster does not know yet."""
    from engagement_platform.layout.optimize import organizations

    known = set(context.instance.get_dynamic_partitions(str(ORGANIZATIONS.name)))
    keys = {key_of_organization(name) for name in organizations(platform.settings())}
    new = sorted(keys - known)[: MAX_PARTITIONS - len(known)]
    if not new:
        return dg.SkipReason("No organization is new.")
    return dg.SensorResult(dynamic_partitions_requests=[ORGANIZATIONS.build_add_request(new)])


def _schedule(job: dg.JobDefinition, cron: str) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        job=job, cron_schedule=cron, execution_timezone="UTC", default_status=dg.DefaultScheduleStatus.RUNNING
    )


# At night, one after the other; the pool keeps them apart where they take longer. VACUUM comes last, so that the day's
# own rewrites begin to count.
SCHEDULES = (
    _schedule(optimize_tables, "0 1 * * *"),
    _schedule(second_round, "0 2 * * 0"),
    _schedule(vacuum_tables, "30 3 * * *"),
)


def definitions() -> dg.Definitions:
    """Jobs, schedules, the asset and the sensor of this module."""
    return dg.Definitions(
        assets=[layout_history],
        jobs=[optimize_tables, second_round, vacuum_tables, optimize_organizations],
        schedules=SCHEDULES,
        sensors=[organizations_found],
    )

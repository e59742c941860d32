"""Jobs that look after the files of tables, when they are launched, and the asset by which one organization is.

What they do is in `maintenance.layout`.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

import re
import time
from collections.abc import Sequence
from functools import partial
from urllib.parse import unquote

import dagster as dg

from engagement_platform.defs.batches import Metadata, rows_table
from engagement_platform.defs.materialization_events import Context
from engagement_platform.defs.platform import Platform, open_spark
from engagement_platform.defs.sensors import RETRIED, TRIED_AGAIN, Answer, recent_runs, schedule, sensor, too_soon
from engagement_platform.defs.specs import MAINTENANCE, column_schema, key_of
from engagement_platform.errors import PlatformError
from engagement_platform.maintenance.layout.history import LAYOUT_HISTORY
from engagement_platform.maintenance.layout.optimize import Asked, Callbacks, Done, Outcome, planned
from engagement_platform.maintenance.layout.plan import Left
from engagement_platform.maintenance.layout.vacuum import Vacuumed
from engagement_platform.settings import Settings

# Its own, and one for all of it: two runs would rewrite the same files. Writers are in other pools and not kept out;
# between them and maintenance the tables' leases decide, slice by slice.
MAINTENANCE_POOL = "maintenance"

ORGANIZATIONS = dg.DynamicPartitionsDefinition(name="organization")

MAX_PARTITIONS = 100_000
"""Dagster's limit for one asset; organizations beyond it are looked after by the daily run only."""

BY_DAY_PAUSE_S = 600
"""Between two runs that do not wait for the night, at least; each costs a process."""

SHOWN = 50
"""Rows of a table in a run's page."""

_REFUSED = re.compile(r"%|\.(?=\.\.)")


def key_of_organization(organization: str) -> str:
    """As a partition key. Dagster reads three dots as a range, so the first is escaped, and so is the escape.

    >>> key_of_organization("a...b"), key_of_organization("100%"), key_of_organization("org-7")
    ('a%2E..b', '100%25', 'org-7')
    """
    return _REFUSED.sub(lambda match: f"%{ord(match[0]):02X}", organization)


def optimize(context: Context, settings: Settings, asked: Asked) -> Metadata:
    """Optimize what is asked, observe each table that is concerned, and fail when a table could not be rewritten."""
    from engagement_platform.maintenance.layout import optimize as layout

    callbacks = Callbacks(
        on_slice=lambda one: context.log.info(f"{one}: {one.action}; {one.why}"),
        on_outcome=lambda outcome: context.log.info(_line(outcome)),
        on_wait=lambda one, holder: context.log.info(f"{one} waits: {holder}"),
    )
    plan, spark = layout.planned(settings, asked), partial(open_spark, settings, "optimize")
    outcomes = list(layout.optimize(settings, plan, callbacks, spark))
    for name in sorted({one.slice.table.name for one in outcomes}):
        own = [one for one in outcomes if one.slice.table.name == name]
        key = dg.AssetKey(name.strip("/").split("/"))
        context.log_event(dg.AssetObservation(key, metadata=optimized_metadata(own)))
    failed = [one for one in outcomes if isinstance(one, Left) and one.failed]
    if failed:
        raise dg.Failure(
            f"{len(failed)} slices failed, the first is {failed[0].slice}: {failed[0].why}",
            metadata=optimized_metadata(outcomes),
            allow_retries=False,
        )
    return optimized_metadata(outcomes, plan.unread)


def _line(outcome: Outcome) -> str:
    if isinstance(outcome, Done):
        return f"{outcome.slice}: {outcome.files_before} -> {outcome.files_after} files in {outcome.seconds:.1f} s"
    return f"{outcome.slice} is left: {outcome.why}"


def optimized_metadata(outcomes: Sequence[Outcome], unread: Sequence[str] = ()) -> Metadata:
    """Of a run: slices, files and bytes before and after, seconds, and what was left and why."""
    done = [one for one in outcomes if isinstance(one, Done)]
    left = [one for one in outcomes if isinstance(one, Left)]
    shown: Metadata = {
        "slices": len(done),
        "slices_left": len(left),
        "files_before": sum(one.files_before for one in done),
        "files_after": sum(one.files_after for one in done),
        "bytes_rewritten": sum(one.bytes_rewritten for one in done),
        "bytes_written": sum(one.bytes_written for one in done),
        "seconds": round(sum((one.seconds for one in done), 0.0), 2),
    }
    if done:
        shown["done"] = rows_table([
            {"table": one.slice.table.name, "partition": one.slice.partition, "action": one.slice.action,
             "files": f"{one.files_before} → {one.files_after}", "predicted": str(one.slice.gain.files_after),
             "seconds": f"{one.seconds:.2f}", "why": one.slice.why}
            for one in done[:SHOWN]
        ])  # fmt: skip
    if left:
        shown["left"] = rows_table([
            {"table": one.slice.table.name, "partition": one.slice.partition, "why": one.why} for one in left[:SHOWN]
        ])  # fmt: skip
    return shown | ({"unread": "\n".join(unread)} if unread else {})


def vacuumed_metadata(some: Sequence[Vacuumed | PlatformError]) -> Metadata:
    """Of a run of VACUUM: files and bytes that went, and for each table how long files are kept and why."""
    done = [one for one in some if isinstance(one, Vacuumed)]
    shown: Metadata = {
        "tables": len(done),
        "files": sum(one.files for one in done),
        "bytes": sum(one.bytes or 0 for one in done),
    }
    if done:
        shown["kept"] = rows_table([
            {"table": one.table, "files": str(one.files), "kept_hours": str(one.kept_hours), "because": one.because}
            for one in done[:SHOWN]
        ])  # fmt: skip
    refused = [str(one) for one in some if isinstance(one, PlatformError)]
    return shown | ({"refused": "\n".join(refused)} if refused else {})


@dg.op(pool=MAINTENANCE_POOL, retry_policy=TRIED_AGAIN)
def optimize_changed(context: dg.OpExecutionContext, platform: Platform) -> None:
    """Partitions that changed and gain most, within the budget; the next run goes on with the others."""
    context.add_output_metadata(optimize(context, platform.settings(), Asked()))


@dg.op(pool=MAINTENANCE_POOL, retry_policy=TRIED_AGAIN)
def merge_many(context: dg.OpExecutionContext, platform: Platform) -> None:
    """Only what has so many small files that it is not left for the night."""
    context.add_output_metadata(optimize(context, platform.settings(), Asked(by_day=True)))


@dg.op(pool=MAINTENANCE_POOL, retry_policy=TRIED_AGAIN)
def merge_further(context: dg.OpExecutionContext, platform: Platform) -> None:
    """Everything below the larger target, changed or not."""
    context.add_output_metadata(optimize(context, platform.settings(), Asked(second_round=True)))


@dg.op(pool=MAINTENANCE_POOL, retry_policy=TRIED_AGAIN)
def vacuum(context: dg.OpExecutionContext, platform: Platform) -> None:
    """Files that nothing may still read, as the guard of each table says."""
    from engagement_platform.maintenance.layout.vacuum import VacuumFailed, vacuum_tables

    settings = platform.settings()
    done = list[Vacuumed | PlatformError]()
    for one in vacuum_tables(settings, open_spark=partial(open_spark, settings, "vacuum")):
        context.log.info(str(one))
        done.append(one)
    context.add_output_metadata(vacuumed_metadata(done))
    if failed := [str(one) for one in done if isinstance(one, VacuumFailed)]:
        raise dg.Failure(" ".join(failed))


@dg.job(tags=RETRIED)
def optimize_tables() -> None:
    """Merge small files and order them anew where tables changed since the last time. No row changes."""
    optimize_changed()


@dg.job(tags=RETRIED)
def merge_small_files() -> None:
    """Merge the small files of tables that have many of them, without waiting for the night. No row changes."""
    merge_many()


@dg.job(tags=RETRIED)
def second_round() -> None:
    """Merge what the daily runs left, up to a larger size of files. No row changes."""
    merge_further()


@dg.job(tags=RETRIED)
def vacuum_tables() -> None:
    """Delete files that tables no longer consist of and nothing may still read: older versions cannot be read then."""
    vacuum()


@dg.asset(
    key=key_of(LAYOUT_HISTORY),
    partitions_def=ORGANIZATIONS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool=MAINTENANCE_POOL,
    retry_policy=TRIED_AGAIN,
    group_name=MAINTENANCE,
    kinds={"deltalake"},
    description=f"{LAYOUT_HISTORY.description} Materialize a partition to optimize the tables of that organization.",
    metadata={"dagster/column_schema": column_schema(LAYOUT_HISTORY)},
)
def layout_history(context: dg.AssetExecutionContext, platform: Platform) -> dg.MaterializeResult[None]:
    """All tables' partitions of the chosen organizations, in one run."""
    asked = Asked(organizations=tuple(map(unquote, context.partition_keys)))
    return dg.MaterializeResult(metadata=optimize(context, platform.settings(), asked))


optimize_organizations = dg.define_asset_job(
    "optimize_organizations",
    # The checks of this table's own files come with those of the others.
    selection=dg.AssetSelection.assets(layout_history).without_checks(),
    description="Optimize the partitions of chosen organizations; a backfill of several is one run.",
)


def many_small_files(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
    """A run for what has so many small files that it is not left for the night."""
    if reason := too_soon(recent_runs(context.instance, merge_small_files.name), time.time(), BY_DAY_PAUSE_S):
        return dg.SkipReason(reason)
    if not planned(settings, Asked(by_day=True)).chosen:
        return dg.SkipReason(f"Merging would save {settings.maintenance.files_by_day:,} files in no table.")
    return dg.RunRequest()


def organizations_found(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
    """Partition values of the tables that Dagster does not know yet."""
    from engagement_platform.maintenance.layout.optimize import organizations

    known = set(context.instance.get_dynamic_partitions(str(ORGANIZATIONS.name)))
    keys = {key_of_organization(name) for name in organizations(settings)}
    new = sorted(keys - known)[: MAX_PARTITIONS - len(known)]
    if not new:
        return dg.SkipReason("No organization is new.")
    return dg.SensorResult(dynamic_partitions_requests=[ORGANIZATIONS.build_add_request(new)])


def definitions() -> dg.Definitions:
    # At night, one after the other; the pool keeps them apart where they take longer. VACUUM comes last, so that the
    # day's own rewrites begin to count.
    schedules = [
        schedule(optimize_tables.name, "0 1 * * *", "Optimizes every night what gains most."),
        schedule(second_round.name, "0 2 * * 0", "Merges further once a week."),
        schedule(
            vacuum_tables.name,
            "30 3 * * *",
            "Deletes every night files that nothing may still read.",
            on=Settings().maintenance.nightly_vacuum,
        ),
    ]
    found = sensor(
        "organizations_found",
        organizations_found,
        "Adds organizations that have landed to the partitions by which one can be optimized.",
        every=600,
    )
    pressing = sensor(
        "many_small_files",
        many_small_files,
        "Merges between two nights the files of tables that have too many small ones (`maintenance.files_by_day`).",
        job=merge_small_files.name,
        every=300,
    )
    return dg.Definitions(
        assets=[layout_history],
        jobs=[optimize_tables, merge_small_files, second_round, vacuum_tables, optimize_organizations],
        schedules=schedules,
        sensors=[found, pressing],
    )

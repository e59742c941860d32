"""The layout of tables in Dagster: a check for each table, the nightly health asset, and when tables are examined.

`maintenance.layout.doctor` examines, `layout_results` says what the UI shows of it. Nothing here changes a table.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from engagement_platform.defs.evaluations import CheckResult, newest_results, report
from engagement_platform.defs.layout_results import LAYOUT, VERSION, Examined, health_metadata, layout_result
from engagement_platform.defs.platform import Platform, bound_platform
from engagement_platform.defs.sensors import RETRIED, TRIED_AGAIN, Answer, recent_runs, schedule, sensor, too_soon
from engagement_platform.defs.specs import MAINTENANCE, engagement_specs, key_of, request_specs
from engagement_platform.maintenance.layout.delta_log import moved_on, newest_named
from engagement_platform.maintenance.layout.doctor import examine
from engagement_platform.maintenance.layout.files import LogNotReadable, NotADeltaTable
from engagement_platform.maintenance.layout.history import LAYOUT_HISTORY, predicted_and_actual
from engagement_platform.maintenance.layout.survey import Target
from engagement_platform.maintenance.layout.survey import names as lake_tables
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.pipelines.games.feed import shipped
from engagement_platform.pipelines.page_views.job import HOPS
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.settings import Settings

HEALTH = dg.AssetKey(["layout", "health"])
REPORTS = "reports"

NEW_TABLE_PAUSE = timedelta(minutes=2)
"""Between two runs, at least, while a table was not examined since its first write; a run takes some ten seconds."""


def own_tables(settings: Settings) -> tuple[dg.AssetKey, ...]:
    """Tables of the pipelines that are on; those of page views come with their own definitions."""
    keys = (
        *(spec.key for spec in (*engagement_specs(), *request_specs())),
        *map(key_of, (PROFILE.changeset, PROFILE.base, LAYOUT_HISTORY)),
        *(map(key_of, shipped(settings).tables) if settings.pipelines.games else ()),
    )
    return tuple(key for key in keys if settings.pipelines.has(key.to_user_string()))


def examine_table(settings: Settings, name: str) -> Examined:
    """Examine one table. Raises nothing about the table itself: one that cannot be read says so in the result."""
    target = Target(name, f"{settings.lake}/{name}")
    try:
        return Examined(name, examine(settings, target))
    except NotADeltaTable:
        return Examined(name)
    except LogNotReadable as error:
        return Examined(name, unreadable=str(error), version=_newest_named(target.uri))


def _newest_named(uri: str) -> int | None:
    """The newest version by the names in a log; None also of a store that does not answer, which is asked again."""
    try:
        return newest_named(uri)
    except OSError:
        return None


def log_failing(logger: dg.DagsterLogManager, examined: Examined) -> None:
    """Write to the log of a run which findings fail the check. `alerts` sends alerts of failed checks."""
    for finding in examined.failing:
        logger.warning(f"{finding.severity} {finding.code} {finding.table}: {finding.what}. {finding.remedy}")


def layout_definitions(name: str, tables: Sequence[dg.AssetKey]) -> dg.Definitions:
    """A check for each of some tables, the job `check_NAME` that evaluates them, and the sensor that launches it."""
    checks = {dg.AssetCheckKey(table, LAYOUT): table.to_user_string() for table in tables}

    @dg.multi_asset_check(
        name=f"layout_of_{name}",
        can_subset=True,
        specs=[
            dg.AssetCheckSpec(
                LAYOUT, asset=table, description="The files of the table are in good order; findings say what is not."
            )
            for table in tables
        ],
    )
    def layout_of_tables(context: dg.AssetCheckExecutionContext, platform: Platform) -> Iterator[dg.AssetCheckResult]:
        """File layout of some tables, from their logs; no data is read and nothing is changed."""
        for check in sorted(context.selected_asset_check_keys):
            examined = examine_table(platform.settings(), checks[check])
            log_failing(context.log, examined)
            yield layout_result(examined)

    job = dg.define_asset_job(
        f"check_{name}",
        selection=dg.AssetSelection.checks(*checks),
        description="Evaluate the layout checks of some tables, or of all. Changes nothing.",
        executor_def=dg.in_process_executor,
    )

    def after_writes(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
        instance = context.instance
        results = newest_results(instance, checks)
        due = [
            check
            for check, table in checks.items()
            if is_due(instance, f"{settings.lake}/{table}", check.asset_key, results.get(check))
        ]
        if not due:
            return dg.SkipReason("No table has changed since it was examined.")
        recent, now, pause = recent_runs(instance, f"check_{name}"), time.time(), settings.health.check_pause
        if not (reason := too_soon(recent, now, pause.total_seconds())):
            return dg.RunRequest(asset_check_keys=due)
        # On the first day tables come one after the other, and a newcomer wants to see each of them examined.
        seen = {check: examined_version(results.get(check)) for check in due}
        new = [check for check in due if not seen[check] and moved_on(f"{settings.lake}/{checks[check]}", seen[check])]
        if new and not too_soon(recent, now, min(pause, NEW_TABLE_PAUSE).total_seconds()):
            return dg.RunRequest(asset_check_keys=new)
        return dg.SkipReason(reason)

    look = sensor(
        f"{name}_after_writes",
        after_writes,
        "Examines tables that were written since the last time: one run for all of them, at most one in "
        "`health.check_pause`; sooner those that have not been examined since their first write.",
        job=job.name,
    )
    return dg.Definitions(
        asset_checks=[layout_of_tables], jobs=[job], sensors=[look], resources={"platform": bound_platform()}
    )


def is_due(instance: dg.DagsterInstance, uri: str, table: dg.AssetKey, last: CheckResult | None) -> bool:
    """Whether a table has a newer version than the one that was examined last, or was never examined.

    Also after a materialization, before which Dagster's UI does not show a result any more.
    """
    if moved_on(uri, examined_version(last)):
        return True
    written = instance.get_latest_materialization_event(table)
    return last is not None and written is not None and written.timestamp > last.timestamp


def examined_version(last: CheckResult | None) -> int | None:
    """The version of the table that a check saw, or could not read; None: it saw none. A table is made at version 0,
    without rows."""
    version = None if last is None else last.evaluation.metadata.get(VERSION)
    return version.value if isinstance(version, dg.IntMetadataValue) else None


# No dependencies on the tables: one that does not exist yet is fine, but Dagster would ask "Are you sure?" for it.
@dg.asset(
    key=HEALTH,
    group_name=MAINTENANCE,
    kinds={"deltalake"},
    retry_policy=TRIED_AGAIN,
    description="Health of the file layout of all tables: figures over time, findings, and a report as one HTML page. "
    "Materializing it also evaluates the layout check of every table. Reads logs only and changes nothing.",
)
def layout_health(context: dg.AssetExecutionContext, platform: Platform) -> dg.MaterializeResult[None]:
    """All tables of the lake, examined once."""
    settings = platform.settings()
    declared = [dg.AssetKey(name.split("/")) for name in declarations(settings).tables]
    checked = {*own_tables(settings), *declared}
    names = {table.to_user_string() for table in checked} | set(lake_tables(settings))
    tables = [examine_table(settings, name) for name in sorted(names)]
    for examined in tables:
        log_failing(context.log, examined)
    # Page views may be declared in a project of its own, so that nothing here knows of it.
    checked |= {key_of(hop.table) for hop in HOPS} & {examined.key for examined in tables}
    report(context.instance, [layout_result(examined) for examined in tables if examined.key in checked])
    return dg.MaterializeResult(metadata={"report": written_report(settings, tables), **health_metadata(tables)})


def written_report(settings: Settings, tables: Sequence[Examined]) -> dg.PathMetadataValue:
    """Today's report, in place of an earlier one of today."""
    from engagement_platform.maintenance.layout.report import SHOWN, keep, page

    examined = [one.examination for one in tables if one.examination]
    text = page(examined, predicted_and_actual(settings, [one.facts.seen.target for one in examined], SHOWN))
    folder = settings.home.expanduser().absolute() / REPORTS
    return dg.MetadataValue.path(keep(folder, datetime.now(UTC).date(), text, settings.health.reports_kept))


examine_layout = dg.define_asset_job(
    "examine_layout",
    selection=dg.AssetSelection.assets(layout_health).without_checks(),
    description="Examine all tables, write the report, and evaluate the layout check of every table.",
    tags=RETRIED,
)


def definitions() -> dg.Definitions:
    """Asset, jobs and schedule of this module, and the checks of the tables of the pipelines that are on."""
    nightly = schedule(
        examine_layout.name, "0 2 * * *", "Examines the layout of all tables every night.", name="nightly_health"
    )
    health = dg.Definitions(assets=[layout_health], jobs=[examine_layout], schedules=[nightly])
    return dg.Definitions.merge(health, layout_definitions("layout", own_tables(Settings())))

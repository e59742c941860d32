"""The layout of tables in Dagster: checks for each table, the nightly health asset, and when tables are examined.

Examining is `layout/doctor`, what the UI shows of it is `examined`. Nothing here changes a table.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord
from pydantic import Field

from engagement_platform.defs.checks import selected
from engagement_platform.defs.evaluations import newest, out_of_sight, report, report_again
from engagement_platform.defs.examined import (
    VERSION,
    WHOLE,
    Looked,
    check_results,
    fails,
    health_metadata,
    whole_result,
)
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.sensors import REPORT_AGAIN_AFTER, Recent, recent_runs
from engagement_platform.defs.specs import GROUP, OWNERS, engagement_specs, key_of, request_specs
from engagement_platform.lake import log
from engagement_platform.lake.layout import LAYOUT_HISTORY
from engagement_platform.layout.delta_log import moved_on
from engagement_platform.layout.doctor import examine
from engagement_platform.layout.files import LogNotReadable, NotADeltaTable
from engagement_platform.layout.finding import Finding
from engagement_platform.layout.findings import CODES
from engagement_platform.layout.history import predicted_and_actual
from engagement_platform.layout.survey import Target
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.pipelines.games.event_type import GROUP as GAMES
from engagement_platform.pipelines.games.feed import shipped
from engagement_platform.pipelines.page_views.job import HOPS
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.settings import Settings

TABLES = (
    *(spec.key for spec in (*engagement_specs(), *request_specs())),
    *map(key_of, (PROFILE.changeset, PROFILE.base, LAYOUT_HISTORY)),
)
"""Tables that are assets; each has a check for each class of findings."""

CHAIN = tuple(key_of(hop.table) for hop in HOPS)
"""Tables that are assets, with the same checks (in `page_views`), where that pipeline is on or declared."""

WHOLES = frozenset({GAMES})
"""First parts of tables of which there are many of a kind: each has one check for all findings, so that thirty tables
are thirty checks and not three hundred."""

HEALTH = dg.AssetKey(["layout", "health"])
REPORTS = "reports"

SAYS = {
    "small_files": "No partition is mostly small files.",
    "too_many_files": "No partition has more files than a change can look into quickly.",
    "skewed_partitions": "No partition is many times the middle one. For information: never fails.",
    "scattered_writes": "Writers leave few files in each partition they touch.",
    "parallelism_limit": "`spark.shuffle_partitions` gives enough tasks for the bytes of the table.",
    "clustering_overlap": "Ranges of the clustering column let reads skip files.",
    "unindexed_clustering": "Files have bounds of the clustering column.",
    "uncompressed": "Files are compressed.",
    "stale_checkpoint": "The log has a recent checkpoint.",
    "vacuum_due": "Removed files past their retention hold little room.",
    "orphan_files": "There are few files that the log does not know. Fails, too, where nobody looked.",
}


NEW_TABLE_PAUSE = timedelta(minutes=1)
"""Between two runs, at least, while a table is there that has never been examined; a run takes some ten seconds."""


def tables_of(settings: Settings) -> tuple[dg.AssetKey, ...]:
    """All tables that are looked at after writes: those above, and one for each declared type of game event.

    Of pipelines that are on; of page views always, since others may declare them.
    """
    on = settings.pipelines
    ours = [table for table in TABLES if on.has(table.to_user_string())]
    return (*ours, *CHAIN, *(map(key_of, shipped(settings).tables) if on.games else ()))


def declared_tables(settings: Settings) -> tuple[dg.AssetKey, ...]:
    """Tables with the same checks that somebody has declared; after writes their own sensors look (`examining`)."""
    return tuple(dg.AssetKey(name.split("/")) for name in declarations(settings).tables)


def checks_of(table: dg.AssetKey) -> list[dg.AssetCheckKey]:
    """The layout checks of a table.

    By the last one's newest result is told which version was examined, and whether results are in sight.
    """
    return [dg.AssetCheckKey(table, code) for code in ((WHOLE,) if table.path[0] in WHOLES else CODES)]


def look(settings: Settings, name: str) -> Looked:
    """Examine one table. Raises nothing about the table itself: one that cannot be read says so in what it returns."""
    target = Target(name, f"{settings.lake}/{name}")
    try:
        return Looked(name, examine(settings, target))
    except NotADeltaTable:
        return Looked(name)
    except LogNotReadable as error:
        return Looked(name, unreadable=str(error))


def declared(looked: Iterable[Looked], tables: Sequence[dg.AssetKey]) -> Iterator[dg.AssetCheckResult]:
    """Check results of tables that have checks; the lake may have others, and need not have those of the chain."""
    for one in looked:
        key, there = dg.AssetKey(one.name.split("/")), one.examination is not None or one.unreadable is not None
        if key in tables and (key not in CHAIN or there):
            yield from [whole_result(one)] if key.path[0] in WHOLES else check_results(one)


def tell_failed(log_to: dg.DagsterLogManager, looked: Iterable[Looked]) -> list[Finding]:
    """Say in the log of a run which findings fail their checks, and return them, most severe first in each table.

    Every examination in Dagster comes by here. People who do not look at the UI are told of the failed checks by
    `alerts`.
    """
    failed = [finding for one in looked for finding in one.findings if fails(finding)]
    for finding in failed:
        log_to.warning(f"{finding.severity} {finding.code} {finding.table}: {finding.what}. {finding.remedy}")
    return failed


def layout_check(table: dg.AssetKey) -> dg.AssetChecksDefinition:
    """The checks of one table: its log is looked at once, whichever of them are asked for."""
    name = table.to_user_string()

    @dg.multi_asset_check(
        name=f"layout_of_{'_'.join(table.path)}",
        can_subset=True,
        specs=[dg.AssetCheckSpec(code, asset=table, description=SAYS[code]) for code in CODES],
    )
    def layout_of_table(context: dg.AssetCheckExecutionContext, platform: Platform) -> Iterator[dg.AssetCheckResult]:
        """File layout of one table, from its log; no data is read and nothing is changed."""
        looked = look(platform.settings(), name)
        tell_failed(context.log, [looked])
        yield from selected(context, check_results(looked))

    return layout_of_table


def whole_check(name: str, tables: Sequence[dg.AssetKey]) -> dg.AssetChecksDefinition:
    """One check for each of many tables, evaluated in one run."""

    @dg.multi_asset_check(
        name=name,
        can_subset=True,
        specs=[
            dg.AssetCheckSpec(WHOLE, asset=table, description="Its files lie well; a finding says what does not.")
            for table in tables
        ],
    )
    def layout_of_tables(context: dg.AssetCheckExecutionContext, platform: Platform) -> Iterator[dg.AssetCheckResult]:
        """File layout of many tables, from their logs; no data is read and nothing is changed."""
        asked = [check.asset_key.to_user_string() for check in sorted(context.selected_asset_check_keys)]
        looked = [look(platform.settings(), table) for table in asked]
        tell_failed(context.log, looked)
        yield from selected(context, [whole_result(one) for one in looked])

    return layout_of_tables


# No dependencies on the tables: one that does not exist yet is fine, but Dagster would ask "Are you sure?" for it.
# In the group of the tables: with two groups, the lineage shows both folded up (Dagster 1.13).
@dg.asset(
    key=HEALTH,
    group_name=GROUP,
    owners=list(OWNERS),
    kinds={"deltalake"},
    description="Health of the file layout of all tables: figures over time, findings, and a report as one HTML page. "
    "Materializing it also evaluates the layout checks of every table. Reads logs only and changes nothing.",
)
def layout_health(context: dg.AssetExecutionContext, platform: Platform) -> dg.MaterializeResult[None]:
    """All tables of the lake, examined once."""
    settings = platform.settings()
    tables = (*tables_of(settings), *declared_tables(settings))
    names = {table.to_user_string() for table in tables} | set(log.tables(settings.lake))
    looked = [look(settings, name) for name in sorted(names)]
    tell_failed(context.log, looked)
    report(context.instance, declared(looked, tables))
    return dg.MaterializeResult(metadata={"report": written_report(settings, looked), **health_metadata(looked)})


def written_report(settings: Settings, looked: Sequence[Looked]) -> dg.PathMetadataValue:
    """Today's report, in place of an earlier one of today."""
    from engagement_platform.layout.report import SHOWN, keep, page

    examined = [one.examination for one in looked if one.examination]
    text = page(examined, predicted_and_actual(settings, [one.target for one in examined], SHOWN))
    folder = settings.home.expanduser().absolute() / REPORTS
    return dg.MetadataValue.path(keep(folder, datetime.now(UTC).date(), text, settings.health.reports_kept))


class ExamineConfig(dg.Config):
    """Which tables to look at."""

    tables: list[str] = Field(default=[], description="Tables such as engagement/data. Default: all that are assets.")


@dg.op
def examine_tables(context: dg.OpExecutionContext, config: ExamineConfig, platform: Platform) -> None:
    """The checks of some tables, reported to the runs that wrote them, where they stay in sight."""
    settings = platform.settings()
    tables = (*tables_of(settings), *declared_tables(settings))
    looked = [look(settings, name) for name in config.tables or [table.to_user_string() for table in tables]]
    tell_failed(context.log, looked)
    report(context.instance, declared(looked, tables))


@dg.job
def check_layout() -> None:
    """Evaluate the layout checks of some tables, or of all. Changes nothing."""
    examine_tables()


examine_layout = dg.define_asset_job(
    "examine_layout",
    selection=dg.AssetSelection.assets(layout_health).without_checks(),
    description="Examine all tables, write the report, and evaluate the layout checks of every table.",
)

nightly_health = dg.ScheduleDefinition(
    name="nightly_health",
    job=examine_layout,
    cron_schedule="0 2 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Examines the layout of all tables every night.",
)


def changed_tables(
    instance: dg.DagsterInstance, settings: Settings, tables: Sequence[dg.AssetKey] = (*TABLES, *CHAIN)
) -> list[str]:
    """Tables with a newer version than when they were last examined, and those that were not examined at all."""
    versions = examined_versions(instance, tables)
    names = {table: table.to_user_string() for table in tables}
    return [name for table, name in names.items() if moved_on(f"{settings.lake}/{name}", versions.get(table))]


def new_tables(instance: dg.DagsterInstance, settings: Settings, tables: Sequence[dg.AssetKey]) -> list[str]:
    """Tables that are there and have never been examined."""
    known = examined_versions(instance, tables)
    names = [table.to_user_string() for table in tables if table not in known]
    return [name for name in names if moved_on(f"{settings.lake}/{name}", None)]


def examined_versions(instance: dg.DagsterInstance, tables: Sequence[dg.AssetKey]) -> dict[dg.AssetKey, int | None]:
    """Table -> the version that was examined last; tables that were not examined at all are absent."""
    records = newest(instance, [checks_of(table)[-1] for table in tables])
    return {check.asset_key: examined_version(record) for check, record in records.items()}


def examined_version(record: AssetCheckExecutionRecord) -> int | None:
    """The version that a result is of; None where that could not be told."""
    told = record.evaluation.metadata.get(VERSION) if record.evaluation else None
    return told.value if isinstance(told, dg.IntMetadataValue) else None


def keep_in_sight(instance: dg.DagsterInstance, now: float, tables: Sequence[dg.AssetKey] = TABLES) -> None:
    """Report results again to the run that has written their table since: failed ones at once, others not so often.

    With a run every half minute, all of them each time would be as many events as the batches themselves make.
    """
    written = instance.get_latest_materialization_events(tables)
    for mark, record in newest(instance, [checks_of(table)[-1] for table in tables]).items():
        latest = written.get(mark.asset_key)
        if not out_of_sight(record, latest):
            continue
        rested = now - record.create_timestamp >= REPORT_AGAIN_AFTER.total_seconds()
        results = newest(instance, checks_of(mark.asset_key)).values()
        lost = [result for result in results if out_of_sight(result, latest)]
        report_again(instance, [r for r in lost if rested or (r.evaluation and not r.evaluation.passed)])


def too_soon(recent: Recent, now: float, pause: float) -> str | None:
    """Why no run is launched, whatever has changed; None when one may be. now, pause: seconds."""
    if recent.under_way:
        return f"A run is {recent.under_way} already."
    left = recent.ended + pause - now if recent.ended else 0.0
    return f"The next look is in {left:.0f} s." if left > 0 else None


@dg.sensor(
    job=check_layout, minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Examines tables that were written since the last time: one run for all of them, at most one in "
    "`health.check_pause`, sooner while a table has never been examined. Keeps results in sight when a new run has "
    "written the table.",
)  # fmt: skip
def layout_after_writes(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
    """Versions of the tables against those that were examined."""
    settings = platform.settings()
    tables = tables_of(settings)
    keep_in_sight(context.instance, time.time(), tables)
    # On the first day tables come one after the other, and whoever looks wants to see each of them examined.
    new = new_tables(context.instance, settings, tables)
    pause = min(settings.health.check_pause, NEW_TABLE_PAUSE if new else timedelta.max).total_seconds()
    if reason := too_soon(recent_runs(context.instance, check_layout.name), time.time(), pause):
        return dg.SkipReason(reason)
    changed = changed_tables(context.instance, settings, tables)
    if not changed:
        return dg.SkipReason("No table has changed since it was examined.")
    return dg.RunRequest(run_config={"ops": {examine_tables.name: {"config": {"tables": changed}}}})


def definitions() -> dg.Definitions:
    """Asset, checks, jobs, schedule and sensor of this module, for the types of game events declared now."""
    tables = tables_of(Settings())
    games = [table for table in tables if table.path[0] in WHOLES]
    return dg.Definitions(
        assets=[layout_health],
        asset_checks=[
            *(layout_check(table) for table in tables if table in TABLES),
            *([whole_check("layout_of_games", games)] if games else []),
        ],
        jobs=[examine_layout, check_layout],
        schedules=[nightly_health],
        sensors=[layout_after_writes],
    )

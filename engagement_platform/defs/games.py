"""Game events as assets, one table for each declared type, and the job, sensor and replay that fill them.

What a batch does is `games/`. Made by functions, since which tables there are is declared and not written here.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime

import dagster as dg
from pydantic import Field

from engagement_platform.defs import evaluations
from engagement_platform.defs.batches import (
    Batch,
    Metadata,
    identified,
    last_batches,
    rejections,
    unbalanced,
    whole_batch,
    written,
)
from engagement_platform.defs.checks import FRESH, freshness_result
from engagement_platform.defs.engagement import IngestConfig, partition_days, with_conservation
from engagement_platform.defs.evaluations import evaluation
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.sensors import run_request, to_report
from engagement_platform.defs.specs import DAYS, OWNERS, key_of, table_spec
from engagement_platform.defs.telling import Tables, tell, told_of
from engagement_platform.defs.waiting import Announced, Waiting, waiting
from engagement_platform.defs.work import batches, work_of
from engagement_platform.errors import PlatformError
from engagement_platform.games.event_type import QUARANTINE
from engagement_platform.games.job import INGEST_GAME_EVENTS, REPLAY_GAME_EVENTS
from engagement_platform.games.objects import NoGameQueue
from engagement_platform.games.registry import Registry, registry
from engagement_platform.microbatch.job import BatchReport, BooksDoNotBalance
from engagement_platform.settings import Settings
from engagement_platform.tables.contract import Table

# One for all of the tables: a batch writes most of them, and a replay must not do so beside it.
GAMES_POOL = "games"
# A group of their own: thirty tables would hide all others in the graph.
GAMES_GROUP = "games"

OBJECTS = dg.AssetKey(["s3", "game-events"])
REFUSED = key_of(QUARANTINE)
ROW_SUMS = "row_sums"


def objects_spec() -> dg.AssetSpec:
    """What everything comes from; filled by others."""
    return dg.AssetSpec(
        OBJECTS,
        description="Objects of JSON lines in the bucket `games.bucket`, announced in the queue `games.queue_url`.",
        group_name=GAMES_GROUP,
        owners=list(OWNERS),
        kinds={"s3"},
    )


def row_sums_spec() -> dg.AssetCheckSpec:
    """The check that comes with every run."""
    return dg.AssetCheckSpec(
        ROW_SUMS,
        asset=REFUSED,
        blocking=True,
        description="Every line that a batch received was routed to a table, quarantined or a duplicate, and the logs "
        "of the tables say that as many rows were written.",
    )


def row_sums(reports: Sequence[BatchReport], refused: str | None = None) -> dg.AssetCheckResult:
    """The check's result for the batches of one run. refused: why the engine did not finalize a batch."""
    wrong = [*unbalanced(reports), *([refused] if refused else [])]
    for report in reports:
        counted = report.counts.get("landed", 0) + report.counts.get("quarantined", 0)
        if (stands := report.counts.get("rows_written", 0)) != counted:
            wrong.append(f"{report.manifest} counts {counted} rows for its tables, whose logs have {stands}")
    sums = {
        name: sum(report.counts.get(name, 0) for report in reports)
        for name in ("rows_in", "landed", "duplicates", "quarantined", "rows_written")
    }
    return dg.AssetCheckResult(
        passed=not wrong,
        asset_key=REFUSED,
        check_name=ROW_SUMS,
        description="; ".join(wrong) or None,
        metadata={"batches": len(reports), **sums},
    )


def announced_now(looked: Waiting, now: datetime) -> Announced | str:
    """What waits in the queue, or why nobody can tell."""
    try:
        return looked.announced(now)
    except PlatformError as error:
        return str(error)


def fresh(announced: Announced | str, now: datetime, settings: Settings) -> dg.AssetCheckResult:
    """Passed when no object waits for longer than `quality.freshness`; without a queue none does."""
    if isinstance(announced, Announced):
        return freshness_result(OBJECTS, announced.since, announced.backlog, now, settings.quality.freshness)
    configured = settings.games.queue_url is not None
    return dg.AssetCheckResult(
        passed=not configured,
        asset_key=OBJECTS,
        check_name=FRESH,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"Nobody can tell: {announced}" if configured else announced,
    )


# Of the objects and not of a table: no batch materializes them, so that the newest result is always in sight.
@dg.asset_check(
    asset=OBJECTS,
    name=FRESH,
    description="No object waits in the queue for longer than `quality.freshness`. The sensor `game_events_backlog` "
    "reports it, and knows for how long something waits; a run of its own knows that of an unfinished batch only.",
)
def objects_are_fresh(platform: Platform) -> dg.AssetCheckResult:
    """Messages in the queue, against the checkpoint."""
    settings, now = platform.settings(), datetime.now(UTC)
    return fresh(announced_now(waiting(settings), now), now, settings)


def game_metadata(batch: Batch, table: Table, process: str) -> Metadata:
    """Of one table what was written; of quarantine the sums of the whole batch, too."""
    shown = written(batch.processes.get(process, {}))
    if table == QUARANTINE:
        shown = {"last_batches": last_batches(batch.history), **shown, **whole_batch(batch), **rejections(batch.report)}
    return identified(batch.report, shown)


def tables_of(types: Registry) -> Tables:
    """What a batch is told of."""
    own = {QUARANTINE: "quarantine", **{declared.table: name for name, declared in types.items()}}
    return Tables(own, metadata=game_metadata, sparse=True)


def checked(
    context: dg.AssetExecutionContext, done: Iterator[tuple[date, BatchReport | None]], tables: Tables, opened: Opened
) -> Iterator[dg.AssetCheckResult]:
    """Tell of batches as they come, with the check's result so far, and give its last one in the end."""
    reports: list[BatchReport] = []
    try:
        for report in tell(context, tables, opened, done):
            reports.append(report)
            context.log_event(evaluation(row_sums(reports)))
    except BooksDoNotBalance as refused:
        yield row_sums(reports, str(refused))
        raise
    yield row_sums(reports)


def game_assets(types: Registry) -> dg.AssetsDefinition:
    """The tables, filled together."""
    tables = tables_of(types)

    @dg.multi_asset(
        name="ingest_game_tables",
        specs=[table_spec(table, [OBJECTS]).replace_attributes(group_name=GAMES_GROUP) for table in tables.own],
        check_specs=[row_sums_spec()],
        partitions_def=DAYS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=GAMES_POOL,
    )
    def ingest_game_tables(
        context: dg.AssetExecutionContext, config: IngestConfig, platform: Platform
    ) -> Iterator[dg.AssetCheckResult]:
        """Game events from S3, batch after batch, exactly once; days before today are replayed."""
        work = work_of(config.mode, partition_days(context), datetime.now(UTC).date())
        with platform.open(INGEST_GAME_EVENTS) as opened:
            yield from checked(context, batches(INGEST_GAME_EVENTS, work, opened, told_of(context)), tables, opened)

    return ingest_game_tables


def game_jobs(assets: dg.AssetsDefinition, types: Registry) -> tuple[dg.SensorDefinition, list[dg.JobDefinition]]:
    """The sensor, and the jobs that are not made of assets."""

    @dg.sensor(
        job_name=INGEST_GAME_EVENTS.replace("-", "_"), minimum_interval_seconds=15,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Launches a drain run when objects of game events wait in the queue and none is under way.",
    )  # fmt: skip
    def game_events_backlog(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
        """Messages in the queue against the checkpoint. By the way it reports the check `fresh`."""
        settings = platform.settings()
        if settings.games.queue_url is None:
            return dg.SkipReason(str(NoGameQueue()))
        now = datetime.now(UTC)
        announced = announced_now(waiting(settings), now)
        news, cursor = to_report([fresh(announced, now, settings)], context.cursor, now.timestamp())
        evaluations.report(context.instance, news)
        context.update_cursor(cursor)
        if isinstance(announced, str):
            return dg.SkipReason(announced)
        return run_request(INGEST_GAME_EVENTS, assets, announced.backlog, context)

    @dg.op(pool=GAMES_POOL)
    def replay_objects(context: dg.OpExecutionContext, config: ReplayConfig, platform: Platform) -> None:
        """The objects of some prefixes or days, once more; what is there already is left as it is."""
        with platform.open(REPLAY_GAME_EVENTS) as opened:
            for report in tell(context, tables_of(types), opened, replayed(config, opened, context)):
                counts = report.counts
                context.log.info(f"{counts.get('landed', 0)} of {counts.get('rows_in', 0)} landed")

    @dg.job(description="Read objects of game events once more. Rows that are lost come back, nothing is doubled.")
    def replay_game_events() -> None:
        replay_objects()

    return game_events_backlog, [replay_game_events]


class ReplayConfig(dg.Config):
    """What to read once more."""

    prefixes: list[str] = Field(default=[], description="Beginnings of keys, such as events/2026/11/22/10/.")
    dates: list[str] = Field(default=[], description="UTC days of arrival, such as 2026-11-22.")


def replayed(
    config: ReplayConfig, opened: Opened, context: dg.OpExecutionContext
) -> Iterator[tuple[date, BatchReport]]:
    """Batches of a replay, each with the day of its ingestion."""
    from engagement_platform import jobs
    from engagement_platform.games.replaying import folder_of

    settings = opened.settings
    prefixes = [*config.prefixes, *(folder_of(date.fromisoformat(day), settings) for day in config.dates)]
    told = told_of(context)
    for report in jobs.replay_game_events(prefixes, opened.spark, settings, opened.stores, told):
        yield report.manifest.ingestion_ts.date(), report


def definitions() -> dg.Definitions:
    """Assets, jobs and sensor of this module, for the types that are declared now."""
    types = registry(Settings().games.declarations)
    assets = game_assets(types)
    sensor, jobs = game_jobs(assets, types)
    ingest = dg.define_asset_job(
        INGEST_GAME_EVENTS.replace("-", "_"),
        selection=with_conservation(assets),
        description="Drain new game events (today's partition) or replay days of arrival (any other).",
    )
    return dg.Definitions(
        assets=[objects_spec(), assets], asset_checks=[objects_are_fresh], jobs=[ingest, *jobs], sensors=[sensor]
    )

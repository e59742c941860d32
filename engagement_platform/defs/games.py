"""Events of a feed as assets, one table for each declared type, and the job, sensor and replay that fill them.

Made by functions, since which tables there are is declared: those that ship, and those of the component `S3SqsTables`.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial

import dagster as dg
from pydantic import Field

from engagement_platform.defs.backlog import Waiting
from engagement_platform.defs.batches import Tables
from engagement_platform.defs.checks import FRESH, freshness_result
from engagement_platform.defs.evaluations import cannot_tell
from engagement_platform.defs.ingestion import UNBOUNDED, Ingestion
from engagement_platform.defs.layout import layout_definitions
from engagement_platform.defs.live_ops import judging
from engagement_platform.defs.materialization_events import Recorder, callbacks_of
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.sensors import backlog_sensor, watched
from engagement_platform.defs.specs import GAMES_GROUP, SOURCES, column_schema, key_of, table_spec
from engagement_platform.engine.job import BatchReport
from engagement_platform.errors import PlatformError
from engagement_platform.pii.vault import VAULT
from engagement_platform.pipelines.games.feed import Feed, shipped
from engagement_platform.pipelines.games.job import ROWS_OF, TABLES
from engagement_platform.pipelines.games.replay import folder_of
from engagement_platform.pipelines.jobs import replay_game_events
from engagement_platform.pipelines.parts import Parts
from engagement_platform.settings import Settings

ROW_SUMS = "row_sums"

BATCH_EVERY = timedelta(minutes=1)
"""A batch commits to thirty tables, which takes 15 s of both cores of a small machine however few events it has, and
games are judged by the minute."""


def objects_key(feed: Feed) -> dg.AssetKey:
    """What the tables of a feed come from. By the feed and not by the bucket: two feeds may share one."""
    return dg.AssetKey(["s3", f"{feed.group}-events"])


def objects_spec(feed: Feed) -> dg.AssetSpec:
    bucket, queue = (feed.own.get(name, f"games.{name}") for name in ("bucket", "queue_url"))
    return dg.AssetSpec(
        objects_key(feed),
        description=f"Objects of JSON lines in the bucket `{bucket}`, announced in the queue `{queue}`.",
        group_name=SOURCES,
        kinds={"s3"},
    )


def fresh(looked: Waiting, feed: Feed, now: datetime) -> dg.AssetCheckResult:
    """Passed when no object waits for longer than `quality.freshness`; without a queue none does.

    Of the objects and not of a table: no batch materializes them, so that the newest result is always in sight.
    """
    objects = objects_key(feed)
    try:
        waits = looked.announced(feed, now)
    except PlatformError as error:
        if feed.settings(looked.settings).games.queue_url is not None:
            return cannot_tell(objects, FRESH, error)
        return dg.AssetCheckResult(passed=True, asset_key=objects, check_name=FRESH, description=str(error))
    return freshness_result(objects, waits.since, waits.rows, now, looked.settings.quality.freshness)


def tables_of(feed: Feed) -> Tables:
    wrote = {table: ROWS_OF + table.key[-1] for table in feed.tables}
    return Tables(dict.fromkeys(feed.tables, TABLES), publishes=feed.quarantine, wrote=wrote, sparse=True, by_day=True)


def ingestion(feed: Feed, group: str) -> Ingestion:
    """The tables, filled together. group: of the assets, and their pool: a batch writes most of them."""
    return Ingestion(
        job=feed.job,
        asset_name=f"ingest_{feed.group}_tables",
        specs=[table_spec(table, [objects_key(feed)], group) for table in feed.tables],
        pool=group,
        tables=tables_of(feed),
        declared=lambda _settings: feed,
        unknown=(PlatformError,),
        interval=BATCH_EVERY,
        beside=judging if group == GAMES_GROUP else None,
        description="Events from S3, batch after batch, exactly once; days before today are replayed.",
        reread=partial(_again, feed),
        check=ROW_SUMS,
        says="Every line that a batch received was routed to a table, quarantined or a duplicate, and the logs of the "
        "tables say that as many rows were written.",
    )


def _again(feed: Feed, day: date, parts: Parts) -> Iterator[BatchReport]:
    return replay_game_events([folder_of(day, feed.settings(parts.settings))], parts, feed=feed, may_be_empty=True)


class ReplayConfig(dg.Config):
    """What to read once more."""

    prefixes: list[str] = Field(default=[], description="Beginnings of keys, such as events/2026/11/22/10/.")
    dates: list[str] = Field(default=[], description="UTC days of arrival, such as 2026-11-22.")


def replay_job(feed: Feed, pool: str) -> dg.JobDefinition:
    """Objects once more, by hand. pool: of the assets: a replay must not write beside a batch."""

    @dg.op(name=f"replay_{feed.group}_objects", pool=pool)
    def replay_objects(context: dg.OpExecutionContext, config: ReplayConfig, platform: Platform) -> None:
        """The objects of some prefixes or days, once more; what is there already is left as it is."""
        with platform.open(feed.replay_job) as opened:
            own = feed.settings(opened.settings)
            prefixes = [*config.prefixes, *(folder_of(date.fromisoformat(day), own) for day in config.dates)]
            reports = replay_game_events(prefixes, opened.parts(callbacks_of(context)), feed=feed)
            batches = ((report.manifest.ingestion_ts.date(), report) for report in reports)
            Recorder(context, tables_of(feed), opened).add_all(batches)

    @dg.job(
        name=feed.replay_job.replace("-", "_"),
        description=f"Read objects of {feed.group} events once more. Rows that are lost come back, nothing is doubled.",
        executor_def=dg.in_process_executor,
        tags=UNBOUNDED,
    )
    def replay_events() -> None:
        replay_objects()

    return replay_events


def feed_definitions(feed: Feed, group: str) -> dg.Definitions:
    """Assets, jobs, freshness and sensor of one feed. group: of the assets."""
    landing = ingestion(feed, group)

    def fresh_now(looked: Waiting) -> list[dg.AssetCheckResult]:
        return [fresh(looked, feed, datetime.now(UTC))]

    name = f"{feed.group}_events"
    waits = f"objects of {feed.group} events wait in the queue"
    drain = f"Drain new {feed.group} events (today's partition) or replay days of arrival (any other)."
    own = dg.Definitions(
        assets=[objects_spec(feed), landing.assets],
        jobs=[landing.asset_job(drain), replay_job(feed, group)],
        sensors=[backlog_sensor(f"{name}_backlog", landing, waits, every=15)],
    )
    watch = watched(
        f"watch_{name}",
        {(objects_key(feed), FRESH): "No object waits in the queue for longer than `quality.freshness`."},
        fresh_now,
        f"watch_{name}_backlog",
        f"Reports since when objects of {feed.group} events wait.",
    )
    return dg.Definitions.merge(own, watch)


def definitions() -> dg.Definitions:
    """The feed that ships, of the types as they are declared now, and the vault. Raises EventTypeRefused."""
    vault = dg.AssetSpec(
        key_of(VAULT),
        description=f"{VAULT.description} The ingest server fills it.",
        group_name=GAMES_GROUP,
        kinds={"deltalake"},
        metadata={"dagster/column_schema": column_schema(VAULT)},
    )
    return dg.Definitions.merge(feed_definitions(shipped(Settings()), GAMES_GROUP), dg.Definitions(assets=[vault]))


def declared_definitions(feed: Feed) -> dg.Definitions:
    """Everything of a declared feed: as of the one that ships, and layout checks."""
    checks = layout_definitions(f"{feed.group}_tables", [key_of(table) for table in feed.tables])
    return dg.Definitions.merge(feed_definitions(feed, feed.group), checks)

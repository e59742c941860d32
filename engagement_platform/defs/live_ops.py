"""Figures of games and features of players as an asset over the tables of events.

What is judged is `pipelines/games/live_ops`. Made by a function, since which tables there are is declared.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby

import dagster as dg

from engagement_platform.defs.batches import Metadata, rows_table
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.plot import picture
from engagement_platform.defs.sensors import Answer, recent_runs, sensor, too_soon
from engagement_platform.defs.specs import GAMES_GROUP, key_of
from engagement_platform.engine.database import open_engine
from engagement_platform.errors import missing
from engagement_platform.pipelines.games.figures import KPIS, MINUTE
from engagement_platform.pipelines.games.job import INGEST_GAME_EVENTS
from engagement_platform.pipelines.games.live_ops import JUDGING, Judged, LiveOpsJob
from engagement_platform.pipelines.games.live_ops_store import LiveOpsStore
from engagement_platform.pipelines.games.registry import Registry, registry
from engagement_platform.settings import Settings

# Not below `game`, whose names are those of declared types.
LIVE_OPS = dg.AssetKey(["live_ops", "figures"])
# Two at a time would raise every alert twice.
LIVE_OPS_POOL = "live_ops"

JOB = "judge_games"
INGESTS = INGEST_GAME_EVENTS.replace("-", "_")
PAUSE, AT_LATEST = timedelta(minutes=1), timedelta(minutes=15)
"""Without new events time goes on, too: a game that is silent is found by that."""

SHOWN = timedelta(minutes=15)
"""How far back the picture and the table of figures go."""


def judged_metadata(done: Judged, figures: Sequence[Mapping[str, object]], players: int) -> Metadata:
    """What a run judged, the last minutes of each game, and what is wrong.

    figures: rows as KPI_SCHEMA says, of the last complete minutes, by game and minute. players: with features.
    """
    value, until = dg.MetadataValue, done.until
    wrong = [f"{one.game}: {one.what} since {one.detected_at:%Y-%m-%d %H:%M} UTC" for one in done.standing]
    new = sorted({str(row["game"]) for row in figures} - set(done.games))
    shown: Metadata = {
        "players": players,
        "games_judged": len(done.games),
        "wrong": len(wrong),
    }
    if until is not None:
        # Also of the first runs of a new lake: an empty table would not say whether anything is amiss.
        none = f"no events in the {SHOWN // MINUTE} minutes before {until:%Y-%m-%d %H:%M} UTC"
        shown["last_minutes"] = value.md(_picture(figures, until))
        shown["figures"] = rows_table(_newest(figures)) if figures else none
        shown["judged_until"] = value.timestamp(until)
    if new:
        shown["not_judged_yet"] = f"{', '.join(new)}: two days of figures before today are needed"
    if wrong:
        shown["what_is_wrong"] = "\n".join(wrong)
    return shown


def _picture(figures: Sequence[Mapping[str, object]], until: datetime) -> str:
    """Events of all games by minute; a minute without any is one."""
    minutes = [until - SHOWN + n * MINUTE for n in range(SHOWN // MINUTE)]
    counts = [sum(int(str(row["events"])) for row in figures if row["minute"] == minute) for minute in minutes]
    return picture("events per minute, all games", counts, names=[f"{minute:%H:%M}" for minute in minutes])


def _newest(figures: Sequence[Mapping[str, object]]) -> list[dict[str, str]]:
    """The newest minute of each game that has one."""
    newest = [list(rows)[-1] for _, rows in groupby(figures, key=lambda row: row["game"])]
    return [
        {"game": str(row["game"]), "minute": f"{row['minute']:%Y-%m-%d %H:%M}"}
        | {name: f"{row[name]:.10g}" for name in KPIS}
        for row in newest
    ]


def live_ops_asset(types: Registry) -> dg.AssetsDefinition:
    @dg.asset(
        key=LIVE_OPS,
        deps=[key_of(declared.table) for declared in types.values()],
        group_name=GAMES_GROUP,
        kinds={"python"},
        pool=LIVE_OPS_POOL,
        description="Figures of games by minute and features of players, which the batches of events have counted. "
        "Complete minutes are held against a baseline; what is wrong is an alert.",
    )
    def live_ops_figures(platform: Platform) -> dg.MaterializeResult[None]:
        """The minutes that are complete; the sensor `send_alerts` sends the alerts."""
        job = LiveOpsJob(platform.settings())
        return dg.MaterializeResult(metadata=_shown(job, job.run()))

    return live_ops_figures


def _shown(job: LiveOpsJob, done: Judged) -> Metadata:
    figures = [] if done.until is None else job.store.figures(done.until - SHOWN, done.until).to_pylist()
    return judged_metadata(done, figures, job.store.players())


def judging(context: dg.AssetExecutionContext | dg.OpExecutionContext, settings: Settings) -> Callable[[], None]:
    """What a run that ingests events calls after each batch: judges games in its process, at most once a minute.

    Materializes the asset every `dagster.report_interval`. Does nothing without `live_ops.automatic`. Never raises:
    what cannot be judged is logged by the run, and keeps no event from being ingested.
    """
    if not settings.live_ops.automatic:
        return lambda: None
    if lacks := missing("liveops", JUDGING):
        context.log.warning(f"This run judges no games. {lacks}")
        return lambda: None
    # Kept for the whole run: it fits what is expected of a day once, 1.4 s a game.
    job = LiveOpsJob(settings)
    judge_at = report_at = 0.0

    def look() -> None:
        nonlocal judge_at, report_at
        if (now := time.monotonic()) < judge_at:
            return
        judge_at = now + PAUSE.total_seconds()
        try:
            done = job.run()
            if now >= report_at:
                context.log_event(dg.AssetMaterialization(LIVE_OPS, metadata=_shown(job, done)))
                report_at = now + settings.dagster.report_interval.total_seconds()
        except Exception as error:
            context.log.warning(f"Games were not judged, and are again in a minute: {type(error).__name__}: {error}")

    return look


@lru_cache(maxsize=1)
def _store(url: str) -> LiveOpsStore:
    return LiveOpsStore(open_engine(url))


def look(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
    """Whether events were counted that no run was asked to judge, or nothing was judged for long.

    While a run ingests events, it judges them (`judging`); another run would cost a process a minute.
    No condition of Dagster's own automation: each evaluation keeps a tree of all tables and their days, 255 KB each
    30 s for 30 days (Dagster 1.13).
    """
    if lacks := missing("liveops", JUDGING):
        return dg.SkipReason(str(lacks))
    newest, now = _store(settings.store_url).newest(), time.time()
    if newest is None:
        return dg.SkipReason("No event was counted yet.")
    recent = recent_runs(context.instance, JOB)
    if reason := too_soon(recent, now, PAUSE.total_seconds()):
        return dg.SkipReason(reason)
    counted = newest[0].isoformat()
    if now - _judged(context.instance) < AT_LATEST.total_seconds():
        if recent_runs(context.instance, INGESTS).under_way:
            return dg.SkipReason("The run that ingests events judges them, too.")
        if counted == context.cursor:
            return dg.SkipReason("No events were counted since the last run.")
    context.update_cursor(counted)
    return dg.RunRequest()


def _judged(instance: dg.DagsterInstance) -> float:
    """When a run last reported what it judged, Unix time; 0.0: none has."""
    event = instance.get_latest_materialization_event(LIVE_OPS)
    return event.timestamp if event else 0.0


def definitions() -> dg.Definitions:
    settings = Settings()
    asset = live_ops_asset(registry(settings.games.declarations))
    job = dg.define_asset_job(
        JOB,
        selection=dg.AssetSelection.assets(asset),
        description="Judge the minutes of games that are complete. No table changes.",
        executor_def=dg.in_process_executor,
    )
    asks = sensor(
        "games_counted",
        look,
        "Judges the figures of games after events came, at most once a minute, and every quarter of an hour. The run "
        "that ingests events judges them, too. On from the start with `live_ops.automatic` and `dagster.automation`; "
        "otherwise `engagement-platform live-ops run --follow` does the same without runs.",
        job=JOB,
        every=30,
        on=settings.live_ops.automatic,
    )
    return dg.Definitions(assets=[asset], jobs=[job], sensors=[asks])

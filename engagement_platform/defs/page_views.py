"""Page views as Dagster sees them: an asset for each hop, with its lag, and the job and schedule that run all.

Of the platform itself while `pipelines.page_views` is on, or of who declares the component `ViewAnalytics`.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import time

import dagster as dg

from engagement_platform.defs.backlog import waiting
from engagement_platform.defs.batches import Metadata
from engagement_platform.defs.layout import layout_definitions
from engagement_platform.defs.materialization_events import of_table
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.sensors import recent_runs, schedule, waiting_for, why_not
from engagement_platform.defs.specs import column_schema, key_of, topic_key, topic_spec
from engagement_platform.engine.model import RULES_VERSION
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.streaming import Drained
from engagement_platform.pipelines.page_views.job import HOPS, PAGE_VIEWS, Hop, Lag, lag, read_up_to, run_hop
from engagement_platform.settings import Settings

GROUP = "page_views"
JOB = "page_views"
TOPIC = topic_key("page-views")
EVERY = "*/5 * * * *"
"""How often the hops of the platform run: a run takes some 20 s of a core (a guess)."""


def hop_asset(hop: Hop) -> dg.AssetsDefinition:
    @dg.asset(
        key=key_of(hop.table),
        deps=[TOPIC if hop.source is None else key_of(hop.source)],
        group_name=GROUP,
        kinds={"deltalake", "spark"},
        pool=f"view_{hop.name}",
        description=f"{hop.table.description} Append-only: streams may read on from it.",
        metadata={"dagster/column_schema": column_schema(hop.table)},
        code_version=str(RULES_VERSION),
    )
    def drain_hop(context: dg.AssetExecutionContext, platform: Platform) -> dg.MaterializeResult[None]:
        with platform.open(hop.stream) as opened:
            lake = Lake(opened.spark, opened.settings)
            drained = run_hop(hop, lake, opened.stores)
            behind, table = lag(hop, lake), of_table(hop.table, opened.settings.lake)
        context.log.info(f"{hop.stream}: {drained.rows_in:,} rows in {drained.batches} batches, {drained.late:,} late")
        return dg.MaterializeResult(metadata={**hop_metadata(drained, behind), **table})

    return drain_hop


def hop_metadata(drained: Drained, behind: Lag) -> Metadata:
    """What one run of a hop did, and how far its table is behind the one before, in the time of events."""
    shown: Metadata = {
        "rows_in": drained.rows_in,
        "batches": drained.batches,
        "late": drained.late,
    }
    if drained.watermark is not None:
        shown["watermark"] = drained.watermark
    if behind.newest is not None:
        shown["newest_event"] = dg.MetadataValue.timestamp(behind.newest)
    if behind.behind_s is not None:
        shown["behind_s"] = round(behind.behind_s, 1)
    return shown


def page_view_definitions(cron: str) -> dg.Definitions:
    hops = [hop_asset(hop) for hop in HOPS]
    job = dg.define_asset_job(
        JOB,
        selection=dg.AssetSelection.assets(*hops).without_checks(),
        description="Run every hop until it has read all that waits.",
        executor_def=dg.in_process_executor,
    )

    def look(context: dg.ScheduleEvaluationContext, settings: Settings) -> dg.RunRequest | dg.SkipReason:
        def backlog() -> int:
            source = waiting(settings).source(PAGE_VIEWS, settings.page_views.topic)
            return source.backlog(read_up_to(settings))

        waits, lost = waiting_for(backlog)
        recent = recent_runs(context.instance, JOB)
        # Where a run ended before its last hop, what that has not read is no longer on the topic.
        reason = lost if waits is None else why_not(waits or int(recent.is_undone), recent, time.time())
        return dg.SkipReason(reason) if reason else dg.RunRequest()

    by_the_clock = schedule(
        JOB,
        cron,
        "Runs every hop when page views wait, unless a run is under way; after failures less and less often.",
        name=f"{JOB}_by_the_clock",
        look=look,
    )
    topic = topic_spec(TOPIC, "page views", "page_views.topic")
    own = dg.Definitions(assets=[topic, *hops], jobs=[job], schedules=[by_the_clock])
    return dg.Definitions.merge(own, layout_definitions(JOB, [key_of(hop.table) for hop in HOPS]))


def definitions() -> dg.Definitions:
    return page_view_definitions(EVERY)

"""A declared stream as Dagster sees it: its two tables, checks, the job that drains its topic, and the sensor.

What a batch does is `pipelines.kafka_tables`; the components that people declare streams with are in `components`.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

from collections.abc import Iterator
from functools import partial
from typing import Any

import dagster as dg

from engagement_platform.defs.backlog import Waiting, waiting
from engagement_platform.defs.batches import Batch, Metadata, identified, rejections, summary, written
from engagement_platform.defs.checks import FRESH, fresh_result, selected
from engagement_platform.defs.ingestion import Ingestion
from engagement_platform.defs.layout import layout_definitions
from engagement_platform.defs.materialization_events import Tables
from engagement_platform.defs.platform import Opened, Platform, bound_platform
from engagement_platform.defs.sensors import backlog_sensor
from engagement_platform.defs.specs import key_of, table_spec
from engagement_platform.engine.job import Callbacks, MicroBatchJob
from engagement_platform.lake.contract import Table
from engagement_platform.pipelines.kafka_tables.tables import Stream


def stream_definitions(stream: Stream) -> dg.Definitions:
    """Everything of one stream, and the resource that its runs need."""
    landing = ingestion(stream)

    def fresh(looked: Waiting) -> list[dg.AssetCheckResult]:
        return [fresh_result(stream.job, key_of(stream.table), looked, stream.topic)]

    @dg.multi_asset_check(
        name=f"watch_{stream.words}",
        can_subset=True,
        specs=[
            dg.AssetCheckSpec(
                FRESH, asset=key_of(stream.table), description="No record waits longer than `quality.freshness`."
            )
        ],
    )
    def watch_stream(context: dg.AssetCheckExecutionContext, platform: Platform) -> Iterator[dg.AssetCheckResult]:
        yield from selected(context, fresh(waiting(platform.settings())))

    backlog = backlog_sensor(
        f"{stream.words}_backlog",
        stream.job,
        lambda looked: looked.backlog(stream.job, stream.topic),
        f"Launches a drain run when records of {stream.topic} wait on the broker and none is under way. Reports "
        "freshness.",
        assets=landing.assets,
        checks=fresh,
    )
    own = dg.Definitions(
        assets=[landing.assets],
        asset_checks=[watch_stream],
        jobs=[landing.asset_job(f"Drain new records of {stream.topic}.")],
        sensors=[backlog],
        resources={"platform": bound_platform()},
    )
    return dg.Definitions.merge(own, layout_definitions(stream.words, [spec.key for spec in landing.specs]))


def topic_key(topic: str) -> dg.AssetKey:
    """A topic as an asset: what the tables come from."""
    return dg.AssetKey(["kafka", topic])


def ingestion(stream: Stream) -> Ingestion:
    """The table and its quarantine, filled by drain runs."""
    tables = (stream.table, stream.quarantine)

    def build(opened: Opened, callbacks: Callbacks) -> MicroBatchJob[Any]:
        from engagement_platform.pipelines.jobs import build_job, parts_of

        return build_job(stream.job, parts_of(opened.spark, opened.settings, opened.stores, callbacks), stream)

    return Ingestion(
        stream.job,
        f"land_{stream.words}",
        [table_spec(t, [topic_key(stream.topic)]).replace_attributes(group_name=stream.key[0]) for t in tables],
        stream.words,
        Tables(dict.fromkeys(tables, "tables"), metadata=partial(landed_metadata, stream)),
        stream.table,
        build,
        f"Records of the topic {stream.topic}, batch after batch, exactly once in each table.",
    )


def landed_metadata(stream: Stream, batch: Batch, table: Table, process: str) -> Metadata:
    """Of batches that landed: what came, how fresh it is, what was written, and what was refused."""
    shown = summary(batch) if table == stream.table else {}
    return identified(batch, {**shown, **written(batch.processes.get(process, {})), **rejections(batch.report)})

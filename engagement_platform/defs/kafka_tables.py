"""A declared stream as Dagster sees it: its two tables, checks, the job that drains its topic, and the sensor.

What a batch does is `pipelines.kafka_tables`; the components that people declare streams with are in `components`.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import dagster as dg

from engagement_platform.defs.batches import (
    Batch,
    Metadata,
    identified,
    last_batches,
    rejections,
    whole_batch,
    written,
)
from engagement_platform.defs.checks import FRESH, selected
from engagement_platform.defs.engagement import (
    IngestConfig,
    Ingestion,
    conservation_spec,
    ingest,
    with_conservation,
)
from engagement_platform.defs.entity_checks import fresh_result
from engagement_platform.defs.evaluations import evaluation, report
from engagement_platform.defs.examined import check_results
from engagement_platform.defs.layout import layout_check, look
from engagement_platform.defs.platform import Opened, Platform, bound_platform
from engagement_platform.defs.sensors import drain_request, to_report
from engagement_platform.defs.specs import DAYS, key_of, table_spec
from engagement_platform.defs.telling import Tables
from engagement_platform.defs.waiting import Waiting, waiting
from engagement_platform.engine.job import Callbacks, MicroBatchJob
from engagement_platform.lake.contract import Table
from engagement_platform.pipelines.kafka_tables.tables import Stream


def stream_definitions(stream: Stream) -> dg.Definitions:
    """Everything of one stream, and the resource that its runs need."""
    landed = stream_assets(stream)
    job = dg.define_asset_job(
        stream.job.replace("-", "_"),
        selection=with_conservation(landed),
        description=f"Drain new records of {stream.topic}.",
        executor_def=dg.in_process_executor,
    )
    return dg.Definitions(
        assets=[landed],
        asset_checks=[fresh_check(stream), *(layout_check(key_of(t)) for t in (stream.table, stream.quarantine))],
        jobs=[job],
        sensors=[backlog_sensor(stream, landed)],
        resources={"platform": bound_platform()},
    )


def topic_key(topic: str) -> dg.AssetKey:
    """A topic as an asset: what the tables come from."""
    return dg.AssetKey(["kafka", topic])


def stream_assets(stream: Stream) -> dg.AssetsDefinition:
    """The table and its quarantine, filled by drain runs; each also looks how their files lie in the end."""
    tables = (stream.table, stream.quarantine)
    this = Ingestion(
        stream.job,
        Tables({stream.table: "tables", stream.quarantine: "tables"}, {}, partial(landed_metadata, stream)),
        stream.table,
        (dg.AssetCheckKey(key_of(stream.table), FRESH),),
        partial(_built, stream),
    )
    specs = [
        table_spec(table, [topic_key(stream.topic)]).replace_attributes(group_name=stream.key[0]) for table in tables
    ]

    @dg.multi_asset(
        name=f"land_{stream.words}",
        specs=specs,
        check_specs=[conservation_spec(stream.table)],
        partitions_def=DAYS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=stream.words,
        description=f"Records of the topic {stream.topic}, batch after batch, exactly once in each table.",
    )
    def landed(
        context: dg.AssetExecutionContext, config: IngestConfig, platform: Platform
    ) -> Iterator[dg.AssetCheckResult]:
        yield from ingest(this, context, config.mode, platform)
        for table in tables:
            for result in check_results(look(platform.settings(), table.name)):
                context.log_event(evaluation(result))

    return landed


def _built(stream: Stream, opened: Opened, callbacks: Callbacks) -> MicroBatchJob[Any]:
    from engagement_platform.jobs import build_declared

    return build_declared(stream.job, stream, opened.spark, opened.settings, opened.stores, callbacks)


def landed_metadata(stream: Stream, batch: Batch, table: Table, process: str) -> Metadata:
    """Of a batch that landed: what came, how fresh it is, what was written, and what was refused."""
    shown: Metadata = {}
    if table == stream.table:
        shown = {"last_batches": last_batches(batch.history), **whole_batch(batch)}
    shown |= written(batch.processes.get(process, {}))
    return identified(batch.report, {**shown, **rejections(batch.report)})


def fresh_now(stream: Stream, looked: Waiting) -> dg.AssetCheckResult:
    """Passed when no record waits for too long, and where there is no topic yet."""
    return fresh_result(stream.job, key_of(stream.table), looked, stream.topic)


def fresh_check(stream: Stream) -> dg.AssetChecksDefinition:
    """Freshness on demand; the stream's sensor reports the same without a run."""

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
        yield from selected(context, [fresh_now(stream, waiting(platform.settings()))])

    return watch_stream


def backlog_sensor(stream: Stream, landed: dg.AssetsDefinition) -> dg.SensorDefinition:
    """Launches a drain run when records wait and none is under way, and reports freshness."""

    @dg.sensor(
        name=f"{stream.words}_backlog",
        job_name=stream.job.replace("-", "_"),
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Launches a drain run when records of {stream.topic} wait on the broker and none is under way. "
        "Reports freshness.",
    )
    def backlog(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
        looked = waiting(platform.settings())
        news, cursor = to_report([fresh_now(stream, looked)], context.cursor, time.time())
        report(context.instance, news)
        context.update_cursor(cursor)
        return drain_request(stream.job, landed, looked, context, stream.topic)

    return backlog

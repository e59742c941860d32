"""A declared stream as Dagster sees it: its two tables, checks, the job that drains its topic, and the sensor.

What a batch does is `pipelines.kafka_tables`; the components that streams are declared with are in `defs.components`.
"""

from __future__ import annotations

import dagster as dg

from engagement_platform.defs.backlog import Waiting
from engagement_platform.defs.batches import Tables
from engagement_platform.defs.checks import FRESH, freshness
from engagement_platform.defs.ingestion import Ingestion
from engagement_platform.defs.layout import layout_definitions
from engagement_platform.defs.sensors import backlog_sensor, watched
from engagement_platform.defs.specs import key_of, table_spec, topic_key
from engagement_platform.pipelines.kafka_tables.tables import Stream


def stream_definitions(stream: Stream) -> dg.Definitions:
    landing, table = ingestion(stream), key_of(stream.table)

    def fresh(looked: Waiting) -> list[dg.AssetCheckResult]:
        return [freshness(stream.job, table, looked, stream.topic)]

    own = dg.Definitions(
        assets=[landing.assets],
        jobs=[landing.asset_job(f"Drain new records of {stream.topic}.")],
        sensors=[backlog_sensor(f"{stream.words}_backlog", landing, f"records of {stream.topic} wait on the broker")],
    )
    watch = watched(
        f"watch_{stream.words}",
        {(table, FRESH): "No record waits longer than `quality.freshness`."},
        fresh,
        f"watch_{stream.words}_backlog",
        f"Reports since when records of {stream.topic} wait.",
    )
    return dg.Definitions.merge(own, watch, layout_definitions(stream.words, [spec.key for spec in landing.specs]))


def stream_tables(stream: Stream, quarantine_process: str = "tables") -> Tables:
    return Tables({stream.table: "tables", stream.quarantine: quarantine_process})


def ingestion(stream: Stream) -> Ingestion:
    source, group = [topic_key(stream.topic)], stream.key[0]
    return Ingestion(
        job=stream.job,
        asset_name=f"land_{stream.words}",
        specs=[table_spec(table, source, group) for table in (stream.table, stream.quarantine)],
        pool=stream.words,
        tables=stream_tables(stream),
        declared=lambda _settings: stream,
        description=f"Records of the topic {stream.topic}, batch after batch, exactly once in each table.",
    )

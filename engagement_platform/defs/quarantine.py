"""The job that puts rejected records through again after a fix, launched by people from the UI."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from engagement_platform.defs.engagement import DATA_POOL, ENGAGEMENT_TABLES, REQUEST_TABLES
from engagement_platform.defs.ingestion import drained
from engagement_platform.defs.kafka_tables import landed_metadata
from engagement_platform.defs.materialization_events import Tables, callbacks_of, record_batches
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.profile_metadata import changes_metadata
from engagement_platform.engine.job import Callbacks, MicroBatchJob
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.pipelines.declarations.declared import DeclaredEntity
from engagement_platform.pipelines.kafka_tables.tables import Stream


class RedriveConfig(dg.Config):
    """What to put through again."""

    reason: str = Field(
        min_length=1, description="Reason code of the records, as in the column reason_code of engagement/quarantine."
    )


@dg.op(pool=DATA_POOL)
def redrive(context: dg.OpExecutionContext, config: RedriveConfig, platform: Platform) -> None:
    """Records in quarantine for one reason, put through once more; what passes now lands and is announced."""
    with platform.open("redrive-quarantine") as opened:
        for job, tables in redrives(config.reason, opened, callbacks_of(context)):
            for report in record_batches(context, tables, opened, drained(context, opened, job, until_idle=True)):
                context.log.info(f"{report.counts.get('landed', 0)} of {report.counts.get('rows_in', 0)} landed")


def redrives(reason: str, opened: Opened, callbacks: Callbacks) -> Iterator[tuple[MicroBatchJob[Any], Tables]]:
    """Engagements, requests, profiles, and everything that is declared and has a quarantine; with their tables."""
    from engagement_platform.pipelines.jobs import parts_of, redrive_declared, redrive_jobs, redriven_tables

    parts = parts_of(opened.spark, opened.settings, opened.stores, callbacks)
    engagements, requests = redrive_jobs(reason, parts)
    yield engagements, ENGAGEMENT_TABLES
    yield requests, REQUEST_TABLES
    for declared in redriven_tables(opened.settings):
        if job := redrive_declared(declared, reason, parts):
            yield job, _tables_of(declared)


def _tables_of(declared: Stream | DeclaredEntity) -> Tables:
    if isinstance(declared, DeclaredEntity):
        entity = declared.entity
        return Tables({entity.changeset: "changeset"}, {QUARANTINE: "redriven"}, partial(changes_metadata, entity))
    return Tables(
        {declared.table: "tables", declared.quarantine: "redriven"}, metadata=partial(landed_metadata, declared)
    )


@dg.job
def redrive_quarantine() -> None:
    """Put rejected records through again, after what rejected them was mended. Safe to repeat."""
    redrive()


def definitions() -> dg.Definitions:
    """The job of this module."""
    return dg.Definitions(jobs=[redrive_quarantine])

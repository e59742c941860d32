"""The job that puts rejected records through again after a fix, launched by hand from the UI."""

# No `from __future__ import annotations` beside Dagster's decorators.

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from engagement_platform.defs.batches import Tables
from engagement_platform.defs.engagement import DATA_POOL, ENGAGEMENT_TABLES, REQUEST_TABLES
from engagement_platform.defs.entity import changeset_tables
from engagement_platform.defs.ingestion import drained
from engagement_platform.defs.kafka_tables import stream_tables
from engagement_platform.defs.materialization_events import callbacks_of, record_batches
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.engine.job import Callbacks, MicroBatchJob
from engagement_platform.pipelines.declarations.declared import DeclaredEntity


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
            for _report in record_batches(context, tables, opened, drained(context, opened, job, until_idle=True)):
                pass


def redrives(reason: str, opened: Opened, callbacks: Callbacks) -> Iterator[tuple[MicroBatchJob[Any], Tables]]:
    """Engagements, requests, profiles, and everything that is declared and has a quarantine; with their tables."""
    from engagement_platform.pipelines.jobs import parts_of, redrive_declared, redrive_jobs, redriven_tables

    parts = parts_of(opened.spark, opened.settings, opened.stores, callbacks)
    yield from zip(redrive_jobs(reason, parts), (ENGAGEMENT_TABLES, REQUEST_TABLES), strict=True)
    for declared in redriven_tables(opened.settings):
        if job := redrive_declared(declared, reason, parts):
            if isinstance(declared, DeclaredEntity):
                yield job, changeset_tables(declared.entity, "redriven")
            else:
                yield job, stream_tables(declared, "redriven")


@dg.job
def redrive_quarantine() -> None:
    """Put rejected records through again, after what rejected them was mended. Safe to repeat."""
    redrive()


def definitions() -> dg.Definitions:
    """The job of this module."""
    return dg.Definitions(jobs=[redrive_quarantine])

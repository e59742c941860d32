"""The job that puts rejected records through again after a fix, launched by people from the UI."""

from collections.abc import Iterator
from datetime import date, timedelta
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from engagement_platform.defs.checks import ENGAGEMENT_CHECKS, FRESH, REQUEST_CHECKS
from engagement_platform.defs.engagement import DATA_POOL
from engagement_platform.defs.entity_checks import SIZE
from engagement_platform.defs.evaluations import carry_over
from engagement_platform.defs.kafka_tables import landed_metadata
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.profiled import changes_metadata
from engagement_platform.defs.specs import key_of
from engagement_platform.defs.telling import ENGAGEMENT_TABLES, REQUEST_TABLES, Tables, callbacks_of, tell
from engagement_platform.engine.drain import DrainPolicy as Policy
from engagement_platform.engine.drain import drain
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob
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
        for job, tables, checks in redrives(config.reason, opened, callbacks_of(context)):
            landed = False
            for report in tell(context, tables, opened, _batches(job)):
                landed = True
                context.log.info(f"{report.counts.get('landed', 0)} of {report.counts.get('rows_in', 0)} landed")
            if landed:
                carry_over(context, checks)


Redrive = tuple[MicroBatchJob[Any], Tables, tuple[dg.AssetCheckKey, ...]]
"""A job, what its batches are told of, and the checks of these tables that others evaluate."""


def redrives(reason: str, opened: Opened, callbacks: Callbacks) -> Iterator[Redrive]:
    """Engagements, requests, profiles, and everything that is declared and has a quarantine."""
    from engagement_platform.jobs import redrive_declared, redrive_jobs, redriven_tables

    spark, settings, stores = opened.spark, opened.settings, opened.stores
    engagements, requests = redrive_jobs(reason, spark, settings, stores, callbacks)
    yield engagements, ENGAGEMENT_TABLES, ENGAGEMENT_CHECKS
    yield requests, REQUEST_TABLES, REQUEST_CHECKS
    for declared in redriven_tables(settings):
        if job := redrive_declared(declared, reason, spark, settings, stores, callbacks):
            yield job, *_told_of(declared)


def _told_of(declared: Stream | DeclaredEntity) -> tuple[Tables, tuple[dg.AssetCheckKey, ...]]:
    if isinstance(declared, DeclaredEntity):
        entity = declared.entity
        changeset = key_of(entity.changeset)
        tables = Tables({entity.changeset: "changeset"}, {QUARANTINE: "redriven"}, partial(changes_metadata, entity))
        return tables, (dg.AssetCheckKey(changeset, FRESH), dg.AssetCheckKey(changeset, SIZE))
    own = {declared.table: "tables", declared.quarantine: "redriven"}
    return Tables(own, {}, partial(landed_metadata, declared)), (dg.AssetCheckKey(key_of(declared.table), FRESH),)


def _batches(job: MicroBatchJob[Any]) -> Iterator[tuple[date, BatchReport]]:
    """What waits, each batch with the day of its ingestion."""
    for report in drain(job, Policy(idle_timeout=timedelta(0), max_duration=timedelta.max)):
        yield report.manifest.ingestion_ts.date(), report


@dg.job
def redrive_quarantine() -> None:
    """Put rejected records through again, after what rejected them was mended. Safe to repeat."""
    redrive()


def definitions() -> dg.Definitions:
    """The job of this module."""
    return dg.Definitions(jobs=[redrive_quarantine])

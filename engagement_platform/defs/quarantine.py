"""The job that puts rejected records through again after a fix, launched by hand from the UI."""

# No `from __future__ import annotations` beside Dagster's decorators.

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from engagement_platform.defs.batches import Tables
from engagement_platform.defs.engagement import DATA_POOL, ENGAGEMENT_TABLES, REQUEST_TABLES
from engagement_platform.defs.entity import changeset_tables
from engagement_platform.defs.ingestion import UNBOUNDED, drained
from engagement_platform.defs.kafka_tables import stream_tables
from engagement_platform.defs.materialization_events import Recorder, callbacks_of
from engagement_platform.defs.platform import Platform
from engagement_platform.engine.job import MicroBatchJob
from engagement_platform.pipelines.declarations.declared import DeclaredEntity
from engagement_platform.pipelines.jobs import redrive_declared, redrive_jobs, redriven_tables
from engagement_platform.pipelines.parts import Parts


class RedriveConfig(dg.Config):
    """What to put through again."""

    reason: str = Field(
        min_length=1, description="Reason code of the records, as in the column reason_code of engagement/quarantine."
    )


@dg.op(pool=DATA_POOL)
def redrive(context: dg.OpExecutionContext, config: RedriveConfig, platform: Platform) -> None:
    """Records in quarantine for one reason, put through once more; what passes now lands and is announced."""
    with platform.open("redrive-quarantine") as opened:
        for job, tables in redrives(config.reason, opened.parts(callbacks_of(context))):
            Recorder(context, tables, opened).add_all(drained(context, opened, job, until_idle=True))


def redrives(reason: str, parts: Parts) -> Iterator[tuple[MicroBatchJob[Any], Tables]]:
    """Engagements, requests, profiles, and everything that is declared and has a quarantine; with their tables."""
    yield from zip(redrive_jobs(reason, parts), (ENGAGEMENT_TABLES, REQUEST_TABLES), strict=True)
    for declared in redriven_tables(parts.settings):
        if job := redrive_declared(declared, reason, parts):
            if isinstance(declared, DeclaredEntity):
                yield job, changeset_tables(declared.entity, "redriven")
            else:
                yield job, stream_tables(declared, "redriven")


@dg.job(tags=UNBOUNDED)
def redrive_quarantine() -> None:
    """Put rejected records through again, after what rejected them was mended. Safe to repeat."""
    redrive()


def definitions() -> dg.Definitions:
    return dg.Definitions(jobs=[redrive_quarantine])

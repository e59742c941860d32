"""The job that puts rejected records through again after a fix, launched by people from the UI."""

from collections.abc import Iterator
from datetime import date

import dagster as dg
from pydantic import Field

from engagement_platform.defs.checks import ENGAGEMENT_CHECKS, REQUEST_CHECKS
from engagement_platform.defs.engagement import DATA_POOL
from engagement_platform.defs.evaluations import carry_over
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.telling import ENGAGEMENT_TABLES, REQUEST_TABLES, tell, told_of
from engagement_platform.microbatch.job import BatchReport, Told


class RedriveConfig(dg.Config):
    """What to put through again."""

    reason: str = Field(
        min_length=1, description="Reason code of the records, as in the column reason_code of engagement/quarantine."
    )


@dg.op(pool=DATA_POOL)
def redrive(context: dg.OpExecutionContext, config: RedriveConfig, platform: Platform) -> None:
    """Records in quarantine for one reason, put through once more; what passes now lands and is announced."""
    with platform.open("redrive-quarantine") as opened:
        redriven = redriven_batches(config.reason, opened, told_of(context))
        for tables, done in zip((ENGAGEMENT_TABLES, REQUEST_TABLES), redriven, strict=True):
            for report in tell(context, tables, opened, done):
                context.log.info(f"{report.counts.get('landed', 0)} of {report.counts.get('rows_in', 0)} landed")
    carry_over(context, (*ENGAGEMENT_CHECKS, *REQUEST_CHECKS))


def redriven_batches(reason: str, opened: Opened, told: Told) -> Iterator[Iterator[tuple[date, BatchReport]]]:
    """Batches of engagements, then those of requests, each with the day of its ingestion."""
    from datetime import timedelta

    from engagement_platform.jobs import redrive_jobs
    from engagement_platform.microbatch.job import DrainPolicy, drain

    once = DrainPolicy(linger=timedelta(0), max_duration=timedelta.max)
    for job in redrive_jobs(reason, opened.spark, opened.settings, opened.stores, told):
        yield ((report.manifest.ingestion_ts.date(), report) for report in drain(job, once))


@dg.job
def redrive_quarantine() -> None:
    """Put rejected records through again, after what rejected them was mended. Safe to repeat."""
    redrive()


def definitions() -> dg.Definitions:
    """The job of this module."""
    return dg.Definitions(jobs=[redrive_quarantine])

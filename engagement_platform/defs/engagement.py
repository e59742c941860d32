"""The engagement tables as assets, and the jobs that fill them from Kafka. What a batch does is `pipelines/`.

Runs report every batch while they go on, so no result is yielded for an asset at the end: it would stand in front of
the last batch and say the same again. The run's checks are its results.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import dagster as dg

from engagement_platform.defs.batches import unbalanced
from engagement_platform.defs.checks import ENGAGEMENT_CHECKS, REQUEST_CHECKS
from engagement_platform.defs.evaluations import carry_over, evaluation
from engagement_platform.defs.giving_way import gives_way
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.specs import DATA_TABLE, DAYS, engagement_specs, key_of, request_specs, topic_specs
from engagement_platform.defs.telling import ENGAGEMENT_TABLES, REQUEST_TABLES, Tables, callbacks_of, tell
from engagement_platform.defs.work import Again, Build, Mode, batches, work_of
from engagement_platform.engine.job import BatchReport, BooksDoNotBalance
from engagement_platform.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.lake.contract import Table
from engagement_platform.lake.engagement import MUTATION_REQUEST

# An op has one pool; whatever reads engagements once more holds this one too. Announcements have a pool of their own,
# `mutation` says why; the leases in the stores are per table and keep the tables safe in any case.
DATA_POOL = "engagement_data"
REQUEST_POOL = "engagement_mutation_request"

CONSERVATION = "conservation"


class IngestConfig(dg.Config):
    """What a run of an ingestion asset may be told."""

    mode: Mode = "auto"
    """auto: today's partition drains new messages, days before are read again. drain, reread: always that."""


def conservation_spec(table: Table) -> dg.AssetCheckSpec:
    """The check that comes with every run: no batch loses or invents a record."""
    return dg.AssetCheckSpec(
        CONSERVATION,
        asset=key_of(table),
        blocking=True,
        description="Every record that a batch received has landed, was a known duplicate or is in quarantine.",
    )


def conservation(table: Table, reports: Sequence[BatchReport], refused: str | None = None) -> dg.AssetCheckResult:
    """The check's result for the batches of one run. refused: why the engine did not finalize a batch."""
    wrong = unbalanced(reports) + ([refused] if refused else [])
    sums = {
        name: sum(report.counts.get(name, 0) for report in reports)
        for name in ("rows_in", "landed", "duplicates", "quarantined")
    }
    return dg.AssetCheckResult(
        passed=not wrong,
        asset_key=key_of(table),
        check_name=CONSERVATION,
        description="; ".join(wrong) or None,
        metadata={"batches": len(reports), **sums},
    )


def partition_days(context: dg.AssetExecutionContext) -> list[date]:
    """The run's partitions; none for a run without."""
    if not context.has_partition_key and not context.has_partition_key_range:
        return []
    return [date.fromisoformat(key) for key in context.partition_keys]


@dataclass(frozen=True)
class Ingestion:
    """A job that drains, as Dagster sees it."""

    job: str
    tables: Tables
    """What its batches are told of."""
    checked: Table
    """The table that `conservation` stands on."""
    carried: Sequence[dg.AssetCheckKey]
    """Checks that others evaluate."""
    build: Build | None = None
    """Makes the job; None: it is found by its name."""
    again: Again | None = None
    """Reads a day once more; None: it is found by the job's name."""


ENGAGEMENTS = Ingestion(INGEST_ENGAGEMENTS, ENGAGEMENT_TABLES, DATA_TABLE, ENGAGEMENT_CHECKS)
REQUESTS = Ingestion(INGEST_MUTATION_REQUESTS, REQUEST_TABLES, MUTATION_REQUEST, REQUEST_CHECKS)


def ingest(
    this: Ingestion, context: dg.AssetExecutionContext, mode: Mode, platform: Platform
) -> Iterator[dg.AssetCheckResult]:
    """Make the batches that the run asks for, tell of each, and check that the books balance."""
    work = work_of(mode, partition_days(context), datetime.now(UTC).date())
    reports: list[BatchReport] = []
    with platform.open(this.job) as opened:
        done = batches(
            this.job,
            work,
            opened,
            callbacks_of(context),
            gives_way=gives_way(context),
            build=this.build,
            again=this.again,
        )
        try:
            for report in tell(context, this.tables, opened, done):
                reports.append(report)
                # A run lasts for minutes; without this its checks would be "In progress" all the while.
                context.log_event(evaluation(conservation(this.checked, reports)))
                if len(reports) == 1:
                    carry_over(context, this.carried)
        except BooksDoNotBalance as refused:
            yield conservation(this.checked, reports, str(refused))
            raise
    yield conservation(this.checked, reports)


@dg.multi_asset(
    name="ingest_engagement_tables",
    specs=engagement_specs(),
    check_specs=[conservation_spec(DATA_TABLE)],
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool=DATA_POOL,
)
def engagement_tables(
    context: dg.AssetExecutionContext, config: IngestConfig, platform: Platform
) -> Iterator[dg.AssetCheckResult]:
    """Engagements from Kafka, batch after batch, exactly once in each of their tables."""
    yield from ingest(ENGAGEMENTS, context, config.mode, platform)


@dg.multi_asset(
    name="ingest_mutation_request_table",
    specs=request_specs(),
    check_specs=[conservation_spec(MUTATION_REQUEST)],
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool=REQUEST_POOL,
)
def mutation_request_table(
    context: dg.AssetExecutionContext, config: IngestConfig, platform: Platform
) -> Iterator[dg.AssetCheckResult]:
    """Mutation requests from Kafka, accepted or rejected; accepted ones are visible with their batch."""
    yield from ingest(REQUESTS, context, config.mode, platform)


def with_conservation(assets: dg.AssetsDefinition) -> dg.AssetSelection:
    """Assets and the checks that their own runs yield; a run that drains has no time for checks of whole tables."""
    return dg.AssetSelection.assets(assets).without_checks() | dg.AssetSelection.checks(*assets.check_keys)


ingest_engagements = dg.define_asset_job(
    "ingest_engagements",
    selection=with_conservation(engagement_tables),
    description="Drain new engagements (today's partition) or read days again (any other).",
)
ingest_mutation_requests = dg.define_asset_job(
    "ingest_mutation_requests",
    selection=with_conservation(mutation_request_table),
    description="Drain new mutation requests.",
)


def definitions() -> dg.Definitions:
    """Assets and jobs of this module."""
    return dg.Definitions(
        assets=[*topic_specs(), engagement_tables, mutation_request_table],
        jobs=[ingest_engagements, ingest_mutation_requests],
    )

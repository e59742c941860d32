"""The mutation logs as assets, and the job that applies requests to the tables. What a batch does is `mutation/`."""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

from collections.abc import Iterator

import dagster as dg

from engagement_platform.defs.checks import MUTATION_CHECKS
from engagement_platform.defs.engagement import (
    IngestConfig,
    Ingestion,
    conservation_spec,
    ingest,
    with_conservation,
)
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.specs import DAYS, mutation_specs
from engagement_platform.defs.telling import MUTATION_TABLES
from engagement_platform.lake.engagement import ALIAS
from engagement_platform.pipelines.parts import APPLY_MUTATIONS

# Not the pool of the engagements, though both write the Data Table and the mapping: a pool is held for a whole drain,
# up to ten minutes, in which no mutation would be applied. The leases in the stores are taken batch by batch, first
# come first served, so two drains side by side take turns and each waits for one batch of the other; the log of the
# run says for whom. Where one has to wait for a batch that somebody else left unfinished, the run that finishes it
# needs another pool than the waiting one holds, so it is never kept out.
MUTATION_POOL = "engagement_mutation"

MUTATIONS = Ingestion(APPLY_MUTATIONS, MUTATION_TABLES, ALIAS, MUTATION_CHECKS)


@dg.multi_asset(
    name="apply_mutation_requests",
    specs=mutation_specs(),
    check_specs=[conservation_spec(ALIAS)],
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool=MUTATION_POOL,
)
def mutation_tables(
    context: dg.AssetExecutionContext, config: IngestConfig, platform: Platform
) -> Iterator[dg.AssetCheckResult]:
    """Requests that landed since the last batch, resolved and applied: each touched row changes once."""
    yield from ingest(MUTATIONS, context, config.mode, platform)


apply_mutations = dg.define_asset_job(
    "apply_mutations",
    selection=with_conservation(mutation_tables),
    description="Apply new mutation requests: conversions, deletions, renames and updates.",
)


def definitions() -> dg.Definitions:
    """Assets and job of this module."""
    return dg.Definitions(assets=[mutation_tables], jobs=[apply_mutations])

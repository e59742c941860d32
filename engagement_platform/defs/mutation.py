"""The job that announces what accepted requests change. What a batch does is `pipelines/mutations/announce`."""

# No `from __future__ import annotations` beside Dagster's decorators.

import dagster as dg

from engagement_platform.defs.giving_way import gives_way
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.telling import ANNOUNCED_TABLES, callbacks_of, tell
from engagement_platform.defs.work import Work, batches
from engagement_platform.pipelines.parts import APPLY_MUTATIONS

# Not the pool of the engagements: a pool is held for a whole drain, up to ten minutes, in which no request would be
# announced. The lease of the Data Table is taken batch by batch, first come first served, so two drains side by side
# take turns; the log of the run says for whom it waits.
MUTATION_POOL = "engagement_mutation"


@dg.op(pool=MUTATION_POOL)
def announce(context: dg.OpExecutionContext, platform: Platform) -> None:
    """A notification for each engagement that published requests change for readers, batch after batch."""
    with platform.open(APPLY_MUTATIONS) as opened:
        new = Work((), drain=True)
        done = batches(APPLY_MUTATIONS, new, opened, callbacks_of(context), gives_way=gives_way(context))
        for _report in tell(context, ANNOUNCED_TABLES, opened, done):
            pass


@dg.job
def apply_mutations() -> None:
    """Announce what new conversions, deletions and updates change. Readers of the view see them before that."""
    announce()


def definitions() -> dg.Definitions:
    """The job of this module."""
    return dg.Definitions(jobs=[apply_mutations])

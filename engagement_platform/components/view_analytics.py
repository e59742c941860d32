"""The component that runs view analytics. What it is made of is `defs.chain`, what the hops make is `chains`."""

import dagster as dg

from engagement_platform.components.described import Described
from engagement_platform.components.scaffold import scaffolder
from engagement_platform.defs.chain import chain_definitions
from engagement_platform.streams.kinds import ViewAnalyticsDeclaration

EXAMPLE = """\
cron: "*/5 * * * *"
"""


@dg.scaffold_with(scaffolder(EXAMPLE))
class ViewAnalytics(ViewAnalyticsDeclaration, Described, dg.Component):
    """Page views from Kafka, sessions of them, and days of those: three streams, each over the table of the one before.

    Topic, gap and lateness are settings (`chain`). With it come an asset for each hop with its lag, layout checks, and
    a job and schedule that run all of them.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Assets, checks, job and schedule."""
        return chain_definitions(self.cron)

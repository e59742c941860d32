"""The component that runs the page views by another clock. What it is made of is `defs.page_views`."""

import dagster as dg

from engagement_platform.defs.components.described import Described
from engagement_platform.defs.components.scaffold import scaffolder
from engagement_platform.defs.page_views import page_view_definitions
from engagement_platform.pipelines.declarations.kinds import ViewAnalyticsDeclaration

EXAMPLE = """\
cron: "*/5 * * * *"
"""


@dg.scaffold_with(scaffolder(EXAMPLE))
class ViewAnalytics(ViewAnalyticsDeclaration, Described, dg.Component):
    """Page views from Kafka, sessions of them, and days of those: three streams, each over the table of the one before.

    Topic, gap and lateness are settings (`page_views`). With it come an asset for each hop with its lag, layout checks,
    and a job and schedule that run all of them. Takes the place of those that ship with `pipelines.page_views`.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Assets, checks, job and schedule."""
        return page_view_definitions(self.cron)

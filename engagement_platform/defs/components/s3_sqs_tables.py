"""The component that makes tables of objects which S3 announces in a queue. What may be declared is in
`declarations.kinds`, what it is made of in `defs.games`."""

import dagster as dg

from engagement_platform.defs.components.described import Described
from engagement_platform.defs.components.scaffold import scaffolder
from engagement_platform.defs.games import declared_definitions
from engagement_platform.pipelines.declarations.kinds import S3SqsTablesDeclaration

EXAMPLE = """\
name: arcade
queue_url: https://sqs.eu-central-1.amazonaws.com/123456789012/arcade-events
bucket: arcade-raw
types:
  round_end:
    description: A round is over.
    fields:
      score: {type: long, required: true, at_least: 0, comment: Points.}
      board: string
"""


@dg.scaffold_with(scaffolder(EXAMPLE))
class S3SqsTables(S3SqsTablesDeclaration, Described, dg.Component):
    """Objects of JSON lines that S3 announces in an SQS queue, whose events land in a Delta table for each type.

    Exactly once; lines that are not what is declared stand whole in a table of quarantine, with the reason. With them
    come an asset for each table, their checks, a job that drains the queue, one that reads objects once more, and a
    sensor.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Assets, checks, jobs and sensor."""
        return declared_definitions(self.feed(context.path))

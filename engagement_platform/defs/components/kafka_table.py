"""The component that makes a table of a Kafka topic. What may be declared is in `declarations.kinds`, what it is made
of in `defs.kafka_tables`."""

import dagster as dg

from engagement_platform.defs.components.described import Described
from engagement_platform.defs.components.scaffold import scaffolder
from engagement_platform.defs.kafka_tables import stream_definitions
from engagement_platform.pipelines.declarations.kinds import KafkaTableDeclaration

EXAMPLE = """\
topic: shop-clicks
table: shop/click
columns:
  click_id: string
  shop_id: string
  page: string
  clicked_at: timestamp
key: shop_id
event_time: clicked_at
unique: [click_id]
"""


@dg.scaffold_with(scaffolder(EXAMPLE))
class KafkaTable(KafkaTableDeclaration, Described, dg.Component):
    """A Kafka topic whose records land in an append-only Delta table, exactly once.

    Records that are not what is declared stand whole in a table of quarantine, with the reason. With it come an asset
    for each of the two tables, their checks, a job that drains the topic, and a sensor that launches it.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Assets, checks, job and sensor."""
        return stream_definitions(self.stream)

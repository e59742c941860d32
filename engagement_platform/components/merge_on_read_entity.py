"""The component that keeps an entity of partial updates. What may be declared is `streams.kinds`, what it is made of
`defs.entity`."""

import dagster as dg

from engagement_platform.components.described import Described
from engagement_platform.components.scaffold import scaffolder
from engagement_platform.defs.entity import EntityParts
from engagement_platform.defs.kafka_tables import topic_key
from engagement_platform.defs.layout import layout_definitions
from engagement_platform.pipelines.declarations.kinds import MergeOnReadEntityDeclaration

EXAMPLE = """\
topic: account-changes
name: account
key: account_id
columns:
  plan: string
  seats: long
"""


@dg.scaffold_with(scaffolder(EXAMPLE))
class MergeOnReadEntity(MergeOnReadEntityDeclaration, Described, dg.Component):
    """A keyed thing whose columns arrive a few at a time, from a Kafka topic of changes.

    With it come a changeset that changes are appended to, a base that they are moved into, a view over both, their
    checks, and the jobs, sensors and schedule that keep them.
    """

    @property
    def parts(self) -> EntityParts:
        """What the definitions are made of."""
        return EntityParts(
            self.entity, topic_key(self.topic), lambda _settings: self.topic, lambda _settings: self.entity, self.name
        )

    @property
    def examined(self) -> dg.Definitions:
        """Layout checks of its tables, and what evaluates them."""
        return layout_definitions(f"{self.name}_tables", [self.parts.changeset, self.parts.base])

    def build_defs(self, context: dg.ComponentLoadContext | None = None) -> dg.Definitions:  # noqa: ARG002
        """Assets, checks, jobs, sensors and schedule."""
        return dg.Definitions.merge(self.parts.definitions(), self.examined)

"""The component that keeps an entity of partial updates. What may be declared is in `declarations.kinds`, what it is
made of in `defs.entity`."""

import dagster as dg

from engagement_platform.defs.components.described import Described
from engagement_platform.defs.components.scaffold import scaffolder
from engagement_platform.defs.entity import EntityParts
from engagement_platform.defs.layout import layout_definitions
from engagement_platform.defs.specs import key_of, topic_key
from engagement_platform.pipelines.declarations.declared import DeclaredEntity
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

    def build_defs(self, context: dg.ComponentLoadContext | None = None) -> dg.Definitions:  # noqa: ARG002
        """Assets, checks, jobs, sensors and schedule."""
        declared = DeclaredEntity(self.topic, self.entity)
        parts = EntityParts(self.entity, topic_key(self.topic), lambda _settings: declared, self.name)
        tables = [key_of(table) for table in (self.entity.changeset, self.entity.base)]
        return dg.Definitions.merge(parts.definitions(), layout_definitions(f"{self.name}_tables", tables))

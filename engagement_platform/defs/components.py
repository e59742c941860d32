"""Dagster components: tables of your own, declared in a `defs.yaml` file, as `engagement_platform.NAME`.

What may be declared is in `declarations.kinds`; what a component is made of, in the module of its kind beside this one.
"""

import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import yaml
from dagster.components.core.component_tree import ComponentTree
from pydantic import BaseModel

from engagement_platform.defs.entity import EntityParts
from engagement_platform.defs.games import declared_definitions
from engagement_platform.defs.kafka_tables import stream_definitions
from engagement_platform.defs.layout import layout_definitions
from engagement_platform.defs.page_views import page_view_definitions
from engagement_platform.defs.specs import key_of, topic_key
from engagement_platform.pipelines.declarations.declared import DeclaredEntity
from engagement_platform.pipelines.declarations.kinds import (
    KafkaTableDeclaration,
    MaintainedTableDeclaration,
    MergeOnReadEntityDeclaration,
    S3SqsTablesDeclaration,
    ViewAnalyticsDeclaration,
)

__all__ = ["KafkaTable", "MaintainedTable", "MergeOnReadEntity", "S3SqsTables", "ViewAnalytics"]

# dg makes the scaffolder of every component in the environment, of those of dagster-spark, too, which dagster-pyspark
# brings along and nobody has asked for; each `dg check defs` would warn that it is a preview.
warnings.filterwarnings("ignore", "Class `SparkDeclarativePipelineScaffolder`", dg.PreviewWarning)

MODULE = "engagement_platform_declared"
"""Under which Python files of the folder of declarations, if there are any, are imported."""


def folder_definitions(folder: Path) -> dg.Definitions:
    """Everything that a folder of declarations declares, read as Dagster reads one of a project: any component that is
    installed may stand there. Raises what Dagster says of a file that cannot be used.

    A project of its own needs none of this: there, `dg` finds the components by their names.
    """
    root = folder.expanduser().absolute()
    # Dagster reads folders of packages, and this one is in none; a project would need a configuration file of its own.
    module = ModuleType(MODULE)
    module.__path__ = [str(root)]
    module.__file__ = None
    sys.modules[MODULE] = module
    return ComponentTree(defs_module=module, project_root=root.parent).build_defs()


class Described(dg.Resolvable):
    """A component's attributes, each with its description: Dagster drops that of those with defaults (1.13)."""

    @classmethod
    def model(cls) -> type[BaseModel]:
        """What may stand under `attributes`."""
        made = super().model()
        own = {name: field.description for name, field in getattr(cls, "model_fields", {}).items()}
        lacking = [name for name, field in made.model_fields.items() if not field.description and own.get(name)]
        for name in lacking:
            made.model_fields[name].description = own[name]
        if lacking:
            made.model_rebuild(force=True)
        return made


def scaffolder(example: str) -> type[dg.Scaffolder[Any]]:
    """A scaffolder that writes `defs.yaml` with these attributes into the folder that was asked for; they work as they
    are once names are changed. Nothing is made at import."""

    class Example(dg.Scaffolder[Any]):
        """Writes the example; an existing file is replaced only by the tool's own consent, or appended to."""

        def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
            """One document of YAML; where Python is asked for, the empty function of Dagster's own."""
            dg.scaffold_component(request, yaml.safe_load(example))

    return Example


@dg.scaffold_with(
    scaffolder("""\
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
""")
)
class KafkaTable(KafkaTableDeclaration, Described, dg.Component):
    """A Kafka topic whose records land in an append-only Delta table, exactly once.

    Records that are not what is declared stand whole in a table of quarantine, with the reason. With it come an asset
    for each of the two tables, their checks, a job that drains the topic, and a sensor that launches it.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        return stream_definitions(self.stream)


@dg.scaffold_with(
    scaffolder("""\
table: shop/order
description: Orders, written by the shop's own job.
""")
)
class MaintainedTable(MaintainedTableDeclaration, Described, dg.Component):
    """A Delta table of the lake that another writer fills, checked like the platform's own.

    With it come an asset, a check of the layout of its files, and a sensor that examines after commits.
    Maintenance takes every table of the lake, with or without this.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        asset = dg.AssetSpec(
            list(self.path),
            description=self.description or "A table that others write.",
            group_name=self.path[0],
            kinds={"deltalake"},
        )
        return dg.Definitions.merge(
            dg.Definitions(assets=[asset]), layout_definitions("_".join(self.path), [asset.key])
        )


@dg.scaffold_with(
    scaffolder("""\
topic: account-changes
name: account
key: account_id
columns:
  plan: string
  seats: long
""")
)
class MergeOnReadEntity(MergeOnReadEntityDeclaration, Described, dg.Component):
    """A keyed thing whose columns arrive a few at a time, from a Kafka topic of changes.

    With it come a changeset that changes are appended to, a base that they are moved into, a view over both, their
    checks, and the jobs, sensors and schedule that keep them.
    """

    def build_defs(self, context: dg.ComponentLoadContext | None = None) -> dg.Definitions:  # noqa: ARG002
        declared = DeclaredEntity(self.topic, self.entity)
        parts = EntityParts(self.entity, topic_key(self.topic), lambda _settings: declared)
        tables = [key_of(table) for table in (self.entity.changeset, self.entity.base)]
        return dg.Definitions.merge(parts.definitions(), layout_definitions(f"{self.name}_tables", tables))


@dg.scaffold_with(
    scaffolder("""\
name: arcade
queue_url: https://sqs.eu-central-1.amazonaws.com/123456789012/arcade-events
bucket: arcade-raw
types:
  round_end:
    description: A round is over.
    fields:
      score: {type: long, required: true, at_least: 0, comment: Points.}
      board: string
""")
)
class S3SqsTables(S3SqsTablesDeclaration, Described, dg.Component):
    """Objects of JSON lines that S3 announces in an SQS queue, whose events land in a Delta table for each type.

    Exactly once; lines that are not what is declared stand whole in a table of quarantine, with the reason. With them
    come an asset for each table, their checks, a job that drains the queue, one that reads objects once more, and a
    sensor.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return declared_definitions(self.feed(context.path))


@dg.scaffold_with(
    scaffolder("""\
cron: "*/5 * * * *"
""")
)
class ViewAnalytics(ViewAnalyticsDeclaration, Described, dg.Component):
    """Page views from Kafka, sessions of them, and days of those: three streams, each over the table of the one before.

    Topic, gap and lateness are settings (`page_views`). With it come an asset for each hop with its lag, layout checks,
    and a job and schedule that run all of them. Takes the place of those that ship with `pipelines.page_views`.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        return page_view_definitions(self.cron)

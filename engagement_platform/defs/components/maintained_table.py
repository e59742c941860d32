"""The component that looks after a table which another writer fills. OPTIMIZE and VACUUM need nothing
declared: maintenance takes every table of the lake."""

import dagster as dg

from engagement_platform.defs.components.described import Described
from engagement_platform.defs.components.scaffold import scaffolder
from engagement_platform.defs.layout import layout_definitions
from engagement_platform.pipelines.declarations.kinds import MaintainedTableDeclaration

EXAMPLE = """\
table: shop/order
description: Orders, written by the shop's own job.
"""


@dg.scaffold_with(scaffolder(EXAMPLE))
class MaintainedTable(MaintainedTableDeclaration, Described, dg.Component):
    """A Delta table of the lake that another writer fills, checked like the platform's own.

    With it come an asset, a check of the layout of its files, and a sensor that examines after commits.
    Maintenance takes every table of the lake, with or without this.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Asset, checks, job and sensor."""
        asset = dg.AssetSpec(
            list(self.path),
            description=self.description or "A table that others write.",
            group_name=self.path[0],
            kinds={"deltalake"},
        )
        return dg.Definitions.merge(
            dg.Definitions(assets=[asset]), layout_definitions("_".join(self.path), [asset.key])
        )

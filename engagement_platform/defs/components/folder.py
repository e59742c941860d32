"""Reads the folder of declarations as Dagster reads one of a project: any component that is installed may stand there.

A project of its own needs none of this: there, `dg` finds the components by their names.
"""

import sys
from pathlib import Path
from types import ModuleType

import dagster as dg
from dagster.components.core.component_tree import ComponentTree

MODULE = "engagement_platform_declared"
"""Under which Python files of the folder, if there are any, are imported."""


def folder_definitions(folder: Path) -> dg.Definitions:
    """Everything that the folder declares. Raises what Dagster says of a file that cannot be used."""
    root = folder.expanduser().absolute()
    # Dagster reads folders of packages, and this one is in none; a project would need a configuration file of its own.
    module = ModuleType(MODULE)
    module.__path__ = [str(root)]
    module.__file__ = None
    sys.modules[MODULE] = module
    return ComponentTree(defs_module=module, project_root=root.parent).build_defs()

"""The one Dagster entry point: merges what `defs/` declares and binds the platform's resource.

Importing it, and loading the definitions, opens nothing: settings are read by the runs and sensors themselves. But for
one: the folder of declared game events, which become assets.
"""

from __future__ import annotations

import dagster as dg

from engagement_platform.defs import (
    checks,
    engagement,
    games,
    layout,
    maintenance,
    mutation,
    profile,
    quarantine,
    rematerialize,
    restore,
    sensors,
)
from engagement_platform.defs.platform import Platform

# Named one by one rather than found by walking a folder: that needs a project file beside the package, and an
# installed package has none.
_PARTS = (
    engagement,
    mutation,
    rematerialize,
    profile,
    games,
    maintenance,
    restore,
    checks,
    quarantine,
    sensors,
    layout,
)


@dg.definitions
def defs() -> dg.Definitions:
    """Everything that Dagster runs. In-process: each run is one Spark client, not one for each step."""
    bound = dg.Definitions(resources={"platform": Platform()}, executor=dg.in_process_executor)
    return dg.Definitions.merge(*(part.definitions() for part in _PARTS), bound)

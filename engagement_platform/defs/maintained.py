"""A table of the lake that somebody else writes, as Dagster sees it: an asset, and checks of how its files lie.

OPTIMIZE and VACUUM need nothing declared: maintenance takes every table of the lake.
"""

import dagster as dg

from engagement_platform.defs.examining import examining


def maintained_definitions(path: tuple[str, ...], description: str) -> dg.Definitions:
    """An asset that others fill, its layout checks, and the job and sensor that evaluate them after commits."""
    key = dg.AssetKey(list(path))
    asset = dg.AssetSpec(
        key, description=description or "A table that others write.", group_name=path[0], kinds={"deltalake"}
    )
    return dg.Definitions.merge(dg.Definitions(assets=[asset]), examining("_".join(path), [key]))

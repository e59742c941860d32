"""Figures of games and features of players as an asset over the tables of events.

What is counted and judged is `live_ops_job`. Made by a function, since which tables there are is declared.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import dagster as dg

from engagement_platform.defs.batches import Metadata
from engagement_platform.defs.games import GAMES_GROUP
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.replica import REFRESHED
from engagement_platform.defs.specs import OWNERS, key_of
from engagement_platform.games.registry import Registry, registry
from engagement_platform.live_ops_job.job import Counted, LiveOpsJob
from engagement_platform.settings import Settings

# Not below `game`, whose names are those of declared types.
LIVE_OPS = dg.AssetKey(["live_ops", "figures"])
# Two at a time would move each other's cursors.
LIVE_OPS_POOL = "live_ops"


def counted_metadata(done: Counted) -> Metadata:
    """What a run counted and judged, and what is wrong."""
    value = dg.MetadataValue
    wrong = [f"{one.game}: {one.what} since {one.told_at:%Y-%m-%d %H:%M} UTC" for one in done.standing]
    shown: Metadata = {
        "events": value.int(done.rows),
        "tables": value.int(done.tables),
        "games_judged": value.int(len(done.games)),
        "wrong": value.int(len(done.standing)),
    }
    if done.until is not None:
        shown["judged_until"] = value.timestamp(done.until)
    if wrong:
        shown["what_is_wrong"] = value.text("\n".join(wrong))
    return shown


def live_ops_asset(types: Registry) -> dg.AssetsDefinition:
    """The asset over the tables of these types."""

    @dg.asset(
        key=LIVE_OPS,
        deps=[key_of(declared.table) for declared in types.values()],
        group_name=GAMES_GROUP,
        owners=list(OWNERS),
        kinds={"python"},
        pool=LIVE_OPS_POOL,
        automation_condition=REFRESHED,
        description="Figures of games by minute and features of players, counted from what was added to the tables of "
        "events. Complete minutes are held against a baseline; what is wrong is an alert.",
    )
    def live_ops_figures(platform: Platform) -> dg.MaterializeResult[None]:
        """All that was added since the last run; alerts wait for the sensor that sends them."""
        return dg.MaterializeResult(metadata=counted_metadata(LiveOpsJob(platform.settings()).run()))

    return live_ops_figures


live_ops_automation = dg.AutomationConditionSensorDefinition(
    "live_ops_automation",
    target=dg.AssetSelection.assets(LIVE_OPS),
    # Each run is a process of some seconds. Who has `live-ops run --follow` needs none.
    default_status=dg.DefaultSensorStatus.STOPPED,
    minimum_interval_seconds=30,
    description="Counts and judges events of games after they came, at most once a minute. Off until switched on; "
    "instead of it `engagement-platform live-ops run --follow` does the same without runs.",
)


def definitions() -> dg.Definitions:
    """Asset and the sensor that evaluates its condition."""
    asset = live_ops_asset(registry(Settings().games.declarations))
    return dg.Definitions(assets=[asset], sensors=[live_ops_automation])

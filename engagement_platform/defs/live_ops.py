"""Figures of games and features of players as an asset over the tables of events.

What is judged is `pipelines/games/live_ops`. Made by a function, since which tables there are is declared.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import dagster as dg

from engagement_platform.defs.batches import Metadata
from engagement_platform.defs.games import GAMES_GROUP
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.plot import histogram
from engagement_platform.defs.specs import OWNERS, key_of
from engagement_platform.pipelines.games.figures import KPIS, MINUTE
from engagement_platform.pipelines.games.live_ops import Judged, LiveOpsJob
from engagement_platform.pipelines.games.registry import Registry, registry
from engagement_platform.settings import Settings

# Not below `game`, whose names are those of declared types.
LIVE_OPS = dg.AssetKey(["live_ops", "figures"])
# Two at a time would raise every alert twice.
LIVE_OPS_POOL = "live_ops"


# Not `eager()`: that waits for runs that write events, which drain for minutes. What comes between a request and the
# next evaluation counts as handled by it (Dagster 1.13), whether or not the run has seen it: hence the quarter.
def _since_last(condition: dg.AutomationCondition[Any]) -> dg.AutomationCondition[Any]:
    return condition.since_last_handled()


_MINUTE, _QUARTER = (
    _since_last(dg.AutomationCondition.cron_tick_passed(cron, "UTC")) for cron in ("* * * * *", "*/15 * * * *")
)
_CAME = _since_last(dg.AutomationCondition.any_deps_updated())
JUDGED: dg.AutomationCondition[Any] = (
    ((_CAME & _MINUTE) | _QUARTER) & ~dg.AutomationCondition.in_progress()
).with_label("something came, at most once a minute; or a quarter of an hour has passed")

SHOWN = timedelta(minutes=15)
"""How far back the picture and the table of figures go."""


@dataclass(frozen=True)
class Recent:
    """What is known beside what was judged."""

    figures: Sequence[Mapping[str, object]]
    """Rows as KPI_SCHEMA says, of complete minutes, by game and minute."""
    players: int
    """Players whose features are kept."""


def recent(job: LiveOpsJob, done: Judged) -> Recent:
    """Of the last complete minutes, and of all players. Counts an index of the players' table."""
    until = done.until
    rows = [] if until is None else job.store.figures(until - SHOWN, until).to_pylist()
    return Recent(rows, job.store.players())


def judged_metadata(done: Judged, found: Recent) -> Metadata:
    """What a run judged, the last minutes of each game, and what is wrong."""
    value = dg.MetadataValue
    wrong = [f"{one.game}: {one.what} since {one.told_at:%Y-%m-%d %H:%M} UTC" for one in done.standing]
    new = sorted({str(row["game"]) for row in found.figures} - set(done.games))
    shown: Metadata = {}
    if done.until is not None:
        shown["last_minutes"] = value.md(_picture(found.figures, done.until))
        shown["figures"] = _newest(found.figures) if found.figures else value.text(_no_figures(done.until))
    shown |= {
        "players": value.int(found.players),
        "games_judged": value.int(len(done.games)),
        "wrong": value.int(len(done.standing)),
    }
    if done.until is not None:
        shown["judged_until"] = value.timestamp(done.until)
    if new:
        shown["not_judged_yet"] = value.text(f"{', '.join(new)}: two days of figures before today are needed")
    if wrong:
        shown["what_is_wrong"] = value.text("\n".join(wrong))
    return shown


def _picture(figures: Sequence[Mapping[str, object]], until: datetime) -> str:
    """Events of all games by minute; a minute without any is one."""
    minutes = [until - SHOWN + n * MINUTE for n in range(SHOWN // MINUTE)]
    counts = [sum(int(str(row["events"])) for row in figures if row["minute"] == minute) for minute in minutes]
    return histogram("events per minute, all games", [f"{minute:%H:%M}" for minute in minutes], counts)


def _no_figures(until: datetime) -> str:
    """Also of the first runs of a new lake: an empty table would not say whether anything is amiss."""
    return f"no events in the {SHOWN // MINUTE} minutes before {until:%Y-%m-%d %H:%M} UTC"


def _newest(figures: Sequence[Mapping[str, object]]) -> dg.TableMetadataValue:
    """The newest minute of each game that has one."""
    columns = [dg.TableColumn(name) for name in ("game", "minute", *KPIS)]
    newest = [list(rows)[-1] for _, rows in groupby(figures, key=lambda row: row["game"])]
    records = [
        dg.TableRecord({"game": str(row["game"]), "minute": f"{row['minute']:%Y-%m-%d %H:%M}",
                        **{name: f"{row[name]:.10g}" for name in KPIS}})
        for row in newest
    ]  # fmt: skip
    return dg.MetadataValue.table(records, dg.TableSchema(columns))


def live_ops_asset(types: Registry) -> dg.AssetsDefinition:
    """The asset over the tables of these types."""

    @dg.asset(
        key=LIVE_OPS,
        deps=[key_of(declared.table) for declared in types.values()],
        group_name=GAMES_GROUP,
        owners=list(OWNERS),
        kinds={"python"},
        pool=LIVE_OPS_POOL,
        automation_condition=JUDGED,
        description="Figures of games by minute and features of players, which the batches of events have counted. "
        "Complete minutes are held against a baseline; what is wrong is an alert.",
    )
    def live_ops_figures(platform: Platform) -> dg.MaterializeResult[None]:
        """The minutes that are complete; alerts wait for the sensor that sends them."""
        job = LiveOpsJob(platform.settings())
        done = job.run()
        return dg.MaterializeResult(metadata=judged_metadata(done, recent(job, done)))

    return live_ops_figures


def live_ops_sensor(*, automatic: bool) -> dg.AutomationConditionSensorDefinition:
    """Asks for runs of the asset. automatic: on from the start."""
    status = dg.DefaultSensorStatus
    return dg.AutomationConditionSensorDefinition(
        "live_ops_automation",
        target=dg.AssetSelection.assets(LIVE_OPS),
        default_status=status.RUNNING if automatic else status.STOPPED,
        minimum_interval_seconds=30,
        description="Judges the figures of games after events came, at most once a minute. On from the start with "
        "`live_ops.automatic`; otherwise `engagement-platform live-ops run --follow` does the same without runs.",
    )


def definitions() -> dg.Definitions:
    """Asset and the sensor that evaluates its condition."""
    settings = Settings()
    asset = live_ops_asset(registry(settings.games.declarations))
    return dg.Definitions(assets=[asset], sensors=[live_ops_sensor(automatic=settings.live_ops.automatic)])

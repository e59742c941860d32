"""What one look at an entity's view is told as: how much waits, how long a reader of one key waits, and both over time.

Values only. A view stores nothing, so nothing materializes it: what is known of it are observations.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from datetime import UTC, datetime

import dagster as dg

from engagement_platform.defs.plot import Bar, series
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.schedule import Waits

SHOWN = 30
"""Looks in the picture, and in the cursor of the sensor: a quarter of an hour where something changes all the time."""


@dataclass(frozen=True)
class Look:
    """The view at one moment."""

    at: int
    """Unix time."""
    pending_rows: int
    point_read_s: float | None
    """None where nothing waits: the base alone is read."""
    state: str
    """Versions of the two tables."""


def looks(cursor: str | None) -> list[Look]:
    """Those that a cursor holds, oldest first."""
    return [Look(*one) for one in json.loads(cursor)] if cursor else []


def kept(found: list[Look]) -> str:
    """The newest as a cursor."""
    return json.dumps([astuple(look) for look in found[-SHOWN:]])


def looked(waits: Waits, state: str, now: datetime) -> Look:
    """What a decision about rematerialization is made of, as a look."""
    return Look(int(now.timestamp()), waits.pending_rows, waits.point_read_s, state)


def observation(entity: Entity, found: list[Look]) -> dg.AssetObservation:
    """The newest look, which the UI draws over time, and a picture of the last ones. found: oldest first, not empty."""
    newest, shown = found[-1], found[-SHOWN:]
    bars = [Bar(look.pending_rows, None if look.point_read_s is None else look.point_read_s * 1000) for look in shown]
    numbers = range(len(found) - len(shown), len(found))
    picture = series("changes that wait", "milliseconds to read one key", "looks", numbers, bars)
    times = [f"{datetime.fromtimestamp(look.at, UTC):%Y-%m-%d %H:%M:%S}" for look in (shown[0], newest)]
    metadata: dict[str, dg.MetadataValue] = {
        "pending_rows": dg.MetadataValue.int(newest.pending_rows),
        "last_looks": dg.MetadataValue.md(f"{picture}\n\nFrom {times[0]} to {times[1]} UTC"),
    }
    if newest.point_read_s is not None:
        metadata["point_read_s"] = dg.MetadataValue.float(newest.point_read_s)
    return dg.AssetObservation(entity.view.split("/"), metadata=metadata)

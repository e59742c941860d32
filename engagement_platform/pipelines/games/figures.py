"""Figures of games by minute: their table, and the table as a grid that has every minute.

What is expected of them is `baseline`, what is wrong with them `detection`. Counting them from events is `counting`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.float64]

KPIS = ("events", "players", "purchases", "revenue", "errors")
RISING_IS_BAD = frozenset({"errors"})
"""The others are bad when they fall."""

KPI_SCHEMA = pa.schema(
    [
        ("game", pa.string()),
        ("minute", pa.timestamp("us", "UTC")),
        ("events", pa.int64()),
        ("players", pa.int64()),
        ("purchases", pa.int64()),
        ("revenue", pa.float64()),
        ("errors", pa.int64()),
    ]
)
"""One row a game and minute. players: distinct ones of the minute. A minute without a row had nothing."""

MINUTE = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def minute_number(moment: datetime) -> int:
    """Minutes since 1970, rounded down."""
    return (moment - _EPOCH) // MINUTE


def moment_of(minute: int) -> datetime:
    """When a minute begins, UTC."""
    return _EPOCH + minute * MINUTE


@dataclass(frozen=True)
class Grid:
    """Figures of one game from `first` on, without a gap: minutes without a row are 0."""

    game: str
    first: int
    """Minutes since 1970."""
    values: Mapping[str, Numbers]

    def __len__(self) -> int:
        return len(self.values[KPIS[0]])


def grids(figures: pa.Table, first: datetime, until: datetime, games: Sequence[str]) -> list[Grid]:
    """Each game's figures from `first` to before `until`; both at a whole minute.

    figures: as KPI_SCHEMA says, in any order, at most one row a game and minute; rows outside are left out.
    games: those there should be, by which a game without any row is a row of zeros.
    """
    start, size = minute_number(first), minute_number(until) - minute_number(first)
    names = figures["game"].to_numpy(zero_copy_only=False)
    at = figures["minute"].cast(pa.int64()).to_numpy() // 60_000_000 - start
    inside = (at >= 0) & (at < size)
    made = []
    for game in games:
        ours = inside & (names == game)
        values = {}
        for kpi in KPIS:
            values[kpi] = np.zeros(max(size, 0))
            values[kpi][at[ours]] = figures[kpi].to_numpy()[ours]
        made.append(Grid(game, start, values))
    return made

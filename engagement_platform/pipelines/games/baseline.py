"""What is expected of a game at a minute, and how far figures stray from it by chance.

Seasonal by minute of the week. The history is averaged into buckets of 15 minutes, as square roots, in which the
noise of counts is the same by day and by night, and decomposed by STL with a robust fit (statsmodels): an outage, or
a weekend with an event, among the weeks hardly moves what is expected. With less than two weeks of history the season
is a day, with less than two days there is no baseline. Expected at a minute are the season's newest turn and the
trend's newest level, squared, and joined by lines between the middles of buckets.

Why not a table of medians by minute of the week: with four weeks each would be the median of four numbers. Why not a
model that forecasts (Holt-Winters, ARIMA, a state space): it follows an outage within an hour and then expects it,
and a season of 10,080 minutes does not fit into one. Why not change points (ruptures): they say when something
changed, and the question is whether this minute is what it should be.

The spread is one number for each figure, its dispersion: how many times the variance of a Poisson count of that size.
It comes from the history's own minutes against the fit, without the largest 1 % of squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.pipelines.games.figures import KPIS, Grid, Numbers, grids

MINUTES_A_DAY = 1440
WEEK, DAY = 7 * MINUTES_A_DAY, MINUTES_A_DAY
# Short enough for the slopes of a day; 900 events in one of a game with 60 a minute stray by 3 %.
BUCKET = 15
# STL needs two whole turns of its season.
TURNS = 2
# One an hour of the shortest history: of a game with fewer minutes nothing can be missed. An id that a device garbles
# is such a game, and fitting some thousands of them takes hours.
LEAST_MINUTES = 48
# Counts are at least as noisy as Poisson's; a figure that is smoother than that is counted by rule.
LEAST_DISPERSION = 1.0
_TRIMMED = 0.99


@dataclass(frozen=True)
class Expectation:
    """Of one figure of one game."""

    rates: Numbers
    """A minute's figure, for each minute of the season."""
    dispersion: float

    def at(self, first: int, size: int) -> Numbers:
        """Expected figures of `size` minutes from `first` on, minutes since 1970."""
        return self.rates[(first + np.arange(size)) % len(self.rates)]


Baseline = Mapping[str, Mapping[str, Expectation]]
"""Expectations by game and figure. Games with too little history, or too few events in it, are not in it."""


def fit_baseline(history: pa.Table, until: datetime) -> Baseline:
    """From figures before `until`, as KPI_SCHEMA says; four weeks are good, more are not needed.

    Takes 1.4 s for each game and four weeks; once a day is often enough.
    """
    found: dict[str, Mapping[str, Expectation]] = {}
    minutes = history.filter(pc.greater(history["events"], 0)).group_by("game").aggregate([("events", "count")])
    for game in sorted(minutes.filter(pc.greater_equal(minutes["events_count"], LEAST_MINUTES))["game"].to_pylist()):
        rows = history.filter(pc.equal(history["game"], game))
        first = pc.min(rows["minute"]).as_py()
        [grid] = grids(rows, first, until, [game])
        season = next((s for s in (WEEK, DAY) if len(grid) >= TURNS * s), None)
        if season is not None:
            found[game] = {kpi: _expectation(grid, kpi, season) for kpi in KPIS}
    return found


def _expectation(grid: Grid, kpi: str, season: int) -> Expectation:
    from statsmodels.tsa.seasonal import STL

    # Whole turns, the newest ones: the season is then at the same place in each.
    turns = len(grid) // season
    begin = len(grid) - turns * season
    minutes = grid.values[kpi][begin:]
    roots = np.sqrt(minutes.reshape(-1, BUCKET).mean(axis=1))
    phases = season // BUCKET
    # Loess at some points only and lines between: 0.14 s instead of 7.4 s a figure, and the same to 0.04 %
    # (four simulated weeks, statsmodels 0.15).
    jump = max(1, phases // 10)
    parts = STL(roots, period=phases, robust=True, trend_jump=jump, low_pass_jump=jump).fit()
    fitted = np.clip(parts.trend + parts.seasonal, 0, None) ** 2
    expected = np.clip(parts.trend[-1] + parts.seasonal[-phases:], 0, None) ** 2
    at_first = grid.first + begin
    rates = np.roll(_by_minute(expected, around=True), at_first % season)
    return Expectation(rates, _dispersion(minutes, _by_minute(fitted, around=False)))


def _by_minute(buckets: Numbers, *, around: bool) -> Numbers:
    """Lines between the middles of buckets. around: the last one is followed by the first."""
    size = len(buckets) * BUCKET
    middles = np.arange(len(buckets)) * BUCKET + (BUCKET - 1) / 2
    period = size if around else None
    return np.interp(np.arange(size), middles, buckets, period=period)


def _dispersion(minutes: Numbers, fitted: Numbers) -> float:
    there = fitted > 0
    if not there.any():
        return LEAST_DISPERSION
    squares = np.sort((minutes[there] - fitted[there]) ** 2 / fitted[there])
    kept = squares[: max(1, int(len(squares) * _TRIMMED))]
    return max(LEAST_DISPERSION, float(kept.mean()))

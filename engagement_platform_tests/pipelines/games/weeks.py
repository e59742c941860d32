"""Simulated weeks of games: seeded, with days and weeks as players have them. No assertions here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from engagement_platform.pipelines.games.figures import KPI_SCHEMA, KPIS, Grid, minute_number, moment_of

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
DAY = 1440
WEEK = 7 * DAY


@dataclass(frozen=True)
class Size:
    """Mean figures of a minute."""

    events: float
    players: float
    purchases: float
    errors: float


SIZES = {"large": Size(600, 120, 6, 3), "small": Size(12, 3, 0.1, 0.05), "nightly quiet": Size(40, 8, 0.4, 0.2)}


def simulated(seed: int, weeks: int, noise: float = 0.05) -> dict[str, dict[str, np.ndarray]]:
    """Figures by game from MONDAY on: a week's shape times slow noise, and counts with more spread than Poisson's.

    noise: standard deviation of a factor that moves within hours.
    """
    random = np.random.default_rng(seed)
    minutes = np.arange(weeks * WEEK)
    of_day = 2 * np.pi * (minutes % DAY) / DAY
    made = {}
    for game, size in SIZES.items():
        deep = 0.98 if game == "nightly quiet" else 0.7
        day = 1 - deep * np.cos(of_day) + 0.2 * np.sin(2 * of_day)
        weekend = np.where((minutes // DAY) % 7 >= 5, 1.3, 1.0)
        knots = random.normal(0, noise, len(minutes) // 120 + 2)
        slow = np.exp(np.interp(minutes, np.arange(len(knots)) * 120, knots))
        shape = np.clip(day, 0.01, None) * weekend * slow
        made[game] = {name: _counts(random, mean * shape) for name, mean in vars(size).items()}
        made[game]["revenue"] = np.array([random.exponential(5, int(n)).sum() for n in made[game]["purchases"]])
    return made


def _counts(random: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    """Negative binomial with twice the variance of Poisson."""
    counts: np.ndarray = random.negative_binomial(np.maximum(mean, 1e-6), 0.5).astype(float)
    return counts


def as_table(values: Mapping[str, Mapping[str, np.ndarray]], size: int) -> pa.Table:
    """The first `size` minutes as rows; minutes without anything have none."""
    tables = []
    for game, figures in values.items():
        there = np.flatnonzero(figures["events"][:size] > 0)
        columns = {
            "game": [game] * len(there),
            "minute": [moment_of(minute_number(MONDAY) + int(at)) for at in there],
            **{kpi: figures[kpi][there] for kpi in KPIS},
        }
        tables.append(pa.table(columns).cast(KPI_SCHEMA))
    return pa.concat_tables(tables)


def grid_of(values: Mapping[str, Mapping[str, np.ndarray]], game: str, begin: int, size: int) -> Grid:
    """Minutes of one game, counted from MONDAY."""
    part = {kpi: values[game][kpi][begin : begin + size].copy() for kpi in KPIS}
    return Grid(game, minute_number(MONDAY) + begin, part)

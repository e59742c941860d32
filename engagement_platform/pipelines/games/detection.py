"""Which minutes of a game are not what they should be: figures that fell, errors that rose, silence.

Pure functions over grids and a baseline; `live_ops` raises the alerts. Thresholds are the settings of live-ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

from engagement_platform.pipelines.games.baseline import Baseline, Expectation
from engagement_platform.pipelines.games.figures import (
    KPIS,
    MINUTE,
    RISING_IS_BAD,
    Grid,
    Numbers,
    minute_number,
    moment_of,
)
from engagement_platform.settings import LiveOpsSettings

Flags = npt.NDArray[np.bool_]

SILENCE = "silence"

# A minute tells of a large game, a quarter of an hour of a small one.
WINDOWS = (1, 2, 5, 15)
# How the game does today, by which what is expected is corrected: an hour, before the longest window.
LEVEL_MINUTES = 60
# It corrects downwards (of errors: upwards) only. After a day with a promotion, normal would look like a drop.
LOWEST_LEVEL = 0.4
HIGHEST_LEVEL = 1 / LOWEST_LEVEL
# A game that had no errors may have its first.
LEAST_ERRORS = 0.05
# By night, and for what is rare at all, the fit is a small number that may as well be 0; of the mean figure.
LEAST_SHARE = 0.25
# It is over when so many minutes, or as many as it took to see it, are back by half of the least drop to report.
OVER_WINDOW = 5


@dataclass(frozen=True)
class Change:
    """Something that live-ops did to a game: an offer, a difficulty, an event that began."""

    game: str
    at: datetime
    name: str


@dataclass(frozen=True)
class Finding:
    """Something that was, or is, wrong with a game."""

    game: str
    what: str
    """A figure, or `silence`."""
    detected_at: datetime
    """End of the minute by which it was clear: data time, UTC."""
    over_at: datetime | None
    """End of the minute by which it was over; None while it goes on."""
    ratio: float
    """Figure to what was expected, in the window that detected it: 0.5 is half of it."""
    change: str | None = None
    """The change that it followed, if it did."""


def findings(
    baseline: Baseline, figures: Sequence[Grid], changes: Sequence[Change], settings: LiveOpsSettings
) -> list[Finding]:
    """All that is wrong in grids, each judged minute by minute with no knowledge of what comes after.

    figures: minutes that are complete; a minute whose events are still coming looks like a drop. They need an hour
    before what is to be judged. Games without a baseline are left out. A day of ten games takes a fraction of a second.
    """
    found = []
    for grid in figures:
        expected = baseline.get(grid.game)
        if expected is None:
            continue
        quiet = silent(grid.values["events"], expected["events"].at(grid.first, len(grid)), settings)
        ours = [change for change in changes if change.game == grid.game]
        for begin, end in spells(quiet, ~quiet):
            found.append(
                Finding(grid.game, SILENCE, _end_of(grid, begin), None if end is None else _end_of(grid, end), 0.0)
            )
        for kpi in KPIS:
            found += _of_figure(grid, kpi, expected[kpi], quiet, ours, settings)
    return sorted(found, key=lambda one: (one.detected_at, one.game, one.what))


def silent(events: Numbers, expected: Numbers, settings: LiveOpsSettings) -> Flags:
    """Minutes at whose end nothing has come for so long that `silence_events` were expected meanwhile."""
    minutes = np.arange(len(events))
    last = np.maximum.accumulate(np.where(events > 0, minutes, -1))
    so_far = np.concatenate([[0.0], np.cumsum(expected)])
    missed = so_far[1:] - so_far[last + 1]
    found: Flags = (missed >= settings.silence_events) & (minutes - last >= settings.shortest_silence // MINUTE)
    return found


def spells(begins: Flags, ends: Flags) -> Iterator[tuple[int, int | None]]:
    """From each begin to the first end after it, one after the other; None where it does not end."""
    starts, stops = np.flatnonzero(begins), np.flatnonzero(ends)
    at = -1
    while (next_start := np.searchsorted(starts, at, side="right")) < len(starts):
        start = int(starts[next_start])
        next_stop = np.searchsorted(stops, start, side="right")
        if next_stop == len(stops):
            yield start, None
            return
        at = int(stops[next_stop])
        yield start, at


def level_of(actual: Numbers, expected: Numbers, dispersion: float, *, rising: bool) -> Numbers:
    """How the game does today, against what is expected: of the hour before the longest window, for each minute.

    A game with few events a hour is taken for normal: so many more that are as expected are added to both sides.
    """
    longest, many = max(WINDOWS), 15 * dispersion
    hour_a, hour_e = (
        _moving(values, longest + LEVEL_MINUTES) - _moving(values, longest) for values in (actual, expected)
    )
    level = (hour_a + many) / (hour_e + many)
    return np.clip(level, 1.0, HIGHEST_LEVEL) if rising else np.clip(level, LOWEST_LEVEL, 1.0)


def judged(actual: Numbers, expected: Numbers, dispersion: float, *, rising: bool) -> tuple[Numbers, Numbers]:
    """Ratio of sums to what is expected of them, and how likely it is by chance that they are as far off or further.

    What falls: the chance of a Poisson count in units of the dispersion. What rises: that of a negative binomial
    count of that dispersion, and at least twice Poisson's, since errors come in bunches.
    """
    from scipy.special import betainc, gammaincc

    there = expected > 0
    ratio = np.divide(actual, expected, out=np.ones_like(actual), where=there)
    if rising:
        bunched = max(dispersion, 2.0)
        chance = betainc(np.maximum(actual, 1e-9), np.maximum(expected, 1e-9) / (bunched - 1), 1 - 1 / bunched)
    else:
        chance = gammaincc(actual / dispersion + 1, expected / dispersion)
    return ratio, np.where(there, chance, 1.0)


def _moving(values: Numbers, width: int) -> Numbers:
    """Sum of the last `width` values at each place; of fewer at the beginning."""
    so_far = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    sums: Numbers = so_far[ends] - so_far[np.maximum(ends - width, 0)]
    return sums


def _of_figure(
    grid: Grid, kpi: str, expectation: Expectation, quiet: Flags, changes: Sequence[Change], settings: LiveOpsSettings
) -> Iterator[Finding]:
    rising = kpi in RISING_IS_BAD
    actual, expected = grid.values[kpi], expectation.at(grid.first, len(grid))
    if rising:
        expected = np.maximum(expected, max(LEAST_ERRORS, LEAST_SHARE * float(expectation.rates.mean())))
    level = level_of(actual, expected, expectation.dispersion, rising=rising)
    change_of = _change_before(grid, changes, settings)
    watched = change_of >= 0
    begins, ratios = {}, {}
    for width in WINDOWS:
        of_normal = _moving(expected * level, width)
        ratio, chance = judged(_moving(actual, width), of_normal, expectation.dispersion, rising=rising)
        strict = _off(ratio, settings.change_drop, rising=rising) & (chance < settings.change_chance) & watched
        plain = _off(ratio, settings.drop, rising=rising) & (chance < settings.chance)
        # What is low because of a silence is reported as one.
        begins[width] = (strict | plain) & (_moving(quiet.astype(float), width) == 0)
        ratios[width] = ratio
    end = -1
    while (start := _first(begins, after=end)) is not None:
        at, width = start
        drop = settings.change_drop if watched[at] else settings.drop
        wide = max(OVER_WINDOW, width)
        # By the level that it began with: the drop itself pulls it down.
        back = np.divide(_moving(actual, wide), np.maximum(_moving(expected * level[at], wide), 1e-9))
        over = np.flatnonzero(~_off(back[at + 1 :], drop / 2, rising=rising))
        change = changes[change_of[at]].name if watched[at] else None
        stop = at + 1 + int(over[0]) if len(over) else None
        detected_at, over_at = _end_of(grid, at), None if stop is None else _end_of(grid, stop)
        yield Finding(grid.game, kpi, detected_at, over_at, float(ratios[width][at]), change)
        if stop is None:
            return
        end = stop


def _off(ratio: Numbers, drop: float, *, rising: bool) -> Flags:
    """Beyond the least drop to report; errors, when there are 1.5 times as many as the mirror of that drop."""
    return ratio >= 1.5 / (1 - drop) if rising else ratio <= 1 - drop


def _first(begins: Mapping[int, Flags], after: int) -> tuple[int, int] | None:
    """The first minute, and its shortest window, at which something begins; windows begin later than `after`."""
    found = []
    for width, flags in begins.items():
        possible = np.flatnonzero(flags[after + width :]) if after >= 0 else np.flatnonzero(flags)
        if len(possible):
            found.append((int(possible[0]) + (after + width if after >= 0 else 0), width))
    return min(found) if found else None


def _change_before(grid: Grid, changes: Sequence[Change], settings: LiveOpsSettings) -> npt.NDArray[np.int64]:
    """For each minute the index of the newest change that is watched then; -1 where there is none."""
    found = np.full(len(grid), -1, dtype=np.int64)
    for index in sorted(range(len(changes)), key=lambda i: changes[i].at):
        begin = minute_number(changes[index].at) - grid.first
        end = begin + settings.watch // MINUTE
        found[max(begin, 0) : max(end, 0)] = index
    return found


def _end_of(grid: Grid, minute: int) -> datetime:
    return moment_of(grid.first + minute + 1)

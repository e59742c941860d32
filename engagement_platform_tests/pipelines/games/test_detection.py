"""Four simulated weeks to learn from, four to judge: what is told, how soon, and what is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import poisson

from engagement_platform.pipelines.games import baseline as baselines
from engagement_platform.pipelines.games.baseline import Baseline, Expectation, fit_baseline
from engagement_platform.pipelines.games.detection import SILENCE, Change, Finding, findings, spells
from engagement_platform.pipelines.games.figures import KPIS, Grid, minute_number, moment_of
from engagement_platform.settings import LiveOpsSettings
from engagement_platform_tests.pipelines.games.weeks import DAY, MONDAY, SIZES, WEEK, as_table, grid_of, simulated

SETTINGS = LiveOpsSettings()
LEARNT = 4 * WEEK
START = minute_number(MONDAY) + LEARNT
VALUES = dict[str, dict[str, "np.ndarray[tuple[int], np.dtype[np.float64]]"]]


@pytest.fixture(scope="module")
def weeks() -> VALUES:
    return simulated(seed=7, weeks=8)


@pytest.fixture(scope="module")
def baseline(weeks: VALUES) -> Baseline:
    return fit_baseline(as_table(weeks, LEARNT), moment_of(START))


def times(grid: Grid, begin: int, end: int, factor: float) -> None:
    """Multiply what falls by a factor in some minutes."""
    for kpi in KPIS:
        if kpi != "errors" or factor == 0:
            grid.values[kpi][begin:end] = np.floor(grid.values[kpi][begin:end] * factor)


def after(grid: Grid, begin: int, finding: Finding) -> tuple[int, int | None]:
    """Minutes from `begin` until it was told, and until it was over."""
    over = None if finding.over_at is None else minute_number(finding.over_at) - grid.first - begin
    return minute_number(finding.detected_at) - grid.first - begin, over


def test_four_clean_weeks_of_three_games_raise_at_most_one_false_alarm(weeks: VALUES, baseline: Baseline) -> None:
    grids = [grid_of(weeks, game, LEARNT, 4 * WEEK) for game in SIZES]
    assert len(findings(baseline, grids, [], SETTINGS)) <= 1


def test_eighty_changes_that_do_no_harm_raise_at_most_one_false_alarm(weeks: VALUES, baseline: Baseline) -> None:
    grids = [grid_of(weeks, game, LEARNT, 4 * WEEK) for game in SIZES]
    begins = [day * DAY + hour * 60 for day in range(28) for hour in (3, 9, 18)]
    changes = [Change(game, moment_of(START + begin), "harmless") for game in SIZES for begin in begins]
    assert len(findings(baseline, grids, changes, SETTINGS)) <= 1


@pytest.mark.parametrize("hour", [4, 8, 12, 16, 20])
def test_half_of_a_game_lost_after_a_change_is_told_at_the_first_minute_that_could_hardly_be_chance(
    weeks: VALUES, baseline: Baseline, hour: int
) -> None:
    """That is the end of the first minute from 230 events a minute on; with fewer it takes as long as chance asks."""
    grid = grid_of(weeks, "large", LEARNT + 2 * DAY + hour * 60 - 180, 420)
    times(grid, 180, 300, 0.5)
    change = Change("large", moment_of(grid.first + 180), "offer 7")
    first, *_ = findings(baseline, [grid], [change], SETTINGS)
    told, over = after(grid, 180, first)
    assert first.change == "offer 7"
    expected = baseline["large"]["events"]
    events, dispersion = float(expected.at(grid.first + 180, 1)[0]), expected.dispersion
    halved = [poisson.cdf(n * events / 2 / dispersion, n * events / dispersion) for n in range(1, 16)]
    assert told == next(n for n, chance in enumerate(halved, 1) if chance < SETTINGS.change_chance)
    assert told == 1 or events < 230
    assert 0.35 < first.ratio < 0.65
    assert over is not None
    assert 120 < over <= 130, "it is over soon after it ends, and not before"


def test_a_small_game_is_told_of_too_only_later_and_so_is_one_without_a_change(
    weeks: VALUES, baseline: Baseline
) -> None:
    for game, changes in (("small", True), ("large", False)):
        grid = grid_of(weeks, game, LEARNT + 2 * DAY + 9 * 60, 420)
        times(grid, 180, 300, 0.4)
        known = [Change(game, moment_of(grid.first + 180), "x")] if changes else []
        first, *_ = findings(baseline, [grid], known, SETTINGS)
        assert 1 <= after(grid, 180, first)[0] <= 15


def test_errors_that_multiply_after_a_change_are_told(weeks: VALUES, baseline: Baseline) -> None:
    grid = grid_of(weeks, "large", LEARNT + 2 * DAY + 9 * 60, 420)
    grid.values["errors"][180:300] *= 8
    change = Change("large", moment_of(grid.first + 180), "build 12")
    told = findings(baseline, [grid], [change], SETTINGS)
    assert {finding.what for finding in told} == {"errors"}
    assert after(grid, 180, told[0])[0] <= 5


def test_silence_is_told_once_and_clears_and_a_nightly_low_is_none(weeks: VALUES, baseline: Baseline) -> None:
    day = grid_of(weeks, "nightly quiet", LEARNT + 3 * DAY, DAY)
    assert (day.values["events"][:15] == 0).sum() > 3, "the game is quiet at night"
    assert findings(baseline, [day], [], SETTINGS) == []
    grid = grid_of(weeks, "large", LEARNT + 2 * DAY + 9 * 60, 420)
    times(grid, 180, 300, 0)
    told = findings(baseline, [grid], [], SETTINGS)
    [silence] = [finding for finding in told if finding.what == SILENCE]
    assert after(grid, 180, silence) == (3, 121)
    assert all(0 < after(grid, 180, finding)[0] <= 4 for finding in told), "nothing new is told when it ends"


def test_what_is_told_of_a_minute_does_not_depend_on_what_comes_after(weeks: VALUES, baseline: Baseline) -> None:
    grid = grid_of(weeks, "large", LEARNT + 2 * DAY + 9 * 60, 420)
    times(grid, 180, 300, 0.5)
    whole = findings(baseline, [grid], [], SETTINGS)
    for size in (179, 185, 250, 310):
        part = Grid(grid.game, grid.first, {kpi: values[:size] for kpi, values in grid.values.items()})
        end = moment_of(grid.first + size)
        known = [
            replace(one, over_at=one.over_at if one.over_at and one.over_at <= end else None)
            for one in whole
            if one.detected_at <= end
        ]
        assert findings(baseline, [part], [], SETTINGS) == known


def test_an_outage_among_the_weeks_hardly_moves_what_is_expected(weeks: VALUES, baseline: Baseline) -> None:
    broken = {"large": {kpi: values.copy() for kpi, values in weeks["large"].items()}}
    hit = slice(2 * WEEK + 12 * 60, 2 * WEEK + 16 * 60)
    for values in broken["large"].values():
        values[hit] = 0
    again = fit_baseline(as_table(broken, LEARNT), moment_of(START))["large"]["events"]
    before = baseline["large"]["events"]
    hours = before.at(START + 12 * 60, 240), again.at(START + 12 * 60, 240)
    assert 0.9 < hours[1].sum() / hours[0].sum() < 1.1


def test_with_less_than_two_days_there_is_no_baseline_and_nothing_is_told(weeks: VALUES) -> None:
    too_short = fit_baseline(as_table({"large": weeks["large"]}, DAY), moment_of(minute_number(MONDAY) + DAY))
    assert too_short == {}
    assert findings(too_short, [grid_of(weeks, "large", DAY, DAY)], [], SETTINGS) == []


def test_games_of_a_few_events_are_not_fitted(weeks: VALUES, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as ids that a device garbled: thousands of fits would keep the batches waiting for hours."""
    fitted: list[Grid] = []
    expectation = baselines._expectation

    def counting(grid: Grid, kpi: str, season: int) -> Expectation:
        fitted.append(grid)
        return expectation(grid, kpi, season)

    monkeypatch.setattr(baselines, "_expectation", counting)
    few = {kpi: np.zeros(3 * DAY) for kpi in KPIS}
    for hour in range(baselines.LEAST_MINUTES):
        few["events"][hour * 60] = 1
    less = {kpi: values.copy() for kpi, values in few.items()}
    less["events"][0] = 0
    table = as_table({"few": few, **{f"garbled {n}": less for n in range(50)}}, 3 * DAY)
    found = fit_baseline(table, moment_of(minute_number(MONDAY) + 3 * DAY))
    assert set(found) == {"few"}
    assert len(fitted) == len(KPIS)


def test_spells_go_from_a_begin_to_the_next_end() -> None:
    begins = np.array([0, 1, 1, 0, 0, 1, 0], dtype=bool)
    ends = np.array([1, 0, 0, 1, 0, 0, 0], dtype=bool)
    assert list(spells(begins, ends)) == [(1, 3), (5, None)]

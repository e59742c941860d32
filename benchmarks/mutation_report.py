"""Medians, ratios, targets, CSV and plot of what `mutation` measured. Nothing is measured here."""

from __future__ import annotations

import csv
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.mutation_reads import READS, Profile
from benchmarks.mutation_rename import Renamed
from benchmarks.mutation_ways import DELTA_RS, NAIVE, PLAIN, Outcome


@dataclass(frozen=True)
class Measured:
    """One round of one way. Bytes and files are those of the Data Table."""

    way: str
    rows: int
    round: int
    requests: int
    touched: int
    outcome: Outcome
    files: int
    bytes: int
    bytes_changed: int
    jobs: int

    @property
    def amplification(self) -> float:
        """Bytes written for each byte of a changed row."""
        return self.bytes / self.bytes_changed


@dataclass(frozen=True)
class Read:
    """One full read of the view while requests are pending, and of the Data Table right after it."""

    what: str
    """What is read of each row."""
    rows: int
    view_s: float
    plain_s: float


@dataclass(frozen=True)
class Target:
    """What should hold between figures of one run; `found` is None where they were not measured."""

    says: str
    found: float | None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether it holds; both bounds are included."""
        if self.found is None:
            return None
        return (self.at_least is None or self.found >= self.at_least) and (
            self.at_most is None or self.found <= self.at_most
        )


class Figures:
    """Medians of the rounds by way and number of rows."""

    def __init__(self, measured: Sequence[Measured], reads: Sequence[Read], profiles: Sequence[Profile] = ()) -> None:
        self.measured, self.reads, self.profiles = measured, reads, profiles
        self.sizes = sorted({one.rows for one in measured})

    def rounds(self, way: str, rows: int) -> list[Measured]:
        """All rounds of a way."""
        return [one for one in self.measured if (one.way, one.rows) == (way, rows)]

    def visible(self, way: str, rows: int) -> float | None:
        """Median seconds until the changes can be read."""
        return _median([one.outcome.visible_s for one in self.rounds(way, rows)])

    def announced(self, way: str, rows: int) -> float | None:
        """Median seconds until the notifications are committed."""
        return _median([one.outcome.announced_s for one in self.rounds(way, rows)])

    def moved(self, way: str, rows: int) -> float | None:
        """Median seconds until the Data Table has the changes."""
        return _median([one.outcome.moved_s for one in self.rounds(way, rows)])

    def reading(self, what: str, rows: int) -> tuple[float | None, float | None]:
        """Median seconds of reading the view and of reading the table."""
        mine = [one for one in self.reads if (one.what, one.rows) == (what, rows)]
        return _median([one.view_s for one in mine]), _median([one.plain_s for one in mine])

    def targets(self) -> list[Target]:
        """What should hold at the first size, and between it and the ten times larger one."""
        few, many = self.sizes[0], 10 * self.sizes[0]

        def faster(way: str, other: str, rows: int) -> float | None:
            return _ratio(self.visible(other, rows), self.visible(way, rows))

        def moved(way: str, other: str, rows: int) -> float | None:
            return _ratio(self.moved(other, rows), self.moved(way, rows))

        return [
            Target("visible: times faster than naive", faster("auto", NAIVE, few), at_least=100),
            Target(f"visible: times faster than {DELTA_RS} at 10x", faster("auto", DELTA_RS, many), at_least=5),
            Target(
                "visible: at 10x, times its own time",
                _ratio(self.visible("auto", many), self.visible("auto", few)),
                at_most=1.3,
            ),
            Target("moved: auto, times faster than naive", moved("auto", NAIVE, few), at_least=30),
            Target(f"moved: auto, times faster than {PLAIN}", moved("auto", PLAIN, few), at_least=1.5),
            Target(
                f"moved: auto, times the time of {DELTA_RS} at 10x",
                _ratio(self.moved("auto", many), self.moved(DELTA_RS, many)),
                at_most=3,
            ),
            Target(
                "announced: times faster than naive",
                _ratio(self.announced(NAIVE, few), self.announced("auto", few)),
                at_least=20,
            ),
            *(
                Target(
                    f"view with pending requests, times a plain read, {what}, {rows:,} rows",
                    _ratio(*self.reading(what, rows)),
                    at_most=1.3,
                )
                for what in READS
                for rows in self.sizes
            ),
        ]


def show(console: Console, figures: Figures, renamed: Sequence[Renamed]) -> None:
    """Everything on the screen."""
    for rows in figures.sizes:
        console.print(_ways(figures, rows))
        for what in READS:
            view, plain = figures.reading(what, rows)
            if view is not None:
                console.print(
                    f"{rows:,} rows read, {what}: view with pending requests {view:.2f} s, table {plain:.2f} s"
                )
        if profiles := [one for one in figures.profiles if one.rows == rows]:
            console.print(_profiles(profiles))
    for rows in figures.sizes:
        for way in _names(figures, rows):
            last = figures.rounds(way, rows)[-1]
            phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in last.outcome.phases.items())
            console.print(f"{rows:>9,} {way}: {phases} s; {last.jobs} Spark jobs {last.outcome.chosen}", style="dim")
    if renamed:
        console.print(_renames(renamed))
    console.print(_targets(figures))


def save(folder: Path, figures: Figures, renamed: Sequence[Renamed]) -> None:
    """Every round as CSV, the reads, the renames, and a plot of the medians."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = [os.cpu_count(), platform.machine(), platform.python_version()]
    about = ["cores", "machine", "python"]
    names = ["way", "rows", "round", "requests", "touched", "visible_s", "announced_s", "moved_s", "files_rewritten"]
    names += ["bytes_written", "write_amplification", "spark_jobs", "phases", "chosen", *about]
    lines: list[list[object]] = []
    for one in figures.measured:
        phases = " ".join(f"{name}={seconds:.3f}" for name, seconds in one.outcome.phases.items())
        of = one.outcome
        times = [round(seconds, 4) for seconds in (of.visible_s, of.announced_s, of.moved_s)]
        wrote = [one.files, one.bytes, round(one.amplification, 3), one.jobs]
        first = [one.way, one.rows, one.round, one.requests, one.touched]
        lines.append([*first, *times, *wrote, phases, one.outcome.chosen, *machine])
    _csv(folder / "mutation.csv", names, lines)
    reads = [[one.what, one.rows, round(one.view_s, 4), round(one.plain_s, 4), *machine] for one in figures.reads]
    _csv(folder / "mutation_reads.csv", ["what", "rows", "view_s", "plain_s", *about], reads)
    if figures.profiles:
        names = [field.name for field in fields(Profile)]
        lines = [[*astuple(one), *machine] for one in figures.profiles]
        _csv(folder / "mutation_profiles.csv", [*names, *about], lines)
    if renamed:
        lines = [[one.way, round(one.seconds, 4), one.rows, one.files, one.bytes, *machine] for one in renamed]
        _csv(folder / "mutation_renames.csv", ["way", "seconds", "rows", "files_rewritten", "bytes", *about], lines)
    _plot(folder / "mutation.png", figures)


def _csv(path: Path, names: list[str], lines: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(lines)


def _names(figures: Figures, rows: int) -> list[str]:
    return list(dict.fromkeys(one.way for one in figures.measured if one.rows == rows))


def _ways(figures: Figures, rows: int) -> RichTable:
    some = next(one for one in figures.measured if one.rows == rows)
    title = f"{rows:,} engagements, {some.requests:,} conversions that touch {some.touched:,}; medians"
    table = RichTable(title=title, title_justify="left")
    table.add_column("way", no_wrap=True)
    columns = ("visible s", "announced s", "moved s", "x naive", "requests/s", "rows/s", "files", "MB", "amplif.")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for way in _names(figures, rows):
        last, moved = figures.rounds(way, rows)[-1], figures.moved(way, rows)
        assert moved is not None
        shown = [
            _figure(figures.visible(way, rows)),
            _figure(figures.announced(way, rows)),
            _figure(moved),
            _figure(_ratio(figures.moved(NAIVE, rows), moved)),
            f"{last.requests / moved:,.0f}",
            f"{last.touched / moved:,.0f}",
            f"{last.files:,}",
            f"{last.bytes / 1e6:,.1f}",
            _figure(last.amplification),
        ]
        table.add_row(way, *shown)
    return table


def _profiles(profiles: Sequence[Profile]) -> RichTable:
    title = f"Where a full read goes, {profiles[0].rows:,} engagements; one read each, after those above"
    table = RichTable(title=title, title_justify="left")
    for name in ("read", "of each row", "open s", "plan s", "read s", "Spark jobs", "tasks", "files"):
        table.add_column(name, justify="left" if name in {"read", "of each row"} else "right")
    for one in profiles:
        seconds = (_figure(took) for took in (one.opened_s, one.planned_s, one.read_s))
        table.add_row(one.which, one.what, *seconds, f"{one.jobs:,}", f"{one.tasks:,}", f"{one.files:,}")
    return table


def _renames(renamed: Sequence[Renamed]) -> RichTable:
    table = RichTable(title="One person gets a new name; medians", title_justify="left")
    for name in ("way", "seconds", "rows written anew", "files", "KB"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for way in dict.fromkeys(one.way for one in renamed):
        mine = [one for one in renamed if one.way == way]
        seconds = _figure(_median([one.seconds for one in mine]))
        table.add_row(way, seconds, f"{mine[-1].rows:,}", f"{mine[-1].files:,}", f"{mine[-1].bytes / 1e3:,.1f}")
    return table


def _targets(figures: Figures) -> RichTable:
    table = RichTable("target", "found", "wanted", "")
    said = {None: "not measured", True: "met", False: "[red]missed[/red]"}
    for one in figures.targets():
        wanted = f"at least {one.at_least:g}" if one.at_least is not None else f"at most {one.at_most:g}"
        table.add_row(one.says, _figure(one.found), wanted, said[one.met])
    return table


def _plot(path: Path, figures: Figures) -> None:
    from matplotlib.figure import Figure

    panels = len(figures.sizes)
    most = max(len(_names(figures, rows)) for rows in figures.sizes)
    drawing = Figure(figsize=(9, 1.2 + panels * (0.8 + 0.6 * most)), layout="constrained")
    shortest = min(one.outcome.visible_s for one in figures.measured)
    longest = max(max(one.outcome.announced_s, one.outcome.moved_s) for one in figures.measured)
    grid = drawing.subplots(panels, 1, squeeze=False, sharex=True)[:, 0]
    for rows, axes in zip(figures.sizes, grid, strict=True):
        ways = _names(figures, rows)
        places = range(len(ways))
        for shift, label, times in (
            (-0.27, "visible", [figures.visible(way, rows) for way in ways]),
            (0, "announced", [figures.announced(way, rows) for way in ways]),
            (0.27, "moved", [figures.moved(way, rows) for way in ways]),
        ):
            bars = axes.barh([place + shift for place in places], times, height=0.25, label=label)
            axes.bar_label(bars, labels=[f"{_figure(one)} s" for one in times], padding=3, fontsize=8)
        axes.set_yticks(list(places), ways)
        axes.invert_yaxis()
        # Bars on a logarithmic axis begin somewhere; the same place in all panels lets them be compared.
        axes.set_xscale("log")
        axes.set_xlim(shortest / 3, longest * 3)
        axes.set_title(f"{rows:,} engagements: seconds until conversions are visible, announced, moved", loc="left")
    drawing.legend(*grid[0].get_legend_handles_labels(), loc="outside lower right", ncols=3)
    drawing.savefig(path, dpi=120)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:.2f}"

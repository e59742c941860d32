"""Tables and pictures of what `simulate_days` measured, day by day. Nothing is measured here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.cells import Cells, Run, charts, page, right_aligned
from engagement_platform.maintenance.layout.remedies import readable

FIGURES = ("seconds", "files", "bytes", "median_bytes", "small_percent")
PANELS: Mapping[str, str] = {
    "files": "Files at the day's end",
    "median_bytes": "Median size of a file, bytes",
    "small_percent": "Small files, %",
    "mutation_s": "Seconds of the mutation batch",
}
WEEK = 7


def by_day(cells: Cells, course: str, figure: str) -> dict[int, float]:
    """A figure of each day: after its last step; `mutation_s` and `maintenance_s` are seconds of that step.

    Days whose figure an interruption took are left out.
    """
    step = {"mutation_s": "mutate", "maintenance_s": "maintain"}.get(figure)
    found: dict[int, float] = {}
    for cell in cells:
        mine, day, of = cell.key
        value = cell.figures["seconds" if step else figure]
        if mine == course and value is not None and step in {None, of}:
            found[int(day)] = value
    return found


def ends(figures: Mapping[int, float]) -> tuple[float, float] | None:
    """Median of the first and of the last days, WEEK of each or a third of all; None without any."""
    days = sorted(figures)
    if not days:
        return None
    few = max(1, min(WEEK, len(days) // 3))
    first, last = days[:few], days[-few:]
    return statistics.median(figures[day] for day in first), statistics.median(figures[day] for day in last)


def table(courses: Sequence[str], cells: Cells) -> RichTable:
    """The first days against the last ones."""
    columns = ("files", "median file", "small %", "mutation s", "times", "maintenance s")
    shown = right_aligned(
        "Medians of the first days → of the last ones (a week of each, or a third)", "course", *columns
    )
    for course in courses:
        found = {one: ends(by_day(cells, course, one)) for one in (*PANELS, "maintenance_s")}
        mutation = found["mutation_s"]
        shown.add_row(
            course,
            _from_to(found["files"], "{:,.0f}"),
            "–" if found["median_bytes"] is None else " → ".join(readable(int(one)) for one in found["median_bytes"]),
            _from_to(found["small_percent"], "{:.0f}"),
            _from_to(mutation, "{:.3f}"),
            f"{mutation[1] / mutation[0]:.2f}" if mutation and mutation[0] else "–",
            _from_to(found["maintenance_s"], "{:.2f}"),
        )
    return shown


def show(console: Console, courses: Sequence[str], cells: Cells) -> None:
    """Everything on the screen."""
    console.print(table(courses, cells))


def save(run: Run, courses: Sequence[str], cells: Cells) -> None:
    """The picture and the page."""
    lines = make_subplots(rows=2, cols=2, subplot_titles=list(PANELS.values()))
    colors = ("#b03030", "#e0a030", "#3366aa")
    for n, figure in enumerate(PANELS):
        for color, course in zip(colors, courses, strict=False):
            days = by_day(cells, course, figure)
            line = go.Scatter(
                x=list(days), y=list(days.values()), name=course, showlegend=n == 0, line={"color": color}
            )
            lines.add_trace(line, row=n // 2 + 1, col=n % 2 + 1)
    lines.update_layout(height=800, template="simple_white")
    text = page("Files and mutations as days go by", run, [table(courses, cells)], charts(lines))
    (run.folder / "simulate_days.html").write_text(text)
    _picture(run, courses, cells, colors)


def _from_to(pair: tuple[float, float] | None, shape: str) -> str:
    return "–" if pair is None else " → ".join(shape.format(one) for one in pair)


def _picture(run: Run, courses: Sequence[str], cells: Cells, colors: Sequence[str]) -> None:
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(11, 7), layout="constrained")
    panels = drawing.subplots(2, 2, sharex=True).flat
    for axes, (figure, title) in zip(panels, PANELS.items(), strict=True):
        for color, course in zip(colors, courses, strict=False):
            days = by_day(cells, course, figure)
            axes.plot(list(days), list(days.values()), color=color, label=course)
        axes.set_title(title, loc="left")
        axes.set_ylim(bottom=0)
    drawing.supxlabel("day")
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=len(courses))
    drawing.savefig(run.folder / "simulate_days.png", dpi=120)

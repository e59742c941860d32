"""Medians, ratios and pictures of what `partitioning` measured. Nothing is measured here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import plotly.graph_objects as go
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.cells import Cells, Run, charts, page, right_aligned
from engagement_platform.maintenance.layout.remedies import readable
from engagement_platform.maintenance.layout.statistics import BUCKETS

SPARK, PLATFORM = "OPTIMIZE by Spark", "OPTIMIZE by the platform"
OPERATIONS = ("week, largest", "all, largest", "week, small", "all, small", "update", "insert", SPARK, PLATFORM)
BOTH = f"insert and {SPARK}"
"""What a batch costs when the layout is tidied after it: the sum of both in each round."""
FILE_BUCKETS = BUCKETS

# The write-up about the mutable engagement lake, of Z-order against partitions of organization and date.
SOURCE: Mapping[str, str] = {
    "week, largest": "> 50 % better",
    "all, largest": "> 50 % better",
    "week, small": "> 50 % better",
    "all, small": "> 50 % better",
    "update": "> 300 % better",
    BOTH: "10 % more",
}
Sign = Literal["less", "more", "not told apart"]


@dataclass(frozen=True)
class Comparison:
    """Seconds of a layout against those of the first one."""

    times: float
    """The first one's median over this one's: 2 takes half as long."""
    sign: Sign
    """Whether it takes less or more, where all rounds agree: ranges that overlap are not told apart."""


def compare(first: Sequence[float], other: Sequence[float]) -> Comparison:
    """Rounds of one operation in two layouts. A single round of each tells nothing apart."""
    times = statistics.median(first) / statistics.median(other)
    if min(len(first), len(other)) > 1 and max(other) < min(first):
        return Comparison(times, "less")
    if min(len(first), len(other)) > 1 and min(other) > max(first):
        return Comparison(times, "more")
    return Comparison(times, "not told apart")


def seconds(cells: Cells, layout: str, operation: str) -> list[float]:
    """Rounds of an operation."""
    if operation == BOTH:
        parts = (cells.figures("seconds", layout=layout, operation=one) for one in ("insert", SPARK))
        return [sum(both) for both in zip(*parts, strict=False)]
    return cells.figures("seconds", layout=layout, operation=operation)


def tables(layouts: Sequence[str], cells: Cells, sizes: Cells) -> list[RichTable]:
    """What is printed and put on the page."""
    return [*(_times(layouts[0], other, cells) for other in layouts[1:]), _files(layouts, sizes)]


def show(console: Console, layouts: Sequence[str], cells: Cells, sizes: Cells) -> None:
    """Everything on the screen."""
    for table in tables(layouts, cells, sizes):
        console.print(table)


def save(run: Run, layouts: Sequence[str], cells: Cells, sizes: Cells) -> None:
    """The picture and the page."""
    _picture(run, layouts, cells, sizes)
    bars = go.Figure()
    operations = (*OPERATIONS, BOTH)
    for layout in layouts:
        medians = [statistics.median(seconds(cells, layout, one)) for one in operations]
        bars.add_bar(name=layout, x=list(operations), y=medians)
    bars.update_layout(title="Seconds, medians", yaxis={"type": "log", "title": "s"}, template="simple_white")
    counts = go.Figure()
    for layout in layouts:
        names, files = _histogram(sizes, layouts, layout)
        counts.add_bar(name=layout, x=names, y=files)
    counts.update_layout(
        title="Files by size",
        yaxis={"type": "log", "title": "files"},
        xaxis={"type": "category"},
        template="simple_white",
    )
    text = page("Layouts of the Data Table", run, tables(layouts, cells, sizes), charts(bars, counts))
    (run.folder / "partitioning.html").write_text(text)


def _times(first: str, other: str, cells: Cells) -> RichTable:
    table = right_aligned(
        f"{other} against {first}: median seconds; files read, rewritten or added; times as fast; what all rounds say",
        "operation",
        *(f"{first} s", "files", f"{other} s", "files", "times", "takes", "source"),
    )
    for operation in (*OPERATIONS, BOTH):
        theirs, mine = (seconds(cells, layout, operation) for layout in (first, other))
        found = compare(theirs, mine)
        table.add_row(
            operation,
            f"{statistics.median(theirs):.2f}",
            _count(cells, first, operation),
            f"{statistics.median(mine):.2f}",
            _count(cells, other, operation),
            f"{found.times:.2f}",
            found.sign,
            SOURCE.get(operation, "–"),
        )
    return table


def _count(cells: Cells, layout: str, operation: str) -> str:
    found = cells.figures("files", layout=layout, operation=operation)
    return f"{statistics.median(found):,.0f}" if found else "–"


def _files(layouts: Sequence[str], sizes: Cells) -> RichTable:
    table = right_aligned("Files by size, of the layouts as rounds begin with them", "from", *layouts)
    shown = [_histogram(sizes, layouts, layout) for layout in layouts]
    for n, name in enumerate(shown[0][0]):
        table.add_row(name, *(f"{files[n]:,}" for _, files in shown))
    table.add_row("all files", *(f"{sum(files):,}" for _, files in shown))
    held = (sum(sizes.figures("bytes", layout=layout)) for layout in layouts)
    table.add_row("all bytes", *(readable(int(one)) for one in held))
    return table


def _histogram(sizes: Cells, layouts: Sequence[str], layout: str) -> tuple[list[str], list[int]]:
    """Buckets between the smallest and the largest file of any layout, and the files of one in them."""
    by = {one: [int(n) for n in sizes.figures("files", layout=one)] for one in layouts}
    used = [n for n in range(len(FILE_BUCKETS)) if any(counts[n] for counts in by.values())]
    span = range(used[0], used[-1] + 1)
    return [readable(FILE_BUCKETS[n]) for n in span], [by[layout][n] for n in span]


def _picture(run: Run, layouts: Sequence[str], cells: Cells, sizes: Cells) -> None:
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(11, 8), layout="constrained")
    above, below = drawing.subplots(2, 1)
    operations, width = (*OPERATIONS, BOTH), 0.8 / len(layouts)
    for n, layout in enumerate(layouts):
        medians = [statistics.median(seconds(cells, layout, one)) for one in operations]
        bars = above.bar([at + n * width for at in range(len(operations))], medians, width, label=layout)
        above.bar_label(bars, labels=[f"{one:.2f}" for one in medians], fontsize=7)
        names, files = _histogram(sizes, layouts, layout)
        below.bar([at + n * width for at in range(len(names))], files, width, label=layout)
        below.set_xticks([at + width for at in range(len(names))], names)
    above.set_xticks(
        [at + width for at in range(len(operations))], [one.replace(" by ", "\nby ") for one in operations]
    )
    above.set_yscale("log")
    above.set_title("Seconds, medians", loc="left")
    below.set_yscale("log")
    below.set_title("Files by size (from)", loc="left")
    drawing.legend(*above.get_legend_handles_labels(), loc="outside lower right", ncols=len(layouts))
    drawing.savefig(run.folder / "partitioning.png", dpi=120)

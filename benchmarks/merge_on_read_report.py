"""What `merge_on_read` is asked to measure, and what its figures say: costs, ratios, targets, crossings, pictures.

Nothing is measured here.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any, Self

import plotly.graph_objects as go
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.cells import Cells, Run, charts, page, right_aligned
from benchmarks.merge_on_read_reads import AGAIN, BASE, COUNTED, LATE, ONE_KEY, WHOLE
from benchmarks.merge_on_read_ways import COPY_ON_WRITE, MERGE_ON_READ, WAYS, is_product
from benchmarks.pages import markdown
from engagement_platform.pipelines.profiles.rematerialize import METHODS
from engagement_platform.pipelines.profiles.view import STRATEGIES
from engagement_platform.settings import ViewStrategy

MOVE = "move"
"""In the place of a batch's number: the move of all batches into the base."""

SPREADS: Mapping[str, int] = {"everywhere": 16, "one region": 1}
"""Which of the sixteen partitions have changes."""

TARGET_PENDING = 100_000
ANYHOW: ViewStrategy = "left_join_anti_join"
"""Valid for any changes: what `auto` chooses under the default policies."""
LESS_WRITING, MORE_READING, MOVE_MB = 5.0, 1.5, 4.2
"""Targets: writes cost so many times less than copy-on-write MERGE, reads at most so many times the base's, and a core
moves so many MB a second (the source's 200 GB on 80 cores in ten minutes)."""


@dataclass(frozen=True)
class Asked:
    """The options that decide what is measured."""

    rows: int
    changes: int
    dates: int
    rounds: int
    batches: int
    every: int
    pending: tuple[int, ...]
    sizes: tuple[int, ...]
    moved: int
    seed: int

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """From the command line."""
        said: dict[str, Any] = {}
        for name in cls.__dataclass_fields__:
            value = getattr(options, name)
            said[name] = tuple(value) if isinstance(value, list) else value
        return cls(**said)

    @property
    def writes(self) -> list[tuple[str, ...]]:
        """Way and batch, or way and MOVE."""
        found: list[tuple[str, ...]] = []
        for way in WAYS:
            found += [(way, str(n)) for n in range(self.batches if is_product(way) else self.rounds)]
            found += [(way, MOVE)] if is_product(way) else []
        return found

    @property
    def reads(self) -> list[tuple[str, ...]]:
        """Strategy or base, columns, changes that wait, and round; the base next to the strategies of each round."""
        ways = [(method, columns) for columns in (WHOLE, COUNTED) for method in (BASE, *STRATEGIES)]
        ways += [(LATE, WHOLE), (AGAIN, WHOLE), (ONE_KEY, WHOLE)]
        rounds = product(self.pending, range(1, self.rounds + 1), ways)
        return [(method, columns, str(pending), str(n)) for pending, n, (method, columns) in rounds]

    @property
    def moves(self) -> list[tuple[str, ...]]:
        """Method, spread of the changes, rows of the base, and round."""
        rounds = product(range(1, self.rounds + 1), SPREADS, self.sizes, METHODS)
        return [(method, spread, str(size), str(n)) for n, spread, size, method in rounds]

    @property
    def total(self) -> int:
        """All cells."""
        return len(self.writes) + len(self.reads) + len(self.moves)


@dataclass(frozen=True)
class Cost:
    """What a batch costs one way, medians."""

    way: str
    seconds: float
    """Until the batch can be read."""
    bytes: float
    files: float
    move_s: float = 0.0
    """Share of a move into the base."""
    move_bytes: float = 0.0

    @property
    def sustained_s(self) -> float:
        """With the share of a move: what a batch costs in the long run."""
        return self.seconds + self.move_s


def settled(values: Sequence[float]) -> float:
    """The median without the first of several, which pays for first use: 4.4 s and then 1.8 of one read.

    >>> settled([9.0, 2.0, 1.0, 3.0]), settled([9.0])
    (2.0, 9.0)
    """
    return statistics.median(values[1:] or values)


def costs(asked: Asked, writes: Cells) -> dict[str, Cost]:
    """Of every way that is measured; `settled`."""
    found = {}
    for way in WAYS:
        batches = [cell for cell in writes if cell.key[0] == way and cell.key[1] != MOVE]
        if not batches:
            continue
        names = ("seconds", "bytes", "files_replaced")
        medians = [settled([cell.figures[name] or 0.0 for cell in batches]) for name in names]
        move = [sum(writes.figures(name, way=way, batch=MOVE)) / asked.every for name in names[:2]]
        found[way] = Cost(way, *medians, *move)
    return found


def reading(reads: Cells, method: str, columns: str, pending: int) -> float | None:
    """Seconds; `settled`."""
    found = reads.figures("seconds", method=method, columns=columns, pending=pending)
    return settled(found) if found else None


def moving(moves: Cells, method: str, spread: str, rows: int) -> float | None:
    """Seconds; `settled`."""
    found = moves.figures("seconds", method=method, spread=spread, rows=rows)
    return settled(found) if found else None


def mb_per_core(size: float, seconds: float) -> float:
    """Megabytes of base that a core moves in a second."""
    return size / 1e6 / seconds / (os.cpu_count() or 1)


def crossings(xs: Sequence[float], first: Sequence[float], other: Sequence[float]) -> list[float]:
    """Where two curves of straight pieces cross: x, rising. Where they only touch they do not cross.

    >>> crossings([0, 10, 20], [0, 10, 20], [5, 5, 5])
    [5.0]
    """
    found = []
    gaps = [(x, a - b) for x, a, b in zip(xs, first, other, strict=True) if a != b]
    for (x0, before), (x1, after) in pairwise(gaps):
        if before * after < 0:
            found.append(x0 + (x1 - x0) * before / (before - after))
    return found


def crossing_words(asked: Asked, moves: Cells) -> list[str]:
    """Where one method of moving becomes dearer than another."""
    said = []
    for spread, (one, other) in product(SPREADS, combinations(METHODS, 2)):
        known = [
            (size, a, b)
            for size in sorted(asked.sizes)
            if (a := moving(moves, one, spread, size)) is not None
            and (b := moving(moves, other, spread, size)) is not None
        ]
        if not known:
            continue
        xs, first, second = zip(*known, strict=True)
        if found := crossings(xs, first, second):
            places = f"at about {found[0]:,.0f} rows"
            if len(found) > 1:
                places = f"between {found[0]:,.0f} and {found[-1]:,.0f} rows, where neither is always the cheaper one"
            said.append(f"Changes {spread}: {one} and {other} cost the same {places}.")
        else:
            cheaper = one if first[-1] < second[-1] else other
            dearer = other if cheaper == one else one
            said.append(f"Changes {spread}: {cheaper} costs less than {dearer} at every size.")
    return said


def view_words(asked: Asked, reads: Cells) -> list[str]:
    """Which strategy reads fastest with how many changes waiting."""
    fastest: dict[str, list[int]] = {}
    for pending in sorted(asked.pending):
        known = {s: seconds for s in STRATEGIES if (seconds := reading(reads, s, WHOLE, pending)) is not None}
        if pending and known:
            fastest.setdefault(min(known, key=known.__getitem__), []).append(pending)
    return [
        f"With {' and '.join(f'{one:,}' for one in found)} changes waiting {strategy} reads fastest."
        for strategy, found in fastest.items()
    ]


def targets(asked: Asked, writes: Cells, reads: Cells) -> list[str]:
    """What was aimed at, and what was found; at full scale these are the project's targets."""
    said, found = [], costs(asked, writes)
    if MERGE_ON_READ in found and COPY_ON_WRITE in found:
        mine, theirs = found[MERGE_ON_READ], found[COPY_ON_WRITE]
        times = theirs.sustained_s / mine.sustained_s
        said.append(
            f"A batch of {asked.changes:,} changes on {asked.rows:,} rows costs {times:.1f} times less than copy-on-"
            f"write MERGE, moves included ({theirs.seconds / mine.seconds:.1f} without); target {LESS_WRITING:g}: "
            f"{_met(times >= LESS_WRITING)}."
        )
    pending = TARGET_PENDING if TARGET_PENDING in asked.pending else max(asked.pending)
    base = reading(reads, BASE, WHOLE, pending)
    views = {s: seconds for s in STRATEGIES if (seconds := reading(reads, s, WHOLE, pending)) is not None}
    if base and views:
        best = min(views, key=views.__getitem__)
        again = reading(reads, AGAIN, WHOLE, pending)
        late = reading(reads, LATE, WHOLE, pending)
        anyhow = views.get(ANYHOW) if best != ANYHOW else None
        told = (
            (f"made and read ({best})", views[best]),
            (f"made and read ({ANYHOW}, by which profiles are read unless inserts are promised to be new)", anyhow),
            ("made and read where some are late", late),
            ("read again", again),
        )
        for what, took in told:
            if took is not None:
                times = took / base
                said.append(
                    f"With {pending:,} changes waiting the view is {what} in {times:.2f} times the base's time; target "
                    f"at most {MORE_READING:g}: {_met(times <= MORE_READING)}."
                )
    size, seconds = (sum(writes.figures(name, way=MERGE_ON_READ, batch=MOVE)) for name in ("bytes", "seconds"))
    if seconds:
        rate = mb_per_core(size, seconds)
        said.append(
            f"overwrite moves {rate:.1f} MB a second and core ({size / 1e6:,.0f} MB in {seconds:.1f} s), 200 MB on two "
            f"cores in {100 / rate:.0f} s ({100 / MOVE_MB:.0f} in the source); target {MOVE_MB:g}: "
            f"{_met(rate >= MOVE_MB)}."
        )
    return said


def words(asked: Asked, writes: Cells, reads: Cells, moves: Cells) -> list[str]:
    """Targets, and which way is the cheaper one where."""
    return [*targets(asked, writes, reads), *view_words(asked, reads), *crossing_words(asked, moves)]


def _met(yes: bool) -> str:
    return "met" if yes else "missed"


def tables(asked: Asked, writes: Cells, reads: Cells, moves: Cells) -> list[RichTable]:
    """What is printed and put on the page."""
    return [
        _writes(asked, writes),
        *(_reads(asked, reads, columns) for columns in (WHOLE, COUNTED)),
        _moves(asked, moves),
    ]


def show(
    console: Console, asked: Asked, writes: Cells, reads: Cells, moves: Cells, beside: Sequence[RichTable] = ()
) -> None:
    """Everything on the screen; beside: tables of somebody else."""
    for table in (*tables(asked, writes, reads, moves), *beside):
        console.print(table)
    for line in words(asked, writes, reads, moves):
        console.print(line, markup=False)


def figures(run: Run, asked: Asked, writes: Cells, reads: Cells, moves: Cells, beside: Sequence[RichTable] = ()) -> str:
    """All of it as Markdown; beside: tables of somebody else."""
    said = words(asked, writes, reads, moves)
    return markdown(run, [*tables(asked, writes, reads, moves), *beside], said)


def save(run: Run, asked: Asked, writes: Cells, reads: Cells, moves: Cells, beside: Sequence[RichTable] = ()) -> None:
    """The picture and the page; beside: tables of somebody else."""
    said = words(asked, writes, reads, moves)
    drawn = charts(*(_chart(title, unit, of) for title, unit, of in _curves(asked, reads, moves)))
    lines = [f"<p>{line}</p>" for line in said]
    text = page("Merge on read", run, [*tables(asked, writes, reads, moves), *beside], [*lines, *drawn])
    (run.folder / "merge_on_read.html").write_text(text, encoding="utf-8")
    _picture(run, asked, reads, moves)


def _writes(asked: Asked, writes: Cells) -> RichTable:
    found = costs(asked, writes)
    table = right_aligned(
        f"Batches of {asked.changes:,} changes on {asked.rows:,} rows, medians without the first batch "
        f"({asked.batches - 1} of merge on read, {asked.rounds - 1} of the others); a move for {asked.every} of them",
        "way",
        *("visible s", "move s", "sustained s", "MB written", "with move", "files replaced", "times merge on read"),
    )
    mine = found.get(MERGE_ON_READ)
    for way, cost in found.items():
        table.add_row(
            way,
            f"{cost.seconds:.3f}",
            f"{cost.move_s:.3f}" if is_product(way) else "–",
            f"{cost.sustained_s:.3f}",
            f"{cost.bytes / 1e6:.2f}",
            f"{(cost.bytes + cost.move_bytes) / 1e6:.2f}",
            f"{cost.files:,.0f}",
            f"{cost.sustained_s / mine.sustained_s:.1f}" if mine else "–",
        )
    return table


def _reads(asked: Asked, reads: Cells, columns: str) -> RichTable:
    what = "all columns" if columns == WHOLE else "one column, counted"
    names = [f"{pending:,}" for pending in asked.pending]
    table = right_aligned(
        f"Seconds of a read ({what}) by changes that wait, and times the base's; medians of {asked.rounds} rounds "
        "without the first",
        "read by",
        *names,
    )
    for method in (BASE, *STRATEGIES, *([LATE, AGAIN, ONE_KEY] if columns == WHOLE else [])):
        shown = []
        for pending in asked.pending:
            seconds, base = (reading(reads, one, columns, pending) for one in (method, BASE))
            compared = f" ({seconds / base:.2f})" if seconds and base and method in (*STRATEGIES, LATE, AGAIN) else ""
            shown.append("–" if seconds is None else f"{seconds:.3f}{compared}")
        table.add_row(method, *shown)
    return table


def _moves(asked: Asked, moves: Cells) -> RichTable:
    names = [f"{size:,} rows" for size in asked.sizes]
    table = right_aligned(
        f"Seconds to move {asked.moved:,} changes into a base in 16 partitions (MB of base a second and core); medians "
        f"of {asked.rounds} rounds without the first",
        "method and where changes are",
        *names,
    )
    for spread, method in product(SPREADS, METHODS):
        shown = []
        for size in asked.sizes:
            seconds = moving(moves, method, spread, size)
            held = moves.figures("base_bytes", method=method, spread=spread, rows=size)
            shown.append("–" if seconds is None else f"{seconds:.2f} ({mb_per_core(held[0], seconds):.1f})")
        table.add_row(f"{method}, {spread}", *shown)
    return table


Line = list[tuple[float, float]]
Curves = tuple[str, str, dict[str, Line]]
"""Title, what x is, and the points of each line."""


def _curves(asked: Asked, reads: Cells, moves: Cells) -> list[Curves]:
    latency: dict[str, Line] = {
        method: [(p, s) for p in sorted(asked.pending) if (s := reading(reads, method, WHOLE, p)) is not None]
        for method in (BASE, *STRATEGIES, LATE, AGAIN, ONE_KEY)
    }
    found: list[Curves] = [("Seconds of a read of all columns", "changes that wait", latency)]
    for spread in SPREADS:
        cost: dict[str, Line] = {
            method: [(n, s) for n in sorted(asked.sizes) if (s := moving(moves, method, spread, n)) is not None]
            for method in METHODS
        }
        found.append((f"Seconds of a move, changes {spread}", "rows of the base", cost))
    return found


def _chart(title: str, unit: str, lines: Mapping[str, Line]) -> go.Figure:
    figure = go.Figure()
    for name, points in lines.items():
        figure.add_scatter(name=name, x=[x for x, _ in points], y=[y for _, y in points], mode="lines+markers")
    figure.update_layout(
        title=title, xaxis={"title": unit}, yaxis={"title": "s", "rangemode": "tozero"}, template="simple_white"
    )
    return figure


def _picture(run: Run, asked: Asked, reads: Cells, moves: Cells) -> None:
    from matplotlib.figure import Figure

    curves = _curves(asked, reads, moves)
    drawing = Figure(figsize=(9, 4 * len(curves)), layout="constrained")
    fields = drawing.subplots(len(curves), 1)
    for axes, (title, unit, lines) in zip(fields, curves, strict=True):
        for name, points in lines.items():
            axes.plot([x for x, _ in points], [y for _, y in points], "o-", label=name)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(unit)
        axes.set_ylabel("s")
        axes.set_title(title, loc="left")
        axes.legend(fontsize=8)
    drawing.savefig(run.folder / "merge_on_read.png", dpi=120)

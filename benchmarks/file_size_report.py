"""The matrix, the files by size and the best setting of what `file_size` measured. Nothing is measured here."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.cells import Cells, Run, charts, page, right_aligned
from engagement_platform.maintenance.layout.remedies import readable

MATRIX = "file_size_matrix.csv"
DRAWS = 10_000
ENOUGH = 3
"""With fewer rounds there is nothing to draw from."""


@dataclass(frozen=True)
class Optimum:
    """The setting with the lowest median, and what drawing the rounds anew says of it."""

    best: int
    median: float
    runner_up: int
    slower: Mapping[int, tuple[float, float]]
    """Of each other setting: 95 % interval of its median less the best one's, in seconds."""
    wins: Mapping[int, float]
    """Share of the draws in which a setting has the lowest median; ties are shared out."""

    @property
    def as_good(self) -> tuple[int, ...]:
        """Settings that cannot be told from the best one: their intervals hold 0."""
        return tuple(setting for setting, (low, high) in self.slower.items() if low <= 0 <= high)


def optimum(rounds: Mapping[int, Sequence[float]], *, draws: int = DRAWS, seed: int = 0) -> Optimum | None:
    """Which setting takes least, by the median of its rounds. At least two settings.

    Bootstrap: of each setting as many rounds as it has are drawn with replacement, independently, `draws` times. None
    with fewer than ENOUGH rounds of a setting.
    """
    if min(map(len, rounds.values())) < ENOUGH:
        return None
    rng = np.random.default_rng(seed)
    settings = list(rounds)
    medians = {setting: statistics.median(rounds[setting]) for setting in settings}
    best, runner_up = sorted(settings, key=medians.__getitem__)[:2]
    drawn = np.array(
        [np.median(rng.choice(rounds[setting], (draws, len(rounds[setting]))), axis=1) for setting in settings]
    )
    lowest = drawn == drawn.min(axis=0)
    wins = (lowest / lowest.sum(axis=0)).mean(axis=1)
    slower = {}
    for n, setting in enumerate(settings):
        if setting != best:
            low, high = np.percentile(drawn[n] - drawn[settings.index(best)], [2.5, 97.5])
            slower[setting] = (float(low), float(high))
    return Optimum(best, medians[best], runner_up, slower, dict(zip(settings, map(float, wins), strict=True)))


def bucket_table(edges: Sequence[int], sizes: Mapping[int, Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Files of each setting by size: (lower end of a bucket, files of each setting); the first bucket begins with 0.

    A size at a lower end is in the bucket that begins there; the last bucket has no upper end.
    """
    ends = [0, *sorted(edges)]
    counted = [
        np.bincount(np.searchsorted(ends, of, side="right") - 1, minlength=len(ends))
        if len(of)
        else np.zeros(len(ends))
        for of in sizes.values()
    ]
    return [(low, [int(counts[n]) for counts in counted]) for n, low in enumerate(ends)]


def expected_files(partitions: Mapping[str, int], setting: int) -> int:
    """Files that Z-order makes of partitions with so many bytes: max(1, floor(bytes / setting)) of each."""
    return sum(max(1, size // setting) for size in partitions.values())


def seconds(settings: Sequence[int], cells: Cells, figure: str = "moved_s") -> dict[int, list[float]]:
    """The rounds of each setting."""
    return {setting: cells.figures(figure, setting=setting) for setting in settings}


def words(found: Optimum | None) -> str:
    """The best setting and how sure that is, for people."""
    if found is None:
        return f"No best setting: fewer than {ENOUGH} rounds."
    low, high = found.slower[found.runner_up]
    good = ", ".join(map(readable, found.as_good))
    told = f"Not told apart from it: {good}." if good else "All others take longer."
    return (
        f"Lowest median: {readable(found.best)}, {found.median:.3f} s; it wins {found.wins[found.best]:.0%} of "
        f"{DRAWS:,} draws. Next: {readable(found.runner_up)}, longer by {low:+.3f} to {high:+.3f} s (95 %). {told}"
    )


def show(console: Console, settings: Sequence[int], cells: Cells, files: Cells) -> None:
    """Everything on the screen."""
    for table in tables(settings, cells, files):
        console.print(table)
    console.print(words(optimum(seconds(settings, cells))))


def tables(settings: Sequence[int], cells: Cells, files: Cells) -> list[RichTable]:
    """What is printed and put on the page."""
    return [_rounds(settings, cells), _buckets(settings, files)]


def save(run: Run, settings: Sequence[int], cells: Cells, files: Cells) -> None:
    """The matrix, the picture and the page."""
    matrix, names = seconds(settings, cells), [readable(setting) for setting in settings]
    with (run.folder / MATRIX).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["round", *names])
        for n, row in enumerate(zip(*matrix.values(), strict=True), start=1):
            writer.writerow([n, *(f"{one:.6g}" for one in row)])
    title = "Seconds of a move by largest file; a dot is a round"
    found = optimum(matrix)
    boxes = go.Figure()
    for name, rounds in zip(names, matrix.values(), strict=True):
        boxes.add_box(name=name, y=rounds, boxpoints="all")
    boxes.update_layout(title=title, yaxis={"title": "s"}, showlegend=False, template="simple_white")
    text = page("File sizes and the move", run, tables(settings, cells, files), [f"<p>{words(found)}</p>"])
    (run.folder / "file_size.html").write_text(text.replace("</body>", f"{charts(boxes)[0]}\n</body>"))
    _picture(run, title, names, list(matrix.values()), words(found))


def _rounds(settings: Sequence[int], cells: Cells) -> RichTable:
    rounds = seconds(settings, cells)
    replaced = seconds(settings, cells, "files_replaced")
    found = optimum(rounds)
    table = right_aligned(
        "Seconds of a move; wins: share of draws with the lowest median",
        "files up to",
        *("rounds", "lowest", "median", "highest", "files replaced", "wins", "longer than the best, 95 %"),
    )
    for setting in settings:
        of = rounds[setting]
        low, high = (found.slower if found else {}).get(setting, (None, None))
        table.add_row(
            readable(setting),
            str(len(of)),
            *(f"{one:.3f}" for one in (min(of), statistics.median(of), max(of))),
            f"{statistics.median(replaced[setting]):,.0f}",
            f"{found.wins[setting]:.0%}" if found else "–",
            f"{low:+.3f} to {high:+.3f} s" if low is not None and high is not None else "–",
        )
    return table


def _buckets(settings: Sequence[int], files: Cells) -> RichTable:
    names = [readable(setting) for setting in settings]
    table = right_aligned("Files by size (rows) after OPTIMIZE with a largest size (columns)", "from", *names)
    sizes = {setting: [int(one) for one in files.figures("bytes", setting=setting)] for setting in settings}
    for low, counts in bucket_table(settings, sizes):
        table.add_row(readable(low), *(f"{count:,}" for count in counts))
    table.add_row("all files", *(f"{len(of):,}" for of in sizes.values()))
    expected = (expected_files(_partitions(files, setting), setting) for setting in settings)
    table.add_row("expected", *(f"{count:,}" for count in expected))
    return table


def _partitions(files: Cells, setting: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for cell in files:
        if cell.key[0] == str(setting):
            found[cell.key[1]] = found.get(cell.key[1], 0) + int(cell.figures["bytes"] or 0)
    return found


def _picture(run: Run, title: str, names: Sequence[str], rounds: Sequence[Sequence[float]], said: str) -> None:
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(10, 5.5), layout="constrained")
    axes = drawing.subplots()
    axes.boxplot(rounds, tick_labels=list(names))
    for n, of in enumerate(rounds, start=1):
        axes.plot([n] * len(of), of, ".", color="#3366aa", alpha=0.5)
    axes.set_ylabel("s")
    axes.set_title(title, loc="left")
    drawing.supxlabel(said, fontsize=7)
    drawing.savefig(run.folder / "file_size.png", dpi=120)

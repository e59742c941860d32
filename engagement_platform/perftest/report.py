"""What the timer table says: seconds of each method, their ranking, where the source found another one, a chart.

Nothing is measured here.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table as RichTable

from engagement_platform.perftest.timer import Row

SOURCE_FASTEST, SOURCE_SLOW = "left_join_union_inserts", "full_outer_join"
"""What the source found of the four methods, on its own data and cluster."""


@dataclass(frozen=True)
class Timed:
    """The runs of one method at one operation."""

    method: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """In seconds."""
        return statistics.median(self.seconds)

    def apart_from(self, other: Timed) -> bool:
        """Whether every run took less than every one of the other, of more than one run each."""
        return min(len(self.seconds), len(other.seconds)) > 1 and max(self.seconds) < min(other.seconds)


@dataclass(frozen=True)
class Ranking:
    """The methods at one operation, fastest first by median."""

    operation: str
    query: str
    timed: tuple[Timed, ...]

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.operation} {self.query}".rstrip()


def rankings(rows: Iterable[Row]) -> list[Ranking]:
    """Of every operation and query, in the order in which they came."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        methods = found.setdefault((row["operation"], row["query"]), {})
        methods.setdefault(row["method"], []).append(row["seconds"])
    return [
        Ranking(operation, query, tuple(sorted((Timed(m, tuple(s)) for m, s in of.items()), key=lambda t: t.median)))
        for (operation, query), of in found.items()
    ]


def words(ranking: Ranking) -> list[str]:
    """The ranking in a sentence, and what the source says otherwise."""
    places = ", ".join(f"{n}. {t.method} {t.median:.2f} s" for n, t in enumerate(ranking.timed, start=1))
    return [f"{ranking.title}: {places}", *against_source(ranking)]


def against_source(ranking: Ranking) -> list[str]:
    """Whether the source's order is found here: left_join_union_inserts fastest, the outer join slow.

    Runs that overlap, or single ones, tell two methods not apart.
    """
    places = {timed.method: n for n, timed in enumerate(ranking.timed)}
    if len(places) < 2:
        return []
    first, said = ranking.timed[0], []
    if (place := places.get(SOURCE_FASTEST)) == 0:
        sure = "" if first.apart_from(ranking.timed[1]) else ", though its runs overlap those of the second, or are few"
        said.append(f"{SOURCE_FASTEST} is fastest, as in the source{sure}.")
    elif place is not None:
        theirs = ranking.timed[place]
        more = f"{SOURCE_FASTEST} takes {theirs.median / first.median - 1:.0%} more here than {first.method}"
        if first.apart_from(theirs):
            said.append(f"Disagrees with the source, which found {SOURCE_FASTEST} fastest: {more}.")
        else:
            said.append(
                f"The source found {SOURCE_FASTEST} fastest: {more}, not told apart (runs overlap, or are few)."
            )
    if (place := places.get(SOURCE_SLOW)) is not None:
        theirs, last = ranking.timed[place], len(places) - 1
        if place == last and ranking.timed[last - 1].apart_from(theirs):
            said.append(f"{SOURCE_SLOW} is slowest, and slow in the source, too.")
        elif any(theirs.apart_from(other) for other in ranking.timed[place + 1 :]):
            said.append(f"Disagrees with the source, which found {SOURCE_SLOW} slow: it is number {place + 1} here.")
        else:
            said.append(f"The source found {SOURCE_SLOW} slow; here it is not told apart from others.")
    return said


def table(ranking: Ranking) -> RichTable:
    """Seconds of each method."""
    made = RichTable(title=f"{ranking.title}, seconds", title_justify="left")
    made.add_column("method", no_wrap=True)
    for name in ("runs", "lowest", "median", "highest", "times the fastest"):
        made.add_column(name, justify="right")
    for timed in ranking.timed:
        figures = (min(timed.seconds), timed.median, max(timed.seconds), timed.median / ranking.timed[0].median)
        made.add_row(timed.method, str(len(timed.seconds)), *(f"{figure:.2f}" for figure in figures))
    return made


def save_chart(found: Sequence[Ranking], file: Path) -> None:
    """A picture with one field for each operation and query: the median as a bar, every run as a dot."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9, 1 + 2.4 * len(found)), layout="constrained")
    fields = drawing.subplots(len(found), 1, squeeze=False)
    for ranking, axes in zip(found, fields[:, 0], strict=True):
        methods = [timed.method for timed in ranking.timed]
        axes.barh(methods, [timed.median for timed in ranking.timed], color="#9db8d9")
        for timed in ranking.timed:
            axes.plot(timed.seconds, [timed.method] * len(timed.seconds), ".", color="#1f3d66")
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel("s")
        axes.set_title(ranking.title, loc="left", parse_math=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(file, dpi=120)

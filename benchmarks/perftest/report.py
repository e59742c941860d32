"""What the timer table says: seconds of each method, their ranking, where the source found another one, a chart.

Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.table import Table as RichTable

from benchmarks.perftest.timer import Row

SOURCE_FASTEST, SOURCE_SLOW = "left_join_union_inserts", "full_outer_join"
"""What the source found of the four methods, on its own data and cluster."""


@dataclass(frozen=True)
class Ranking:
    """The methods at one operation."""

    operation: str
    query: str
    seconds: Mapping[str, Sequence[float]]
    """Method -> what its runs took; the least median first."""

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.operation} {self.query}".rstrip()

    def is_faster(self, one: str, other: str) -> bool:
        """Whether every run of a method took less than every one of the other, of more than one run each."""
        first, second = self.seconds[one], self.seconds[other]
        return min(len(first), len(second)) > 1 and max(first) < min(second)


def rankings(rows: Iterable[Row]) -> list[Ranking]:
    """Of every operation and query, in the order in which they came."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        methods = found.setdefault((row["operation"], row["query"]), {})
        methods.setdefault(row["method"], []).append(row["seconds"])
    return [
        Ranking(*asked, dict(sorted(methods.items(), key=lambda of: median(of[1])))) for asked, methods in found.items()
    ]


def words(ranking: Ranking) -> list[str]:
    """The ranking in a sentence, and what the source says otherwise."""
    places = ", ".join(f"{n}. {method} {median(of):.2f} s" for n, (method, of) in enumerate(ranking.seconds.items(), 1))
    return [f"{ranking.title}: {places}", *against_source(ranking)]


def against_source(ranking: Ranking) -> list[str]:
    """Whether the source's order is found here: left_join_union_inserts fastest, the outer join slowest.

    Runs that overlap, or single ones, tell two methods not apart.
    """
    found = []
    for method, place in ((SOURCE_FASTEST, "fastest"), (SOURCE_SLOW, "slowest")):
        others = [other for other in ranking.seconds if other != method]
        if method not in ranking.seconds or not others:
            continue
        ahead = [ranking.is_faster(method, other) for other in others]
        behind = [ranking.is_faster(other, method) for other in others]
        agree, disagree = (ahead, behind) if place == "fastest" else (behind, ahead)
        if all(agree):
            found.append(f"{method} is {place}, as in the source.")
        elif any(disagree):
            found.append(f"Disagrees with the source, which found {method} {place}.")
        else:
            found.append(f"The source found {method} {place}; here it is not told apart (runs overlap, or are few).")
    return found


def table(ranking: Ranking) -> RichTable:
    """Seconds of each method."""
    made = RichTable(title=f"{ranking.title}, seconds", title_justify="left")
    made.add_column("method", no_wrap=True)
    for name in ("runs", "lowest", "median", "highest", "times the fastest"):
        made.add_column(name, justify="right")
    fastest = min(map(median, ranking.seconds.values()))
    for method, of in ranking.seconds.items():
        figures = (min(of), median(of), max(of), median(of) / fastest)
        made.add_row(method, str(len(of)), *(f"{figure:.2f}" for figure in figures))
    return made


def save_chart(found: Sequence[Ranking], file: Path) -> None:
    """A picture with one field for each operation and query: the median as a bar, every run as a dot."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9, 1 + 2.4 * len(found)), layout="constrained")
    fields = drawing.subplots(len(found), 1, squeeze=False)
    for ranking, axes in zip(found, fields[:, 0], strict=True):
        axes.barh(list(ranking.seconds), [median(of) for of in ranking.seconds.values()], color="#9db8d9")
        for method, of in ranking.seconds.items():
            axes.plot(of, [method] * len(of), ".", color="#1f3d66")
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel("s")
        axes.set_title(ranking.title, loc="left", parse_math=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(file, dpi=120)

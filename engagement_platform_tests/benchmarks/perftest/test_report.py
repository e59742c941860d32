"""The ranking goes by medians, and a disagreement with the source is said only where runs do not overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.perftest.report import against_source, rankings, save_chart, table, words
from benchmarks.perftest.timer import Row

UNION, OUTER, ANTI, RANK = "left_join_union_inserts", "full_outer_join", "left_join_anti_join", "double_rank_over"


def rows(seconds: Mapping[str, Sequence[float]], operation: str = "read", query: str = "score > 1") -> list[Row]:
    """Runs by method."""
    return [
        {"operation": operation, "query": query, "method": method, "run": n, "seconds": one}
        for method, of in seconds.items()
        for n, one in enumerate(of)
    ]


def said(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    [ranking] = rankings(rows(seconds))
    return against_source(ranking)


def test_methods_are_ranked_by_median_for_each_operation_and_query() -> None:
    found = rankings(rows({OUTER: [3, 9, 1], RANK: [2, 2, 50]}) + rows({UNION: [1]}, "write", ""))
    assert [(one.title, list(one.seconds)) for one in found] == [
        ("read score > 1", [RANK, OUTER]),
        ("write", [UNION]),
    ]
    assert words(found[0])[0] == "read score > 1: 1. double_rank_over 2.00 s, 2. full_outer_join 3.00 s"
    assert words(found[1]) == ["write: 1. left_join_union_inserts 1.00 s"]


def test_the_source_s_order_is_confirmed_where_it_is_found() -> None:
    assert said({UNION: [1, 1.1], ANTI: [2, 2.1], OUTER: [5, 6]}) == [
        "left_join_union_inserts is fastest, as in the source.",
        "full_outer_join is slowest, as in the source.",
    ]


def test_a_disagreement_is_said_where_no_run_overlaps() -> None:
    assert said({UNION: [3, 3], ANTI: [2, 2.1], OUTER: [1, 1]}) == [
        "Disagrees with the source, which found left_join_union_inserts fastest.",
        "Disagrees with the source, which found full_outer_join slowest.",
    ]


def test_a_table_and_a_picture_are_made(tmp_path: Path) -> None:
    found = rankings(rows({UNION: [1, 2], ANTI: [3, 4]}, query="email LIKE '$9%_x'") + rows({UNION: [1]}, "write", ""))
    console = Console(width=120, record=True, file=(tmp_path / "screen").open("w"))
    console.print(table(found[0]))
    assert "left_join_anti_join" in console.export_text()
    save_chart(found, tmp_path / "new" / "chart.png")
    assert (tmp_path / "new" / "chart.png").read_bytes().startswith(b"\x89PNG")

"""Figures go into their own place of a page, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import freshness, merge_on_read
from benchmarks.cells import Run, right_aligned
from benchmarks.pages import filled, markdown, publish
from engagement_platform_tests.docs.pages import ROOT


def test_figures_replace_those_of_before_and_leave_the_page_as_it_is(tmp_path: Path) -> None:
    table = right_aligned("Seconds", "way", "s")
    table.add_row("merge", "1.5")
    run = Run(tmp_path, {"machine": {"cores": "2"}, "scale": {"rows": "9"}})
    text = markdown(run, [table], ["It is so."])
    assert "machine: cores 2\nscale: rows 9" in text
    assert text.endswith("Seconds:\n\n| way | s |\n| --- | ---: |\n| merge | 1.5 |\n\n- It is so.")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures of x: made by `make x` -->\nold\n<!-- end of figures of x -->\nafter\n")
    for _ in range(2):
        publish("x", "make x", text, run, page)
    said = page.read_text()
    assert said.startswith("before\n<!-- figures")
    assert said.endswith("end of figures of x -->\nafter\n")
    assert (said.count("| merge | 1.5 |"), said.count("old")) == (1, 0)
    assert (tmp_path / "x.md").read_text() == f"{text}\n"
    with pytest.raises(SystemExit, match="no place"):
        publish("y", "make y", text, run, page)


@pytest.mark.parametrize("of", [merge_on_read, freshness], ids=lambda of: of.NAME)
def test_the_page_of_merge_on_read_has_a_place_for_both(of: object) -> None:
    page = (ROOT / "docs" / "merge_on_read.md").read_text()
    assert "measured" in filled(page, of.NAME, of.COMMAND, "measured")  # type: ignore[attr-defined]

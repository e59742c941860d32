"""Figures of a run as Markdown, and as a part of a page that people write: between two marks, copied by nobody.

What the tables say is up to each benchmark.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table as RichTable

from benchmarks.cells import Run

_BEGIN, _END = "<!-- figures of {name}: made by `{command}` -->", "<!-- end of figures of {name} -->"


def add_page_option(parser: argparse.ArgumentParser) -> None:
    """Where figures go beside the run's own folder; not part of what names a run."""
    parser.add_argument(
        "--page", type=Path, help="a page with a place for these figures, such as docs/merge_on_read.md"
    )


def markdown(run: Run, tables: Sequence[RichTable], said: Sequence[str]) -> str:
    """Machine and scale, tables under their titles, and sentences, as Markdown."""
    parts = [f"```text\n{run.told()}\n```", *map(_table, tables), "\n".join(f"- {line}" for line in said)]
    return "\n\n".join(part for part in parts if part)


def publish(name: str, command: str, text: str, run: Run, page: Path | None, picture: str | None = None) -> None:
    """Write the figures beside the run's other results and, where a page is named, into it.

    picture: a file of the run that is copied beside the page, into `images`, for the page to show. Raises SystemExit
    where the page has no place for them; nothing but that place of it is changed.
    """
    (run.folder / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    if page is not None:
        page.write_text(filled(page.read_text(encoding="utf-8"), name, command, text), encoding="utf-8")
        if picture is not None:
            (page.parent / "images").mkdir(exist_ok=True)
            shutil.copyfile(run.folder / picture, page.parent / "images" / picture.replace("_", "-"))


def filled(page: str, name: str, command: str, text: str) -> str:
    """A page with other figures in their place. Raises SystemExit where it has none.

    >>> filled("a\\n<!-- figures of x: made by `y` -->\\nold\\n<!-- end of figures of x -->\\nb", "x", "y", "new")
    'a\\n<!-- figures of x: made by `y` -->\\n\\nnew\\n\\n<!-- end of figures of x -->\\nb'
    """
    before, begin, _, end, after = _parts(page, name, command)
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def figures_in(page: str, name: str, command: str) -> str:
    """The figures that a page has in their place. Raises as `filled`.

    >>> figures_in("a\\n<!-- figures of x: made by `y` -->\\nold\\n<!-- end of figures of x -->\\nb", "x", "y")
    'old'
    """
    return _parts(page, name, command)[2].strip()


def _parts(page: str, name: str, command: str) -> tuple[str, str, str, str, str]:
    begin, end = (mark.format(name=name, command=command) for mark in (_BEGIN, _END))
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"The page has no place for these figures, or two: a line {begin} and a line {end}.")
    before, rest = page.split(begin)
    within, after = rest.split(end)
    return before, begin, within, end, after


def _table(table: RichTable) -> str:
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    head = [str(column.header) for column in table.columns]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *map(list, zip(*columns, strict=True))]
    return f"{table.title}:\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)

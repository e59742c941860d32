"""Measurements that outlive an interruption: a folder for one set of options, and a CSV that grows by one line a cell.

Also what is told about any such run: the machine, how far it is, and its pages. What is measured, and on which tables,
is elsewhere.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

console = Console(width=140, highlight=False)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } caption { font-weight: 600; text-align: left }
th, td { border-bottom: 1px solid #ddd; padding: .3em .7em; text-align: right } th:first-child, td:first-child {
text-align: left }
"""


def machine() -> dict[str, str]:
    """What a figure depends on apart from the code: cores, memory, processor and versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{memory / 2**30:.0f} GB",
        "processor": platform.machine(),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "delta-spark": version("delta-spark"),
        "deltalake": version("deltalake"),
    }


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Where results go; the same for every benchmark that can be resumed."""
    parser.add_argument(
        "--out", type=Path, help=f"folder of results (default artifacts/{name}-KEY; KEY stands for options and machine)"
    )


@dataclass(frozen=True)
class Cell:
    """One measurement: where it belongs, as text, and its figures; None for what an interruption took."""

    key: tuple[str, ...]
    figures: Mapping[str, float | None]


class Cells:
    """Finished cells in a CSV: read when it is opened, one line added as soon as one is measured.

    A line that was cut off when the process ended is dropped. Raises SystemExit when the file has other columns.
    """

    def __init__(self, path: Path, keys: Sequence[str], figures: Sequence[str]) -> None:
        self.path, self.keys, self.names = path, tuple(keys), tuple(figures)
        self._cells: dict[tuple[str, ...], Cell] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.read_bytes() if path.exists() else b""
        kept = whole[: whole.rfind(b"\n") + 1]
        if len(kept) < len(whole):
            path.write_bytes(kept)
        lines = list(csv.reader(io.StringIO(kept.decode())))
        header = [*self.keys, *self.names]
        if not lines:
            self._write(header)
        elif lines[0] != header:
            raise SystemExit(f"{path} has the columns {lines[0]}, not {header}. Move it away, or give another --out.")
        for line in lines[1:]:
            self._keep(line)

    def __contains__(self, key: Sequence[object]) -> bool:
        return tuple(map(str, key)) in self._cells

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells.values())

    def __len__(self) -> int:
        return len(self._cells)

    def add(self, key: Sequence[object], **figures: float | None) -> None:
        """Keep a measurement; one that is there already stays as it is."""
        if key in self:
            return
        line = [*map(str, key), *("" if figures[name] is None else f"{figures[name]:.6g}" for name in self.names)]
        self._write(line)
        self._keep(line)

    def figures(self, name: str, **key: object) -> list[float]:
        """A figure of all cells whose key has these values, in the order of measurement; without the missing ones."""
        wanted = [(self.keys.index(column), str(value)) for column, value in key.items()]
        found = [cell for cell in self if all(cell.key[at] == value for at, value in wanted)]
        return [value for cell in found if (value := cell.figures[name]) is not None]

    def _keep(self, line: Sequence[str]) -> None:
        key, values = tuple(line[: len(self.keys)]), line[len(self.keys) :]
        read = {name: float(value) if value else None for name, value in zip(self.names, values, strict=True)}
        self._cells[key] = Cell(key, read)

    def _write(self, line: Sequence[str]) -> None:
        with self.path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(line)
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True)
class Run:
    """One set of options on one machine: its folder. `tables` is what an interrupted run goes on from."""

    folder: Path
    about: Mapping[str, Mapping[str, str]]

    @property
    def tables(self) -> Path:
        """Tables that rounds start from; removed at the end."""
        return self.folder / "tables"

    def cells(self, name: str, keys: Sequence[str], figures: Sequence[str]) -> Cells:
        """A CSV of this run."""
        return Cells(self.folder / f"{name}.csv", keys, figures)

    def close(self) -> None:
        """Everything is measured: the tables can go."""
        shutil.rmtree(self.tables, ignore_errors=True)

    def told(self) -> str:
        """Machine and scale in a line each."""
        return "\n".join(
            f"{what}: {', '.join(f'{name} {value}' for name, value in of.items())}" for what, of in self.about.items()
        )


def open_run(name: str, options: argparse.Namespace) -> Run:
    """The run of these options on this machine, begun or resumed; prints which.

    Everything in options but `out` decides what is measured. Raises SystemExit when --out holds another run.
    """
    asked = {key: str(value) for key, value in sorted(vars(options).items()) if key != "out"}
    about = {"machine": machine(), "scale": asked}
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]
    folder = options.out or Path("artifacts") / f"{name}-{key}"
    file = folder / "about.json"
    if file.exists() and (there := json.loads(file.read_text())) != about:
        differ = [k for part in about for k in about[part] if about[part][k] != there.get(part, {}).get(k)]
        raise SystemExit(f"{folder} holds measurements with another {', '.join(differ)}. Give another --out.")
    console.print(f"{'Resumed' if file.exists() else 'New'}: {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(about, indent=1) + "\n")
    run = Run(folder.resolve(), about)
    console.print(run.told(), style="dim")
    return run


@dataclass
class Progress:
    """How far a run is, and how long the rest will take at the pace so far."""

    total: int
    done: int = 0
    _began: float = field(default_factory=time.monotonic)
    _first: int = -1

    def __post_init__(self) -> None:
        self._first = self.done

    def step(self, said: str, cells: int = 1) -> None:
        """So many more cells are measured; one line on the screen."""
        self.done += cells
        pace = (time.monotonic() - self._began) / (self.done - self._first)
        left = pace * (self.total - self.done)
        console.print(f"[{self.done:>4}/{self.total}] {said}  (about {left / 60:.1f} min left)", markup=False)


def page(title: str, run: Run, tables: Sequence[RichTable], charts: Sequence[str]) -> str:
    """One HTML page that loads nothing from anywhere: machine and scale, tables, charts (`chart`)."""
    parts = "\n".join([*(_html(table) for table in tables), *charts])
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n<pre>{escape(run.told())}</pre>\n"
        f"{parts}\n</body>\n</html>\n"
    )


def charts(*figures: object) -> list[str]:
    """Plotly figures as HTML; the first one brings plotly.js along."""
    return [
        figure.to_html(  # type: ignore[attr-defined]  # plotly has no types
            full_html=False, include_plotlyjs=n == 0, include_mathjax=False, div_id=f"chart-{n}"
        )
        for n, figure in enumerate(figures)
    ]


def _html(table: RichTable) -> str:
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    head = "".join(f"<th>{escape(str(column.header))}</th>" for column in table.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in zip(*columns, strict=True)
    )
    return f"<table><caption>{escape(str(table.title or ''))}</caption>\n<tr>{head}</tr>\n{rows}</table>"


def right_aligned(title: str, first: str, *columns: str) -> RichTable:
    """A table whose first column is text and whose others are figures."""
    table = RichTable(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    return table

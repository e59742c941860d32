"""What several commands share: options with one meaning everywhere, output, what a job waits for, the wish to stop."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable, Sequence
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engagement_platform.errors import plain

if TYPE_CHECKING:
    from engagement_platform.engine.job import BatchReport, Callbacks


def flag(name: str, text: str) -> Any:
    """An option that takes no value."""
    return typer.Option(name, help=text)


Json = Annotated[bool, flag("--json", "JSON, one object a line, instead of text.")]
Yes = Annotated[bool, flag("--yes", "Do not ask.")]
DryRun = Annotated[bool, flag("--dry-run", "Show what would be done, and do nothing.")]
Finish = Annotated[bool, flag("--finish", "Only finish what was interrupted.")]
UntilIdle = Annotated[bool, flag("--until-idle", "End when nothing is waiting; without it, go on waiting for more.")]
Follow = Annotated[bool, flag("--follow", "Go on until Ctrl-C.")]
TablePath = Annotated[
    str | None,
    typer.Argument(metavar="TABLE|PATH", help="engagement/data, a folder, or a URI. Default: the whole lake."),
]


def subject_id(given: str) -> str:
    """The id as given, or for `-` the next line of standard input: arguments are seen by every user of a machine."""
    if given != "-":
        return given
    # As arguments come: what is no UTF-8 is refused by the rule for ids, too. Without the mark of the byte order that
    # some editors and shells write before a text.
    return sys.stdin.buffer.readline().decode("utf-8-sig", "surrogateescape").rstrip("\r\n")


def print_json(value: object) -> None:
    """One line."""
    typer.echo(json.dumps(value))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; numbers to the right, long texts folded, nothing taken for markup or obeyed."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    shown = [list(row) for row in rows]
    numeric = [all(isinstance(row[at], int | float) or row[at] == "" for row in shown) for at in range(len(columns))]
    heads = zip(columns, numeric, strict=True)
    table = Table(
        *(Column(name, overflow="fold", justify="right" if number else "left") for name, number in heads),
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for row in shown:
        table.add_row(*(value if isinstance(value, Text) else Text(plain(_text(value))) for value in row))
    Console().print(table)


def _text(value: object) -> str:
    """With thousands separators; of a fraction one place, which is enough for seconds."""
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if type(value) is int else str(value)


def print_batches(reports: Iterable[BatchReport], as_json: bool, idle: str) -> None:
    """A line for each batch as it is finished, then that nothing is left."""
    for report in reports:
        if as_json:
            print_json(report.as_json())
            continue
        words = {
            "rows_in": "in",
            "landed": "landed",
            "duplicates": "known",
            "quarantined": "quarantined",
            "files": "files",
        }
        counts = ", ".join(f"{report.counts.get(name, 0):,} {word}" for name, word in words.items())
        resumed = " (resumed)" if report.replayed else ""
        typer.echo(f"{report.manifest}: {counts}, {report.seconds:.1f} s{resumed}")
    if not as_json:
        typer.echo(idle)


def callbacks() -> Callbacks:
    """Print on stderr what a job waits for."""
    from engagement_platform.engine.job import Callbacks

    def waits(why: object) -> None:
        typer.echo(f"Waiting: {why}", err=True)

    return Callbacks(on_wait=lambda _lease, holder: waits(holder), on_blocked=waits)


def stop_signals() -> Event:
    """An event that Ctrl-C, SIGTERM and a closed terminal set."""
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop

"""What a peer is asked for and answers, a line of JSON each way, and the loop that answers in the peer's process.

Runs in environments that have little installed: only the standard library is imported. Asking is `client`'s.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Answer = Mapping[str, float | str]

KEY, VERSION, OP, DELETE = "record_id", "version", "op", "DELETE"
"""Columns of a batch beside those of a row: what is done to it. A null says nothing of its column."""


@dataclass(frozen=True)
class Opened:
    """What a peer is told first."""

    folder: Path
    """Everything it writes is below."""
    jars: tuple[str, ...]
    memory: str
    """Heap of a JVM, in Java's notation."""
    parallelism: int


class Table(Protocol):
    """One table of a peer."""

    def load(self, base: Path) -> None:
        """Make the table with these rows."""

    def apply(self, batch: Path) -> None:
        """Make one batch visible: deletions, updates of the columns that it has words for, and new rows."""

    def read(self) -> int:
        """Read every column of every row as readers do; how many."""

    def compact(self) -> None:
        """Move what is merged in reading into files that need no merging. NotImplementedError where it cannot."""

    def dump(self, out: Path) -> None:
        """All rows as Parquet files in a new folder."""


Open = Callable[[Opened], "Peer"]


class Peer(Protocol):
    """A format that is ready to make tables."""

    versions: Mapping[str, str]

    def table(self, name: str, rows: int) -> Table:
        """A table that is not there yet; rows: about how many it will hold."""


def serve(opening: Open) -> None:
    """Answer line by line until the input ends. Whatever else is printed meanwhile goes to standard error.

    Asked: {"do": "open" | "table" | "load" | "apply" | "read" | "compact" | "dump", …}. Answered: a JSON object, with
    `failed` and nothing else when it went wrong; the peer then answers on.
    """
    # JVMs print what they like to the first descriptor, so the answers get another one.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    desk = _Desk(opening)
    for line in sys.stdin:
        try:
            answer = desk.answer(json.loads(line))
        except Exception as error:  # the asking side decides what is fatal
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Desk:
    """Does what a line asks, with the stopwatch around it."""

    def __init__(self, opening: Open) -> None:
        self._opening = opening
        self._opened: Opened | None = None
        self._peer: Peer | None = None
        self._table: Table | None = None

    def answer(self, asked: Mapping[str, str]) -> Answer:
        what = asked["do"]
        if what == "open":
            self._opened = Opened(
                Path(asked["folder"]), tuple(asked["jars"]), asked["memory"], int(asked["parallelism"])
            )
            self._peer = self._opening(self._opened)
            return dict(self._peer.versions)
        assert self._peer is not None, "`open` comes first"
        if what == "table":
            self._table = self._peer.table(asked["name"], int(asked["rows"]))
            return {}
        assert self._table is not None, "`table` comes first"
        table = self._table
        steps: dict[str, Callable[[], int | None]] = {
            "load": lambda: table.load(Path(asked["path"])),
            "apply": lambda: table.apply(Path(asked["path"])),
            "read": table.read,
            "compact": table.compact,
            "dump": lambda: table.dump(Path(asked["path"])),
        }
        return self._timed(steps[what])

    def _timed(self, step: Callable[[], int | None]) -> Answer:
        assert self._opened is not None
        before = files_in(self._opened.folder)
        began = time.monotonic()
        rows = step()
        seconds = time.monotonic() - began
        answer = {"seconds": seconds, "bytes": written(before, files_in(self._opened.folder))}
        return answer if rows is None else {**answer, "rows": rows}


Files = Mapping[str, tuple[int, int]]


def files_in(folder: Path) -> Files:
    """Path -> bytes and time of change of every file below."""
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            told = Path(at, name).stat()
            found[str(Path(at, name))] = (told.st_size, told.st_mtime_ns)
    return found


def written(before: Files, after: Files) -> int:
    """Bytes of all files that are new or were written anew: log, metadata and check sums included."""
    return sum(told[0] for path, told in after.items() if before.get(path) != told)

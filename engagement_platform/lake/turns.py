"""Lets one process at a time commit to a table on this machine's disk.

Spark puts a commit on a local disk by looking whether the file is there and then renaming: two drivers at one moment
could lose a commit that way, so every writer of the platform takes its turn. On object stores one driver alone writes
(`driver_lease`), and nothing has to wait here.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engagement_platform.errors import PlatformError

PATIENCE_S = 600.0
"""A commit takes seconds, a rewrite of a large table minutes. Who waits longer waits for something that hangs."""

_PAUSE_S = 0.01


class TableBusy(PlatformError):
    """Another process has been writing to a table for longer than anybody should wait."""

    def __init__(self, table: str, waited_s: float) -> None:
        self.table = table
        super().__init__(
            f"Another process has been writing to {table} for {waited_s:.0f} s. Nothing was written; the batch is "
            "finished by the next run. `engagement-platform status` shows who holds a lease; end the run that hangs."
        )


@contextmanager
def turn(root: str, table: str, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold the turn to write a table below `root`; given back at the end, or by the system when this process dies.

    Raises TableBusy after patience_s.
    """
    if "://" in root:
        yield
        return
    lock = Path(root) / "_turns" / f"{table.replace('/', '.')}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - began
                if waited > patience_s:
                    raise TableBusy(table, waited) from None
                time.sleep(_PAUSE_S)
        yield

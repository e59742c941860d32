"""Lets one process at a time commit to a table on this machine's disk.

Spark puts a commit on a local disk by looking whether the file is there and then renaming, so two drivers at one moment
could lose a commit. On object stores one driver alone writes (`driver_lease`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from engagement_platform.engine.durable_files import private_folder
from engagement_platform.errors import PlatformError

PATIENCE_S = 600.0
"""A commit takes seconds, a rewrite of a large table minutes; a longer wait is for something that hangs."""


class TableBusy(PlatformError):
    """Another process has been writing to a table for longer than `PATIENCE_S`."""


@contextmanager
def commit_lock(root: str, table: str, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold the lock of a table below `root`; the system releases it when this process dies. No lock on object stores.

    Raises TableBusy after patience_s.
    """
    if "://" in root:
        yield
        return
    path = Path(root) / "_locks" / f"{table.replace('/', '.')}.lock"
    private_folder(path.parent)
    lock = FileLock(path, timeout=patience_s, poll_interval=0.01)
    try:
        lock.acquire()
    except Timeout:
        raise TableBusy(
            f"Another process has been writing to {table} for {patience_s:.0f} s. Nothing was written, and the next "
            "run finishes the batch. `engagement-platform status` shows who holds a lease; end the run that hangs."
        ) from None
    try:
        yield
    finally:
        lock.release()

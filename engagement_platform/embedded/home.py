"""The folder all local state lives in, and the lock that keeps a second `up` out of it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engagement_platform.errors import PlatformError

# What an ended process leaves behind is gone after the reaper's grace; a little more than that is waited for it.
LEFTOVERS_S = 10.0


class HomeInUse(PlatformError):
    """Another process keeps services running on this home folder."""

    def __init__(self, home: Path, pid: int | None) -> None:
        self.home, self.pid = home, pid
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"Nothing was started: {who} already runs services on {home}. Stop it with Ctrl-C in its terminal, or set "
            "ENGAGEMENT_PLATFORM_HOME to another folder."
        )


@contextmanager
def locked_home(home: Path) -> Iterator[int]:
    """Hold `home` alone; yields the descriptor of the lock, which children's keepers may hold on to.

    When the last owner is gone but what it started is still being ended, waits for that. Raises HomeInUse.
    """
    home.mkdir(parents=True, exist_ok=True)
    lock = os.open(home / "embedded.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + LEFTOVERS_S
        while not _try_lock(lock):
            owner = _owner(lock)
            if _runs(owner) or time.monotonic() > deadline:
                raise HomeInUse(home, owner)
            time.sleep(0.1)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield lock
    finally:
        os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(lock: int) -> int | None:
    text = os.pread(lock, 32, 0)
    return int(text) if text.isdigit() else None


def _runs(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

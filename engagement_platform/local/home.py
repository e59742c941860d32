"""The lock that keeps a second `up` out of the folder of all local state."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engagement_platform.engine.durable_files import private_folder
from engagement_platform.errors import PlatformError

# What an ended process leaves behind is gone after the reaper's grace; a little more than that is waited for it.
LEFTOVERS_S = 10.0


class HomeInUse(PlatformError):
    """Another process keeps services running on this home folder."""


@contextmanager
def locked_home(home: Path) -> Iterator[int]:
    """Hold `home` alone; yields the lock's descriptor, which the reaper holds on to until all children are gone.

    When the last owner is gone but its children are still being ended, waits for that. Raises HomeInUse.
    """
    try:
        private_folder(home)
        lock = os.open(home / "embedded.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _refused(home, error) from None
    try:
        deadline = time.monotonic() + LEFTOVERS_S
        while not _locked(lock):
            owner = os.pread(lock, 32, 0).decode()
            if _runs(owner) or time.monotonic() > deadline:
                raise HomeInUse(
                    f"Nothing was started: process {owner} already runs services on {home}. Stop "
                    "it with Ctrl-C in its terminal, or set ENGAGEMENT_PLATFORM_HOME to another folder."
                )
            time.sleep(0.1)
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        except OSError as error:
            # Such as of a disk that is full.
            raise _refused(home, error) from None
        yield lock
    finally:
        os.close(lock)


def _refused(home: Path, error: OSError) -> PlatformError:
    return PlatformError(
        f"{home} cannot hold local state: {error.strerror}. Set ENGAGEMENT_PLATFORM_HOME to a folder of yours."
    )


def _locked(lock: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _runs(pid: str) -> bool:
    with suppress(ProcessLookupError, ValueError):
        os.kill(int(pid), 0)
        return True
    return False

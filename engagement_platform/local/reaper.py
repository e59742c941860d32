"""Outlives the process that started it and ends what that one left behind; run as a program, stdlib only.

Reads lines `+<process group>` and `-<process group>` from the pipe whose number is its first argument. The pipe closes
when its owner is gone, kill -9 included; every group still on the list is then asked to end, and made to.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
GRACE_S = 5.0


def send(groups: Iterable[int], number: int) -> set[int]:
    """Signal every group; returns those that still exist."""
    found = set()
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            found.add(group)
    return found


def living(groups: Iterable[int]) -> set[int]:
    """Those groups in which something still runs.

    Signal 0 also reaches processes that ended and were not collected yet; /proc, where there is one, tells them apart.
    """
    left = send(groups, 0)
    if not left or not PROC.is_dir():
        return left
    running = set()
    for stat in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Source: proc(5). The name, in brackets, may hold anything; after it come state, parent and group.
            state, _parent, group, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
            running |= {int(group)} if state not in "ZX" else set()
    return left & running


def main() -> None:
    """Follow the pipe to its end, then SIGTERM, up to GRACE_S seconds of patience, SIGKILL."""
    # A terminal or a session's end sends these too, and this process must see its owner's end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    with os.fdopen(int(sys.argv[1]), "r") as lines:
        for line in lines:
            (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    left = send(groups, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = living(left)
    send(left, signal.SIGKILL)


if __name__ == "__main__":
    main()

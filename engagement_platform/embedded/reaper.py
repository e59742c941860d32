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
from collections.abc import Iterable, Iterator
from pathlib import Path

PROC = Path("/proc")
GRACE_S = 5.0


def watch(pipe: int) -> set[int]:
    """Follow the pipe to its end; the process groups that are on the list then."""
    groups: set[int] = set()
    with os.fdopen(pipe, "r") as lines:
        for line in lines:
            (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    return groups


def send(groups: Iterable[int], number: int) -> set[int]:
    """Signal every group; those that still exist."""
    alive = set()
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            alive.add(group)
    return alive


def living(groups: Iterable[int]) -> set[int]:
    """Those groups in which something still runs.

    Signal 0 alone does not tell: it also reaches processes that ended and were not collected, which may take their
    adoptive parent long. Where there is no /proc it has to do.
    """
    left = send(groups, 0)
    if not left or not PROC.is_dir():
        return left
    return left & {group for group, state in _processes() if state not in "ZX"}


def _processes() -> Iterator[tuple[int, str]]:
    """Process group and state of every process."""
    for stat in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Source: proc(5). The name, in brackets, may hold anything; after it come state, parent and group.
            state, _parent, group, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
            yield int(group), state


def end(groups: set[int], grace_s: float = GRACE_S) -> None:
    """SIGTERM, up to `grace_s` seconds of patience, SIGKILL."""
    left = send(groups, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = living(left)
    send(left, signal.SIGKILL)


def main() -> None:
    """Ignore what a terminal or a session's end sends: this process must see its owner's end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end(watch(int(sys.argv[1])))


if __name__ == "__main__":
    main()

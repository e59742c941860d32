"""Who holds a lease: one process, distinct from a later one with the same pid, and whether it still runs.

What is done with that is `lease`.
"""

from __future__ import annotations

import os
import pwd
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Owner:
    """One process. `start` is its start time in clock ticks since boot, "0" where the system does not report it."""

    host: str
    pid: int
    start: str
    place: str
    """Machine, boot and pid namespace: only processes of the same place can see whether each other live."""

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.start}"


def this_process() -> Owner:
    """The running process; asked anew each time, because a fork changes the answer."""
    pid = os.getpid()
    return Owner(socket.gethostname(), pid, _start(pid) or "0", _place())


def this_user() -> str:
    """Whose rights the process has, user@host; no variable of the environment changes the answer."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return f"{user}@{socket.gethostname()}"


def is_gone(owner: str, place: str) -> bool:
    """True when the process that calls itself `owner` certainly no longer runs; False when it does or nobody can say.

    A zombie is gone: it was killed, and only its parent has not looked yet. A pid that another process has taken
    since has another start time.
    """
    if place != _place():
        return False
    _, pid_text, start = owner.rsplit(":", 2)
    pid = int(pid_text)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # Another user's process; with hidepid its /proc entry may not be seen either.
        return (now := _start(pid)) is not None and start not in ("0", now)
    if not _PROC.joinpath("self", "stat").exists():
        return False
    return (now := _start(pid)) is None or start not in ("0", now)


def _start(pid: int) -> str | None:
    """Start time of a living process, None when there is none (or it is a zombie, or the system does not report it)."""
    try:
        stat = _PROC.joinpath(str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses; state is the 3rd field, start time the 22nd.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def _place() -> str:
    return "|".join((socket.gethostname(), _boot_id(), _pid_namespace()))


def _boot_id() -> str:
    try:
        return _PROC.joinpath("sys", "kernel", "random", "boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "?"


def _pid_namespace() -> str:
    try:
        return str(_PROC.joinpath("self", "ns", "pid").readlink())
    except OSError:
        return "?"

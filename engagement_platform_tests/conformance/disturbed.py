"""Runs a program and disturbs it once, at a crash point: python -m … POINT FAULT MODULE ARGUMENT…

FAULT: `kill` ends the process with SIGKILL, `raise` raises in it, `stop` stops it with SIGSTOP until it gets SIGCONT;
`none` prints the points that it passes, in a line each after `point: ` and the seconds of a clock that all processes of
the machine have.
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import sys
import time
from contextlib import nullcontext

from engagement_platform.lake.commit_lock import commit_lock
from engagement_platform_tests.conformance.passed import TRANSACTION, replace, watch

_PRINTED = re.compile(r"^point: (\S+) (.+)\n", re.MULTILINE)


class Crash(Exception):
    """Ends a run in the middle."""


def points(errors: str) -> list[str]:
    """The points that a program printed, in their order."""
    return [name for _, name in _PRINTED.findall(errors)]


def times(errors: str) -> list[float]:
    """When it passed them."""
    return [float(at) for at, _ in _PRINTED.findall(errors)]


def without_points(errors: str) -> str:
    """What a program printed beside its points."""
    return _PRINTED.sub("", errors)


def main(point: str, fault: str, module: str, *arguments: str) -> None:
    """Does not return where the program ends otherwise than with status 0."""

    def observe(passed: str) -> None:
        if fault == "none":
            # In one piece: threads that write tables at once pass points at once.
            os.write(sys.stderr.fileno(), f"point: {time.monotonic():.3f} {passed}\n".encode())
        elif passed == point and fault == "raise":
            raise Crash(point)
        elif passed == point and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif passed == point:
            # Not while a lease is kept alive in another thread, or nobody could do anything until it is woken up.
            with TRANSACTION:
                os.kill(os.getpid(), signal.SIGSTOP)

    if module == "engagement_platform.cli":
        import engagement_platform.cli  # noqa: F401
    watch(observe)
    if fault == "stop":
        # As on an object store, where writers of a table take no lock that a sleeper could keep.
        replace(commit_lock, lambda *_: nullcontext())
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

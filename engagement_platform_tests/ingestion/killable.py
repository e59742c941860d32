"""Runs a job in this process and ends it with SIGKILL at a point: python -m … JOB [POINT [--new]]. For crash tests.

--new: in a batch that this process has begun, not in one that it finishes. Without a point it prints those it passes.
"""

from __future__ import annotations

import os
import signal
import sys

from engagement_platform.engine.job import Callbacks
from engagement_platform.pipelines.jobs import run_job
from engagement_platform.settings import Settings


def main(job: str, point: str | None = None, new: str | None = None) -> None:
    """Never returns when the batch passes the point."""
    begun = new is None

    def observe(passed: str) -> None:
        nonlocal begun
        if point is None:
            print(passed, flush=True)
        begun = begun or passed == "manifest:before"
        if begun and passed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in run_job(job, Settings(), until_idle=True, callbacks=Callbacks(observe=observe)):
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])

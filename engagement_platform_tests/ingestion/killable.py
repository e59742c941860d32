"""Runs a job in this process and ends it with SIGKILL at a point: python -m … JOB POINT. For crash tests."""

from __future__ import annotations

import os
import signal
import sys

from engagement_platform.jobs import run_job
from engagement_platform.microbatch.job import Told
from engagement_platform.settings import Settings


def main(job: str, point: str) -> None:
    """Never returns when the batch passes the point."""

    def observe(passed: str) -> None:
        if passed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in run_job(job, Settings(), until_idle=True, told=Told(observe=observe)):
        pass


if __name__ == "__main__":
    main(*sys.argv[1:3])

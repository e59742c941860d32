"""Ingests game events in this process and ends it with SIGKILL at a point: python -m … POINT. For crash tests."""

from __future__ import annotations

import os
import signal
import sys

from engagement_platform.engine.drain import drain
from engagement_platform.engine.job import Callbacks
from engagement_platform.pipelines.jobs import open_job
from engagement_platform.settings import Settings
from engagement_platform_tests.pipelines.games.conftest import AT_ONCE


def main(point: str) -> None:
    """Never returns when the batch passes the point."""

    def observe(passed: str) -> None:
        if passed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    with open_job("ingest-game-events", Settings(), Callbacks(observe=observe)) as job:
        for _ in drain(job, AT_ONCE):
            pass


if __name__ == "__main__":
    main(sys.argv[1])

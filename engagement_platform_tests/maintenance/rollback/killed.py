"""Restores in this process and ends it with SIGKILL at a point: python -m … TABLE VERSION POINT. For crash tests."""

from __future__ import annotations

import os
import signal
import sys

from engagement_platform.engine.job import Callbacks
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import spark_session
from engagement_platform.maintenance.rollback.job import Restoring
from engagement_platform.maintenance.rollback.plan import Asked
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import Settings


def main(table: str, version: str, point: str) -> None:
    """Never returns when the restore passes the point."""

    def observe(passed: str) -> None:
        if passed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    settings = Settings()
    with spark_session(settings, "restore") as spark:
        restoring = Restoring(Lake(spark, settings), open_stores(settings), Callbacks(observe=observe))
        restoring.run(Asked(table, int(version), by="ann@here"))


if __name__ == "__main__":
    main(*sys.argv[1:4])

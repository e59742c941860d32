"""Erases the planted person in this process and ends it with SIGKILL at a point: python -m … HOME POINT."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from engagement_platform.engine.job import Callbacks
from engagement_platform.erasing.job import Eraser
from engagement_platform.erasing.subject_lookup import SubjectIds
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import LayoutSettings, Settings
from engagement_platform_tests.erasing.planted import BOB


def main(home: str, point: str) -> None:
    """Never returns when the erasure passes the point."""

    def observe(passed: str) -> None:
        if passed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    settings = Settings(home=Path(home), layout=LayoutSettings(auto_compact=False))
    Eraser(settings, open_stores(settings), Callbacks(observe=observe)).run("ref", SubjectIds.of(BOB))


if __name__ == "__main__":
    main(*sys.argv[1:3])

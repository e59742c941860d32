"""Migrates in this process and ends it with SIGKILL: python -m … LAYOUT POINT. For crash tests.

POINT is one that a migration tells of, or `writing`: as soon as a file of the new layout is there; or `checked`, where
it stops with SIGSTOP instead: between the check of its leases and its write.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

from engagement_platform.engine.job import Callbacks
from engagement_platform.lake import driver_lease, repartition
from engagement_platform.lake.engagement import data_table
from engagement_platform.maintenance.layout.migrate import migrate
from engagement_platform.settings import LayoutScheme, Settings


def main(wanted: LayoutScheme, point: str) -> None:
    """Never returns when the migration passes the point."""
    settings = Settings()
    data = data_table(wanted)
    folder = Path(data.uri(settings.lake))
    known = set(folder.rglob("*.parquet"))

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def watch() -> None:
        while not set(folder.rglob("*.parquet")) - known:
            time.sleep(0.005)
        die()

    def observe(passed: str) -> None:
        if passed == point:
            die()
        if point == "writing" and passed == "leased":
            threading.Thread(target=watch, daemon=True).start()

    if point == "checked":
        # As on an object store, where writers take no lock. And the last of the checks that precede the write.
        vars(repartition)["commit_lock"] = lambda *_: nullcontext()
        driver_lease.check = lambda root: os.kill(os.getpid(), signal.SIGSTOP)
    migrate(settings, data.name, wanted, Callbacks(observe=observe))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])  # type: ignore[arg-type]

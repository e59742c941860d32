"""Runs the chain in this process and ends it with SIGKILL: python -m … POINT. For crash tests.

POINT is the name of a hop: killed once it is done, before the next one begins; or `committed HOP`: killed as soon as
the table's log has a new version, which is before the hop's own checkpoint says so.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from engagement_platform.lake import log
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.session import spark_session
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.pipelines.page_views.job import HOPS, PAGE_VIEWS, run_hop
from engagement_platform.settings import Settings


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(point: str) -> None:
    """Never returns when the chain passes the point."""
    settings = Settings()
    kind, _, committed = point.rpartition(" ")
    if kind:
        [uri] = [hop.table.uri(settings.lake) for hop in HOPS if hop.name == committed]
        threading.Thread(target=_die_after_a_commit, args=(uri,), daemon=True).start()
    with spark_session(settings, PAGE_VIEWS) as spark:
        lake, stores = Lake(spark, settings), open_stores(settings)
        rows = 1
        while rows:
            rows = 0
            for hop in HOPS:
                rows += run_hop(hop, lake, stores).rows_in
                if hop.name == point:
                    die()


def _die_after_a_commit(uri: str) -> None:
    before = log.newest_entry(uri)
    # A table that is not there yet is made by its version 0.
    while (now := log.newest_entry(uri)) is None or now in {0, before}:
        # Seldom enough to leave the processor to the stream; its own checkpoint follows a second or so later.
        time.sleep(0.02)
    die()


if __name__ == "__main__":
    main(sys.argv[1])

"""OPTIMIZE beside a writer of another house, which takes no lock: real commits in the middle of attempts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.maintenance.layout.optimize import Done
from engagement_platform.maintenance.layout.plan import Left
from engagement_platform.settings import MaintenanceSettings
from engagement_platform_tests.maintenance.layout.seeded import SeededLake

ATTEMPTS = 3
ROW = "e-3-1"


class Meddler:
    """Raises the version of one row again and again, a file and a commit each time, until it is stopped."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.commits = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._meddle)
        self._thread.start()

    def _meddle(self) -> None:
        while not self._stopped.wait(0.05):
            DeltaTable(self.uri).update({"version": "version + 1"}, predicate=f"engagement_id = '{ROW}'")
            self.commits += 1

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a commit of a small file took more than 60 s"


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> SeededLake:
    """Twelve small files of one organization."""
    upkeep = MaintenanceSettings(attempts=ATTEMPTS, backoff=timedelta(milliseconds=10))
    lake = SeededLake(tmp_path, upkeep, spark=spark)
    lake.engagements("org-1", 12)
    return lake


def versions(lake: SeededLake) -> dict[str, int]:
    rows = DeltaTable(lake.uri()).to_pyarrow_table(columns=["engagement_id", "version"])
    assert rows.num_rows == 12 * 4
    return {row["engagement_id"]: row["version"] for row in rows.to_pylist()}


def after(calls: int, act: Callable[[], None]) -> Callable[[float], None]:
    """A pause that acts when it is called for this time."""
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == calls:
            act()

    return pause


def test_a_slice_is_tried_again_until_nobody_took_its_files_away(lake: SeededLake) -> None:
    before = versions(lake)
    with closing(Meddler(lake.uri())) as ceaseless:
        [left] = lake.optimize()
    assert isinstance(left, Left)
    assert left.why.startswith(f"tried {ATTEMPTS} times: Files of engagement/data in organization_id=org-1 changed")
    assert not left.failed, "a conflict fails no run"
    assert versions(lake) == {**before, ROW: before[ROW] + ceaseless.commits}, "of no commit was anything lost"

    with closing(Meddler(lake.uri())) as meddler:
        [done] = lake.optimize(sleep=after(ATTEMPTS - 1, meddler.close))
    assert isinstance(done, Done)
    assert (done.attempts, lake.files()) == (ATTEMPTS, 1)
    assert versions(lake) == {**before, ROW: before[ROW] + ceaseless.commits + meddler.commits}

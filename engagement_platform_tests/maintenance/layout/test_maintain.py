"""Maintenance of mutable tables gives way: to who holds the lease, who waits for it, and unfinished batches."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import func, select

from engagement_platform.engine.database import reading
from engagement_platform.engine.lease import Holder
from engagement_platform.engine.model import Manifest
from engagement_platform.engine.schema import LEASE_WAITER
from engagement_platform.maintenance.layout.optimize import Asked, Callbacks, Done
from engagement_platform.maintenance.layout.plan import Left, Slice
from engagement_platform_tests.maintenance.layout.seeded import NOW, SeededLake, leased, partitions

SOON = 120.0
"""Seconds after which something hangs; the first OPTIMIZE of a session took 21 s on two busy cores."""


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> SeededLake:
    return SeededLake(tmp_path, spark=spark)


def waiters(lake: SeededLake) -> int:
    with reading(lake.stores.leases.engine) as connection:
        return int(connection.execute(select(func.count()).select_from(LEASE_WAITER)).scalar_one())


def test_who_waits_for_the_lease_gets_it_between_two_slices(lake: SeededLake) -> None:
    for name in ("org-1", "org-2", "org-3"):
        lake.engagements(name, 12)
    order: list[str] = []

    def write() -> None:
        with leased(lake.stores, "engagement/data", "apply-mutations"):
            order.append("mutation")

    writer = threading.Thread(target=write)

    def during(one: Slice) -> None:
        order.append(one.partition)
        if len(order) == 1:
            writer.start()
            ends = time.monotonic() + SOON
            while waiters(lake) != 1:
                assert time.monotonic() < ends, f"the mutation did not wait for the lease within {SOON} s"
                time.sleep(0.01)

    done = lake.optimize(callbacks=Callbacks(on_slice=during))
    writer.join(SOON)
    assert order[1] == "mutation"
    assert [type(one) for one in done] == [Done] * 3


def test_a_table_that_is_being_written_is_left_when_the_time_is_over(lake: SeededLake) -> None:
    lake.engagements("org-1", 40)
    lake.engagements("org-2", 30)
    lake.notifications("org-1", 12)
    said: list[Holder] = []
    with leased(lake.stores, "engagement/data", "apply-mutations"):
        outcomes = lake.optimize(
            Asked(budget=timedelta(seconds=7)), Callbacks(on_wait=lambda _slice, holder: said.append(holder))
        )
    done, *left = outcomes
    assert isinstance(done, Done), "appends need no lease, so this did not wait"
    assert done.slice.table.name == "engagement/notification", "though more was to be gained by the others"
    assert partitions(left) == ["organization_id=org-1", "organization_id=org-2"]
    assert all(isinstance(one, Left) and "(apply-mutations) holds table/engagement/data" in one.why for one in left)
    assert [holder.purpose for holder in said] == ["apply-mutations"], "told once"
    assert waiters(lake) == 0


def test_a_table_in_the_middle_of_somebodys_batch_is_left_alone(lake: SeededLake) -> None:
    lake.engagements("org-1", 12)
    app_id = lake.stores.checkpoints.app_id("apply-mutations")
    manifest = Manifest("apply-mutations", app_id, 0, {}, {}, NOW, {"engagement/data": 3})
    lake.stores.checkpoints.begin(manifest)
    [left] = lake.optimize()
    assert isinstance(left, Left)
    assert left.why == "apply-mutations batch 0 is unfinished and comes first"
    lake.stores.checkpoints.succeed(manifest, {})
    assert [type(one) for one in lake.optimize()] == [Done]

"""A restore that slept past its leases changes nothing after another run has finished it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from engagement_platform.engine.database import writing
from engagement_platform.engine.job import Callbacks
from engagement_platform.engine.lease import LeaseLost
from engagement_platform.engine.schema import LEASE
from engagement_platform.lake.engagement import ALIAS
from engagement_platform.maintenance.rollback.job import Restoring
from engagement_platform.maintenance.rollback.plan import Asked
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.maintenance.rollback.filled import JOBS, Filled, versions

pytestmark = [pytest.mark.broker]

WAIT_S = 300


@pytest.mark.slow
@pytest.mark.parametrize("point", ["restore.data:before", "restore.alias:before", "audit.append:before"])
def test_a_restore_that_slept_changes_nothing_after_its_successor(own: World, filled: Filled, point: str) -> None:
    reached, go = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    def sleep(passed: str) -> None:
        if passed == point:
            reached.set()
            assert go.wait(WAIT_S), "nobody woke it"

    def run() -> None:
        try:
            sleeper = Restoring(own.lake, own.stores, Callbacks(observe=sleep), own.clock)
            sleeper.run(Asked(ALIAS.name, filled.between[ALIAS.name], by="ann@here"))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert reached.wait(WAIT_S), f"it never reached {point}: {ended}"
        with writing(own.stores.leases.engine, "test") as connection:
            connection.execute(LEASE.update().values(expires_ts=datetime(2020, 1, 1, tzinfo=UTC)))
        report = Restoring(own.lake, own.stores, Callbacks(), own.clock).run(None)
        assert report is not None
        assert report.replayed
        for job in JOBS:
            own.run(name=job)
        after = versions(own)
    finally:
        go.set()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    assert [type(error) for error in ended] == [LeaseLost]
    assert versions(own) == after

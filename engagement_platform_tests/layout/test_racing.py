"""OPTIMIZE beside a real ingestion and a real mutation job, all at once: nothing is lost, and nobody fails."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import SparkSession

from engagement_platform.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.layout.maintain import Asked, Outcome, Run, planned
from engagement_platform.layout.optimize import Done, Tools
from engagement_platform.mutation.job import APPLY_MUTATIONS
from engagement_platform.settings import BatchSettings
from engagement_platform_tests.ingestion.conftest import MakeWorld, make_world
from engagement_platform_tests.ingestion.oracle import engagement
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.layout.seeded import no_spark

__all__ = ["make_world"]

pytestmark = [pytest.mark.broker]

ORGANIZATIONS = ("org-1", "Org 2")
ENGAGEMENTS, REQUESTS = 36, 10


def messages() -> list[dict[str, Any] | None]:
    return [
        engagement(
            ORGANIZATIONS[i % 2],
            f"e-{i}",
            engagement_ts=f"2026-11-{1 + i % 18:02}T10:00:00Z",
            person_id=f"p-{i % 7}",
            person_name=f"Ann {i}",
        )
        for i in range(ENGAGEMENTS)
    ]


def requests() -> list[dict[str, Any] | None]:
    return [
        {
            "request_id": f"r-{i}",
            "organization_id": ORGANIZATIONS[i % 2],
            "operation": "DELETE" if i % 5 == 4 else "CONVERT",
            "from_id": f"p-{i % 7}",
            "to_id": None if i % 5 == 4 else f"q-{i}",
            "execution_ts": f"2026-11-20T{i:02}:00:00Z",
        }
        for i in range(REQUESTS)
    ]


def filled(make_world: MakeWorld) -> World:
    world: World = make_world(batch=BatchSettings(max_records=6), ticks=True)
    world.produce(messages())
    world.produce_requests(requests())
    return world


def rows(world: World) -> list[str]:
    """What readers see, batches aside."""
    return sorted(repr({**row, "batch_id": None}) for row in world.current())


def mutate(world: World) -> None:
    """Requests in batches, applied while more of them land."""
    world.run(name=INGEST_MUTATION_REQUESTS)
    world.run(name=APPLY_MUTATIONS)


def test_optimize_an_ingestion_and_a_mutation_race_and_nothing_is_lost(
    make_world: MakeWorld, spark: SparkSession
) -> None:
    calm, busy = filled(make_world), filled(make_world)
    calm.run(name=INGEST_ENGAGEMENTS)
    mutate(calm)

    outcomes: list[Outcome] = []
    settled = threading.Event()

    def look_after() -> None:
        while True:
            last = settled.is_set()
            run = Run(busy.settings, busy.stores, Tools(busy.settings.maintenance, no_spark))
            outcomes.extend(run.do(planned(busy.settings, Asked())))
            if last:
                return

    # Sessions of their own, as runs have: a session's transaction ids are its configuration.
    ingesting, mutating = (busy.under(spark=spark.newSession()) for _ in range(2))
    with ThreadPoolExecutor(3) as pool:
        upkeep = pool.submit(look_after)
        jobs: list[Future[object]] = [
            pool.submit(ingesting.run, name=INGEST_ENGAGEMENTS),
            pool.submit(mutate, mutating),
        ]
        try:
            for job in jobs:
                job.result(timeout=240)
        finally:
            settled.set()
        upkeep.result(timeout=60)

    assert rows(busy) == rows(calm)
    assert not [one for one in outcomes if not isinstance(one, Done) and one.failed]
    by_table = {one.slice.place.name for one in outcomes if isinstance(one, Done)}
    assert {"engagement/data", "engagement/notification"} <= by_table

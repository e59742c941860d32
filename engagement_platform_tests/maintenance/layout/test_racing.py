"""OPTIMIZE beside a real ingestion and a real mutation job, all at once: nothing is lost, and nobody fails."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial
from itertools import islice

import pytest
from pyspark.sql import SparkSession

from engagement_platform.engine.drain import DrainPolicy, drain
from engagement_platform.local.traffic import Message, Traffic
from engagement_platform.maintenance.layout.optimize import Asked, Done, Outcome, Run, planned
from engagement_platform.maintenance.verify.identity import identity_findings
from engagement_platform.maintenance.verify.messages import verify
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import BatchSettings, MaintenanceSettings, StoreSettings, TrafficSettings
from engagement_platform_tests.ingestion.conftest import MakeWorld, make_world
from engagement_platform_tests.ingestion.world import NOW, World

__all__ = ["make_world"]

pytestmark = [pytest.mark.broker]

RACE = timedelta(minutes=10)
MESSAGES_PER_S = 250
"""Engagements and a fifth as many requests; more than a run of either job needs to be busy most of the time."""
JOBS = (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS)
A_RUN = DrainPolicy(idle_timeout=timedelta(0), max_duration=timedelta(seconds=20))
"""Something always waits, so a run that went on until nothing does would be the only one."""


def rows(world: World) -> list[str]:
    """What readers see, batches aside."""
    return sorted(repr({**row, "batch_id": None}) for row in world.current())


class Race:
    """Traffic, each job and OPTIMIZE, each in a thread of its own, until the time is over or one of them fails."""

    def __init__(self, world: World, spark: SparkSession) -> None:
        self.world, self.spark = world, spark
        self.sent: list[Message] = []
        self.outcomes: list[Outcome] = []
        self.runs: Counter[str] = Counter()
        """Runs of the race that did something, by what was run; their batches."""
        self.batches: Counter[str] = Counter()
        self._over = threading.Event()
        shares = TrafficSettings(organizations=6, persons_per_organization=40, update_share=0.1, duplicate_share=0.05)
        self._traffic = Traffic(shares, start=NOW).messages()

    def run(self, duration: timedelta) -> None:
        """Race for so long; raises what any of them raised."""
        # Each in a session of its own.
        worlds = {name: self.world.under(spark=self.spark.newSession()) for name in JOBS}
        jobs = [partial(self.job, name, own) for name, own in worlds.items()]
        parties: list[Callable[[], None]] = [self.produce, *jobs, partial(self.optimize, self.spark.newSession())]
        with ThreadPoolExecutor(len(parties)) as pool:
            racing: list[Future[None]] = [pool.submit(self._again_and_again, party) for party in parties]
            wait(racing, duration.total_seconds(), FIRST_EXCEPTION)
            self._over.set()
        for party in racing:
            party.result()

    def finish(self) -> None:
        """All that was sent."""
        for name in JOBS:
            self.world.run(name=name)

    def _again_and_again(self, act: Callable[[], object]) -> None:
        while not self._over.is_set():
            act()

    def produce(self) -> None:
        """A second of messages, in a second."""
        began = time.monotonic()
        some = list(islice(self._traffic, MESSAGES_PER_S))
        send(self.world, some)
        self.sent += some
        self._over.wait(max(0.0, began + 1 - time.monotonic()))

    def job(self, name: str, own: World) -> None:
        """One run."""
        done = len(list(drain(own.job(name=name), A_RUN)))
        self.batches[name] += done
        self.runs[name] += done > 0
        if not done:
            self._over.wait(0.5)

    def optimize(self, session: SparkSession) -> None:
        """One run."""
        upkeep = MaintenanceSettings(budget=timedelta(seconds=20))
        here = self.world.settings.model_copy(update={"maintenance": upkeep})
        outcomes = list(Run(here, self.world.stores, lambda: session).do(planned(here, Asked())))
        self.outcomes += outcomes
        self.runs["OPTIMIZE"] += any(isinstance(one, Done) for one in outcomes)

    def told(self) -> str:
        """What happened, in figures."""
        done = [one for one in self.outcomes if isinstance(one, Done)]
        whys = (one.why for one in self.outcomes if not isinstance(one, Done))
        left = Counter("somebody else held the table" if " holds " in why else why for why in whys)
        figures = {
            "messages": len(self.sent),
            "runs": dict(self.runs),
            "batches": dict(self.batches),
            "slices done": dict(Counter(one.slice.table.name for one in done)),
            "slices that were tried more than once": sum(one.attempts > 1 for one in done),
            "conflicts that were tried again": sum(one.attempts - 1 for one in done),
            "files removed": sum(len(one.rewritten.removed) for one in done),
            "files added": sum(len(one.rewritten.added) for one in done),
            "longest slice, s": round(max(one.seconds for one in done), 1),
            "slices left": dict(left),
        }
        return "\n".join(f"{name}: {figure}" for name, figure in figures.items())


def send(world: World, some: list[Message]) -> None:
    """Messages in their order, on the one partition of each topic."""
    for kind, topic in zip(("engagements", "mutation-requests"), world.topics, strict=True):
        world.broker.produce(topic, [(0, m.key, m.value) for m in some if m.kind == kind])


@pytest.mark.slow
@pytest.mark.timeout(int(RACE.total_seconds()) + 1800)
def test_ten_minutes_of_load_beside_optimize_lose_nothing_and_fail_no_run(
    make_world: MakeWorld, spark: SparkSession
) -> None:
    # On two cores a run of Spark's OPTIMIZE may hold a lease for longer than the tests' short wait.
    busy: World = make_world(batch=BatchSettings(max_records=1000), ticks=True, lease_wait=StoreSettings().lease_wait)
    race = Race(busy, spark)
    race.run(RACE)
    for name in (*JOBS, "OPTIMIZE"):
        assert race.runs[name] > 1, f"{name} did not take part: {race.runs}"
    race.finish()

    assert not [one for one in race.outcomes if not isinstance(one, Done) and one.failed]
    findings = [*verify(busy.settings, spark), *identity_findings(busy.settings, spark)]
    assert {finding.check: finding.examples for finding in findings if finding.wrong} == {}
    assert {"lost", "doubled", "announced", "identity", "names", "contents"} <= {f.check for f in findings}

    calm: World = make_world(ticks=True)
    send(calm, race.sent)
    Race(calm, spark).finish()
    assert rows(busy) == rows(calm)
    done = {o.slice.table.name for o in race.outcomes if isinstance(o, Done)}
    assert done >= {"engagement/data", "engagement/notification"}, f"{done}, {race.outcomes[:3]}"
    print(f"{race.told()}\nrows that readers see: {len(rows(calm))}")

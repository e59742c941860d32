"""Whenever requests are read: those that were on time when they were produced count, and what they need is there."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.ingestion.world import NOW, World
from engagement_platform_tests.pipelines.mutations.histories import Message, convert, delete, engagement
from engagement_platform_tests.pipelines.mutations.oracle import replay
from engagement_platform_tests.pipelines.mutations.test_histories import standing_rows

pytestmark = [pytest.mark.broker]

START = datetime(2024, 3, 1, tzinfo=UTC)
"""Long ago: a broker takes no timestamps that are ahead of its clock."""


def day(number: float) -> datetime:
    return START + timedelta(days=number)


def of(number: float, message: Message) -> Message:
    """A message that happened on that day."""
    return {**message, "execution_ts" if "request_id" in message else "engagement_ts": day(number).isoformat()}


def read_on(world: World, number: float) -> None:
    """It is that day, and everything on the topics is read and applied."""
    world.later = day(number) - NOW
    for job in (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS):
        world.run(name=job)


def held(world: World) -> set[str]:
    """Engagements whose content the Data Table has, hidden ones too."""
    rows = world.rows(world.data)
    assert {row["engagement"] is None for row in rows if row["source_person_id"] is None} <= {True}
    assert len(rows) == 3, "the id of a tombstone is lost, and a late copy would bring it back"
    return {row["engagement_id"] for row in rows if row["source_person_id"] is not None}


@pytest.mark.slow
def test_weeks_of_standing_still_purge_nothing_that_a_request_on_time_can_bring_back(world: World) -> None:
    """d1 and d2 hide e1 and e3. c1, from before d1 and on time, brings e1 back, but is read only weeks later."""
    engagements = [of(0, engagement(f"e{n}", f"p{n}", 0)) for n in (1, 2, 3)]
    deletions = [of(2, delete("d1", 0, from_id="p1")), of(2, delete("d2", 0, from_id="p3"))]
    on_time, late = of(1, convert("c1", "p1", "p2", 0)), of(-5, convert("c2", "p1", "p4", 0))
    world.produce(engagements)
    world.produce_requests(deletions, day(2))
    read_on(world, 2)
    world.run(name=REMATERIALIZE_ALIASES)
    assert standing_rows(world).keys() == {("org", "e2")}

    world.produce_requests([on_time, late], day(3))
    world.later = day(30) - NOW
    # A purge may be due: the horizon has gone on to the first request that is not read, less what is late.
    assert sum(report.counts["tombstones"] for report in world.run(name=REMATERIALIZE_ALIASES)) == 0
    assert held(world) == {"e1", "e2", "e3"}, "a row went that a request which is still to be read can bring back"

    read_on(world, 31)
    assert standing_rows(world) == replay([*engagements, *deletions, on_time]).data
    (refused,) = world.rows(QUARANTINE)
    assert (refused["reason_code"], refused["job_name"]) == ("too_late", INGEST_MUTATION_REQUESTS)
    assert (refused["topic"], refused["partition"], refused["offset"]) == (world.topics[1], 0, 3)
    assert json.loads(refused["value"]) == late
    with pytest.raises(Crash):
        world.run(crash_at("base.data:after"), name=REMATERIALIZE_ALIASES)
    (purged,) = world.run(name=REMATERIALIZE_ALIASES)
    assert purged.counts["tombstones"] == 1
    assert held(world) == {"e1", "e2"}, "with everything read, what stays deleted goes"
    assert world.run(name=REMATERIALIZE_ALIASES) == [], "a purge a day is enough"
    world.produce([engagements[2]])
    (known,) = world.run()
    assert (known.counts["duplicates"], held(world)) == (1, {"e1", "e2"})

    world.later = day(400) - NOW
    world.stores.checkpoints.reset(INGEST_MUTATION_REQUESTS)
    (again,) = world.run(name=INGEST_MUTATION_REQUESTS)
    assert (again.counts["landed"], again.counts["duplicates"], again.counts["quarantined"]) == (0, 3, 1)
    assert len(world.rows(QUARANTINE)) == 1

"""Ended anywhere, the jobs of requests leave what undisturbed ones leave, and readers see nothing in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import pytest

from engagement_platform.lake.engagement import ALIAS, QUARANTINE
from engagement_platform.pipelines.jobs import INGEST_MUTATION_REQUESTS, reset_job
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.matrix import spread
from engagement_platform_tests.pipelines.mutations import histories
from engagement_platform_tests.pipelines.mutations.histories import Message
from engagement_platform_tests.pipelines.mutations.oracle import replay
from engagement_platform_tests.pipelines.mutations.test_histories import (
    assert_announced,
    standing_names,
    standing_rows,
)

pytestmark = [pytest.mark.broker, pytest.mark.crash]

JOBS = (INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS, REMATERIALIZE_ALIASES)
POINTS: Mapping[str, Sequence[str]] = {
    INGEST_MUTATION_REQUESTS: (
        *("manifest:before", "manifest:after", "tables.quarantine:before", "tables.quarantine:after"),
        *("tables.alias:before", "tables.alias:after", "tables.mutation_request:before"),
        *("tables.mutation_request:after", "tables:recorded", "finalized"),
    ),
    APPLY_MUTATIONS: (
        *("manifest:before", "manifest:after", "notification.append:before", "notification.append:after"),
        *("notification:recorded", "finalized"),
    ),
    REMATERIALIZE_ALIASES: (
        *("manifest:before", "manifest:after", "base.data:before", "base.data:after", "base.mapping:before"),
        *("base.mapping:after", "base:recorded", "changeset.delete:before", "changeset.delete:after"),
        *("changeset:recorded", "finalized"),
    ),
}
"""Where processes are killed; the same as the jobs declare."""


def before(organization: str) -> list[Message]:
    """What is there when the requests come."""
    some = [
        histories.engagement("e1", "p1", 10, person_name="Ann", subject="as it was"),
        histories.engagement("e2", "p2", 11, person_name="Bo", attributes={"a": "1"}),
        histories.engagement("e3", "p3", 12),
        histories.engagement("e4", "p5", 13, person_name="Cy"),
        histories.engagement("e5", "p3", 14),
    ]
    return [{**message, "organization_id": organization} for message in some]


def requests(organization: str) -> list[Message]:
    """Requests in which every process has every commit to make: chained, narrowed, deleting, contradicting."""
    some = [
        histories.convert("c1", "p1", "p2", 20),
        histories.convert("c2", "p2", "p3", 30),
        histories.convert("c3", "p3", "p4", 40, engagement_id="e3"),
        histories.delete("d1", 45, from_id="p5"),
        histories.delete("d2", 46, engagement_id="e5"),
        histories.request("r1", "RENAME", 47, from_id="p3", name="Dee"),
        histories.request("u1", "UPDATE", 48, engagement_id="e1", subject=None, attributes={"b": "2"}),
        histories.convert("c1", "p1", "p9", 21),
    ]
    return [{**message, "organization_id": organization} for message in some]


def after(organization: str) -> list[Message]:
    """Late ones: an engagement of a converted id, one of a deleted, and the next version of a patched one."""
    some = [
        histories.engagement("e6", "p1", 15, person_name="Eve"),
        histories.engagement("e7", "p5", 16),
        histories.engagement("e1", "p1", 10, version=2, person_name="Ann", subject="newer"),
    ]
    return [{**message, "organization_id": organization} for message in some]


def crashed(world: World, point: str, job: str) -> None:
    """A batch that ends at this point, and the attempt that finishes it; readers see what is before, or after."""
    was = standing_rows(world)
    with pytest.raises(Crash):
        world.run(crash_at(point), name=job)
    between = standing_rows(world)
    reports = world.run(name=job)
    assert [report.replayed for report in reports] == ([] if point == "finalized" else [point != "manifest:before"])
    now = standing_rows(world)
    assert between in (was, now), f"readers see half of what {job} does that ended at {point}"
    assert (was == now) == (job != INGEST_MUTATION_REQUESTS), f"{job} changed what readers see"


def assert_crashes_change_nothing(world: World, points: Sequence[Sequence[str]]) -> None:
    """For each choice of one point a job an organization whose requests go through batches that end there."""
    assert {job: tuple(world.job(name=job).crash_points) for job in JOBS} == POINTS, "a point is new, or spelled wrong"
    organizations = [f"org-{number}" for number in range(len(points))]
    for organization, of_jobs in zip(organizations, points, strict=True):
        world.produce(before(organization))
        world.run()
        world.produce_requests(requests(organization))
        crashed(world, of_jobs[0], JOBS[0])
        world.produce(after(organization))
        world.run()
        for job, point in zip(JOBS[1:], of_jobs[1:], strict=True):
            crashed(world, point, job)
    tables = [replay([*before(o), *requests(o), *after(o)]) for o in organizations]
    rows = {key: row for table in tables for key, row in table.data.items()}
    assert standing_rows(world) == rows
    assert standing_names(world) == {key: name for table in tables for key, name in table.names.items()}
    assert_announced(world, rows)
    assert [row["reason_code"] for row in world.rows(QUARANTINE)] == ["request_conflict"] * len(organizations)


def test_batches_that_end_anywhere_are_finished_once(world: World) -> None:
    """One point of each job; all of them among the slow tests."""
    (one_of_each,) = zip(*(spread(POINTS[job], 1)[:1] for job in JOBS), strict=True)
    assert_crashes_change_nothing(world, [one_of_each])


def test_edges_of_an_abandoned_batch_stand_once_and_what_is_read_again_or_contradicts_them_changes_nothing(
    world: World,
) -> None:
    """They are written before their requests, which by then are known by them."""
    world.produce(before("org"))
    world.run()
    world.produce_requests(requests("org")[:5])
    with pytest.raises(Crash):
        world.run(crash_at("tables.alias:after"), name=INGEST_MUTATION_REQUESTS)
    reset_job(INGEST_MUTATION_REQUESTS, world.settings, abandon=True)
    edges = world.rows(ALIAS)
    assert len(edges) == 5
    world.produce_requests([{**request, "to_id": "p8"} for request in requests("org")[:1]])
    [read_again] = world.run(name=INGEST_MUTATION_REQUESTS)
    assert {name: read_again.counts[name] for name in ("landed", "duplicates", "quarantined")} == {
        "landed": 0, "duplicates": 5, "quarantined": 1,
    }  # fmt: skip
    assert world.rows(ALIAS) == edges
    assert standing_rows(world) == replay([*before("org"), *requests("org")[:5]]).data


@pytest.mark.slow
def test_batches_that_end_at_any_point_are_finished_once(world: World) -> None:
    points = zip_longest(*(POINTS[job] for job in JOBS), fillvalue="finalized")
    assert_crashes_change_nothing(world, list(points))

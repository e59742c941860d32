"""Ended anywhere, a mutation batch leaves what an undisturbed one leaves, whatever the strategy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from engagement_platform.mutation import few

from engagement_platform.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.lake.engagement import ORIGINAL, PENDING, QUARANTINE
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import ApplyStrategy, LayoutSettings, MutationSettings
from engagement_platform_tests.daily import every_third_day, some_of_today
from engagement_platform_tests.ingestion.conftest import MakeWorld
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.pipelines.mutations import histories
from engagement_platform_tests.pipelines.mutations.histories import Message
from engagement_platform_tests.pipelines.mutations.oracle import replay
from engagement_platform_tests.pipelines.mutations.test_histories import (
    assert_announced,
    seen_rows,
    standing_names,
    standing_rows,
)

pytestmark = [pytest.mark.broker, pytest.mark.crash]

ALWAYS = (
    *("manifest:before", "manifest:after", "quarantine.append:before", "quarantine.append:after"),
    *("quarantine:recorded", "alias.amendment:before", "alias.amendment:after", "alias.alias:before"),
    *("alias.alias:after", "alias:recorded", "data.original:before", "data.original:after"),
    *("data.rows:before", "data.rows:after", "data:recorded", "mapping.merge:before", "mapping.merge:after"),
    *("mapping:recorded", "notification.append:before", "notification.append:after", "notification:recorded"),
    "finalized",
)
OPERATION = ("data.operation:before", "data.operation:after")
MOVE = ("data.move:before", "data.move:after")
MARK = ("alias.pending:before", "alias.pending:after")
SETTLE = ("data.pending:before", "data.pending:after")
EVERY = (*ALWAYS, *OPERATION, *MOVE, *MARK, *SETTLE)


def before(organization: str) -> list[Message]:
    """What stands when the requests come."""
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


def organization_of(point: str) -> str:
    """One whose name makes a folder: any other would send all tables through Spark."""
    return f"org-{point.replace(':', '-')}"


def send(world: World, messages: Sequence[Message]) -> None:
    world.produce([message for message in messages if "request_id" not in message])
    world.produce_requests([message for message in messages if "request_id" in message])
    world.run(name=INGEST_ENGAGEMENTS)
    world.run(name=INGEST_MUTATION_REQUESTS)


def crashed(world: World, point: str, job: str) -> None:
    """A batch that ends at this point, and the attempt that finishes it."""
    with pytest.raises(Crash):
        world.run(crash_at(point), name=job)
    reports = world.run(name=job)
    assert [report.replayed for report in reports] == ([] if point == "finalized" else [point != "manifest:before"])


def assert_equals_oracle(world: World, organizations: Sequence[str]) -> None:
    tables = [replay([*before(o), *requests(o), *after(o)]) for o in organizations]
    rows = {key: row for table in tables for key, row in table.data.items()}
    assert standing_rows(world) == rows
    assert standing_names(world) == {key: name for table in tables for key, name in table.names.items()}
    assert_announced(world, rows)
    assert [row["reason_code"] for row in world.rows(QUARANTINE)] == ["request_conflict"] * len(organizations)


def waits(world: World) -> set[str]:
    return {row["organization_id"] for row in world.rows(PENDING) if row["pending_from"] is not None}


# Other points every day, the same within one; all of them among the slow tests.
TODAY = random.Random(datetime.now(UTC).toordinal())
BY_KEY = (*ALWAYS, *OPERATION)
BY_OPERATION = (*MOVE, *MARK, *SETTLE)


def assert_few_requests_are_finished_once(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, points: Sequence[str], apply: ApplyStrategy, by_key: int
) -> None:
    monkeypatch.setattr(few, "MOST_ROWS_BY_KEY", by_key)
    world = make_world(mutation=MutationSettings(apply=apply))
    assert_crashes_change_nothing(world, points)
    assert waits(world) == ({organization_of(point) for point in points} if apply == "alias" else set())


def test_a_batch_of_few_requests_that_ends_anywhere_is_finished_once(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_few_requests_are_finished_once(make_world, monkeypatch, TODAY.sample(BY_KEY, 2), "merge", 1000)


def test_so_is_one_that_moves_rows_by_operation(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_few_requests_are_finished_once(make_world, monkeypatch, TODAY.sample(BY_OPERATION, 1), "merge", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("points", "apply", "by_key"),
    [(BY_KEY, "merge", 1000), (BY_OPERATION, "merge", 0), ((*MARK, *ALWAYS), "alias", 1000)],
    ids=["by key", "by operation", "seen before moved"],
)
def test_a_batch_of_few_requests_that_ends_at_any_point_is_finished_once(
    make_world: MakeWorld,
    monkeypatch: pytest.MonkeyPatch,
    points: Sequence[str],
    apply: ApplyStrategy,
    by_key: int,
) -> None:
    assert_few_requests_are_finished_once(make_world, monkeypatch, points, apply, by_key)


ORIGINALS = ("data.original:before", "data.original:after")
"""Of ingestion, which writes originals only where a patch was there before its engagement."""


def assert_originals_are_kept_once(world: World, points: Sequence[str]) -> None:
    """For each point an organization whose patches came first; the batch of their engagements ends there.

    Nothing reads an original but a later patch: one that stood twice would be seen by no other comparison.
    """
    world.ticks = True
    assert set(points) <= set(world.job().crash_points), "a point is spelled wrong"
    organizations = [organization_of(point) for point in points]
    patches = [
        histories.request("u1", "UPDATE", 48, engagement_id="e1", subject="patched"),
        histories.request("u2", "UPDATE", 49, engagement_id="e2", attributes={"a": "2"}),
    ]
    for point, organization in zip(points, organizations, strict=True):
        send(world, [{**patch, "organization_id": organization} for patch in patches])
        world.run(name=APPLY_MUTATIONS)
        world.produce(before(organization))
        crashed(world, point, INGEST_ENGAGEMENTS)
    rows = {(row["organization_id"], row["engagement_id"]): row["engagement"] for row in world.rows(ORIGINAL)}
    assert len(rows) == len(world.rows(ORIGINAL)), "an original stands twice"
    assert sorted(rows) == sorted((organization, id_) for organization in organizations for id_ in ("e1", "e2"))
    assert {said["subject"] for (_, id_), said in rows.items() if id_ == "e1"} == {"as it was"}
    tables = [replay([{**each, "organization_id": o} for each in (*before(o), *patches)]).data for o in organizations]
    expected = {key: row for table in tables for key, row in table.items()}
    assert standing_rows(world) == expected
    assert_announced(world, expected)


def test_what_was_said_before_a_patch_is_kept_once_wherever_its_batch_ends(world: World) -> None:
    assert_originals_are_kept_once(world, ORIGINALS)


@pytest.mark.slow
def test_what_was_said_before_a_patch_is_kept_once_by_a_batch_in_spark_too(make_world: MakeWorld) -> None:
    layout = LayoutSettings(auto_compact=False, light_write_rows=0)
    assert_originals_are_kept_once(make_world(layout=layout), (*ORIGINALS, "data.insert:after"))


def assert_crashes_change_nothing(world: World, points: Sequence[str]) -> None:
    """For each point an organization whose requests are applied by a batch that ends there."""
    world.ticks = True
    assert set(world.job(name=APPLY_MUTATIONS).crash_points) == set(EVERY), "a point is new, or spelled wrong"
    assert set(points) <= set(EVERY)
    organizations = [organization_of(point) for point in points]
    late: list[Message] = []
    for point, organization in zip(points, organizations, strict=True):
        # Late ones of the organization before: they arrive while this batch is half-way done.
        send(world, [*before(organization), *requests(organization), *late])
        crashed(world, point, APPLY_MUTATIONS)
        late = after(organization)
    send(world, late)
    assert_equals_oracle(world, organizations)


@pytest.mark.slow
@pytest.mark.parametrize("apply", ["merge", "deletion_vectors", "overwrite", "alias"])
def test_a_batch_in_spark_that_ends_anywhere_is_finished_once(make_world: MakeWorld, apply: ApplyStrategy) -> None:
    layout = LayoutSettings(auto_compact=False, light_write_rows=0)
    world = make_world(layout=layout, mutation=MutationSettings(apply=apply))
    # Together all of them, some each day; tests of few requests end at each, and a minute in Spark is seconds there.
    points = {
        "merge": (*OPERATION, *MARK, *SETTLE, *ALWAYS[0::4]),
        "deletion_vectors": (*MOVE, *ALWAYS[1::4]),
        "overwrite": (*MOVE, *ALWAYS[2::4]),
        "alias": (*MARK, *ALWAYS[3::4]),
    }[apply]
    skipped = {"data.rows:before", "data.rows:after"} if apply == "overwrite" else set()
    points = tuple(some_of_today([point for point in points if point not in skipped], 4))
    assert_crashes_change_nothing(world, points)
    assert waits(world) == ({organization_of(point) for point in points} if apply == "alias" else set())


MOVING = (
    *("manifest:before", "manifest:after", *OPERATION, "data.rows:before", "data.rows:after", *SETTLE),
    *("data:recorded", "purge:recorded", "finalized"),
)


def test_moving_what_waits_ends_and_changes_nothing_that_readers_see(make_world: MakeWorld) -> None:
    assert_moving_changes_nothing(make_world, TODAY.sample(MOVING, 1))


@pytest.mark.slow
def test_moving_what_waits_ends_anywhere_and_changes_nothing_that_readers_see(make_world: MakeWorld) -> None:
    assert_moving_changes_nothing(make_world, MOVING)


def assert_moving_changes_nothing(make_world: MakeWorld, points: Sequence[str]) -> None:
    """A batch for each point; at last the Data Table itself shows what the view showed all the time."""
    world = make_world(mutation=MutationSettings(apply="alias"))
    world.ticks = True
    organizations = [organization_of(point) for point in points]
    for point, organization in zip(points, organizations, strict=True):
        send(world, [*before(organization), *requests(organization), *after(organization)])
        world.run(name=APPLY_MUTATIONS)
        assert waits(world) == {organization}
        crashed(world, point, REMATERIALIZE_ALIASES)
        assert waits(world) == set()
    assert_equals_oracle(world, organizations)
    shown = {(row["organization_id"], row["engagement_id"]): row["person_id"] for row in world.rows(world.data)}
    seen = seen_rows(world)
    assert {key: person for key, person in shown.items() if person} == {key: row.person_id for key, row in seen.items()}


@every_third_day(2)
@pytest.mark.parametrize("point", [pytest.param("purge.delete:before", marks=pytest.mark.slow), "purge.delete:after"])
def test_deleted_rows_are_purged_once_no_request_can_bring_them_back(make_world: MakeWorld, point: str) -> None:
    world = make_world()
    send(world, [*before("org"), *requests("org")])
    world.run(name=APPLY_MUTATIONS)
    hidden = [row["engagement_id"] for row in world.rows(world.data) if row["person_id"] is None]
    assert sorted(hidden) == ["e4", "e5"]
    world.run(name=REMATERIALIZE_ALIASES)
    assert len(world.rows(world.data)) == 5, "rows went while a late request could still bring them back"
    world.later = timedelta(days=9)
    crashed(world, point, REMATERIALIZE_ALIASES)
    assert len(world.rows(world.data)) == 3
    assert {row["engagement_id"] for row in world.current()} == {"e1", "e2", "e3"}

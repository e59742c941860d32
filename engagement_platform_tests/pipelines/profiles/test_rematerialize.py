"""Ended anywhere, and with a batch that lands in the middle, a rematerialization changes nothing that readers see."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from deltalake import DeltaTable

from engagement_platform.engine.drain import drain
from engagement_platform.engine.model import JobState
from engagement_platform.errors import PlatformError
from engagement_platform.lake.contract import ContractBroken
from engagement_platform.pipelines.profiles.entity import Attribute
from engagement_platform.pipelines.profiles.snapshot import Snapshot, snapshot
from engagement_platform.pipelines.profiles.view import view
from engagement_platform.settings import MergeOnReadSettings, RematerializeMethod, RematerializeSettings
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.maintenance.guards.strangers import strangers
from engagement_platform_tests.matrix import spread
from engagement_platform_tests.pipelines.profiles.conftest import MakeWorld
from engagement_platform_tests.pipelines.profiles.histories import DEVICE, PROFILE, seen_by_rules, side_by_side
from engagement_platform_tests.pipelines.profiles.oracle import Row, Said
from engagement_platform_tests.pipelines.profiles.world import AT_ONCE, World

pytestmark = [pytest.mark.broker, pytest.mark.crash]

METHODS: tuple[RematerializeMethod, ...] = ("merge", "overwrite", "replace_where")
POINTS = (
    *("manifest:before", "manifest:after", "base.write:before", "base.write:after", "base:recorded"),
    *("changeset.delete:before", "changeset.delete:after", "changeset:recorded", "tombstones:recorded", "finalized"),
)


def assert_crashes_change_nothing(world: World, points: list[str]) -> None:
    """For each point a rematerialization that ends there, a batch that lands then, and the attempt that finishes."""
    assert set(points) <= set(world.rematerialization().crash_points), "a point is spelled wrong"
    batches = side_by_side(4, world.entity, 30, 2 * len(points) + 1)
    for number, point in enumerate(points):
        world.send(batches[2 * number])
        world.ingest()
        with pytest.raises(Crash):
            world.move(crash_at(point))
        assert world.seen_by_rules() == world.expected(), f"ended at {point}"
        world.send(batches[2 * number + 1])
        world.ingest()
        assert world.seen_by_rules() == world.expected(), f"ended at {point}, and a batch landed"
        world.move()
        assert world.seen_by_rules() == world.expected(), f"ended at {point}, and was finished"
        last = world.stores.checkpoints.latest(f"rematerialize-{world.entity.name}")
        assert last is not None
        assert last.state is JobState.SUCCEEDED
        assert not world.snapshot.orphans
    world.send(batches[-1])
    world.ingest()
    assert world.seen(view(world.lake, world.entity).rows) == world.expected()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_readers_see_the_same_wherever_it_ends(make_world: MakeWorld, method: RematerializeMethod) -> None:
    world = make_world(entity=DEVICE, rematerialize=RematerializeSettings(method=method))
    points = ["base.write:after", "changeset.delete:before"] if method == "merge" else spread(POINTS[2:6], 1)
    assert_crashes_change_nothing(world, points)


def test_readers_see_the_same_wherever_a_move_of_profiles_ends(make_world: MakeWorld) -> None:
    world = make_world(entity=PROFILE)
    assert_crashes_change_nothing(world, spread(POINTS[2:6], 1))
    assert strangers(world.settings, world.stores) == set(), "our own job is taken for somebody else"


def test_readers_see_the_same_after_each_commit_of_a_move_to_the_base(make_world: MakeWorld) -> None:
    """Also after one that no crash point is beside: each version of the base, with the changeset that it had then."""
    world = make_world(entity=PROFILE)
    for batch in side_by_side(4, world.entity, 30, 2):
        world.move()
        world.send(batch)
        world.ingest()
    before = world.snapshot
    with pytest.raises(Crash):
        world.move(crash_at("base.write:after"))
    after = world.snapshot
    assert (after.changeset_version, after.watermark) == (before.changeset_version, before.latest)
    for version in range(before.base_version, after.base_version + 1):
        at = snapshot(world.lake.root, world.entity, base_version=version)
        assert seen_by_rules(world.lake.root, world.entity, at) == world.expected(), f"version {version} of the base"


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_readers_see_the_same_at_whatever_point_it_ends(make_world: MakeWorld, method: RematerializeMethod) -> None:
    world = make_world(entity=DEVICE, rematerialize=RematerializeSettings(method=method))
    assert_crashes_change_nothing(world, list(POINTS))


@pytest.mark.parametrize("method", METHODS)
def test_a_move_is_finished_where_an_attribute_was_declared_meanwhile(
    make_world: MakeWorld, method: RematerializeMethod
) -> None:
    world = make_world(entity=DEVICE, rematerialize=RematerializeSettings(method=method))
    first, second = side_by_side(4, world.entity, 20, 2)
    world.send(first)
    world.ingest()
    world.move()
    world.send(second)
    world.ingest()
    with pytest.raises(Crash):
        world.move(crash_at("base.write:before"))
    wider = world.declaring(Attribute("size", "long", "How large."))
    (resumed,) = wider.move()
    assert (resumed.replayed, wider.snapshot.pending) == (True, {})
    assert wider.seen_by_rules() == [(*row, None) for row in world.expected()]
    wider.send([Said("new", 1, "INSERT", {"size": 7})])
    wider.ingest()
    wider.move()
    assert ("new", 1, *[None] * 5, 7) in wider.seen_by_rules()


def test_a_process_that_does_not_know_a_column_by_now_moves_nothing(make_world: MakeWorld) -> None:
    """It would write the base without the column, and take the changes that carry it out of the changeset."""
    world = make_world(entity=DEVICE, rematerialize=RematerializeSettings(method="overwrite"))
    world.send(side_by_side(4, world.entity, 20, 1)[0])
    world.ingest()
    job = world.rematerialization()
    wider = world.declaring(Attribute("size", "long", "How large."))
    wider.send([Said("new", 1, "INSERT", {"size": 7})])
    wider.ingest()
    with pytest.raises(ContractBroken, match="column size is not declared"):
        list(drain(job, AT_ONCE))
    wider.move()
    assert ("new", 1, *[None] * 5, 7) in wider.seen_by_rules()


def assert_readers_see_no_difference_while_it_runs(world: World) -> None:
    """At every point of a run readers look, a batch lands, and they look again; who holds a state keeps it."""
    batches = side_by_side(4, world.entity, 20, len(POINTS) + 1)
    held: list[tuple[Snapshot, list[Row]]] = []
    passed: list[str] = []

    def look(when: str) -> None:
        assert world.seen_by_rules() == world.expected(), when
        assert world.seen(view(world.lake, world.entity).rows) == world.expected(), f"{when}, in Spark"
        held.append((world.snapshot, world.expected()))

    def look_and_land(point: str) -> None:
        look(f"at {point}")
        if point not in passed:
            world.send(batches[len(passed) + 1])
            world.ingest()
            look(f"at {point}, and a batch landed")
        passed.append(point)

    world.send(batches[0])
    world.ingest()
    # What lands all through the first batch of moves is moved by the second.
    assert len(world.move(look_and_land)) == 2
    assert sorted(passed) == sorted(2 * POINTS)
    look("at the end")
    assert not world.snapshot.pending
    for at, expected in held:
        assert seen_by_rules(world.lake.root, world.entity, at) == expected, (
            f"held since watermark {at.watermark}, batch {at.latest}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_readers_see_no_difference_while_it_runs_and_batches_land(
    make_world: MakeWorld, method: RematerializeMethod
) -> None:
    world = make_world(entity=DEVICE, rematerialize=RematerializeSettings(method=method))
    assert_readers_see_no_difference_while_it_runs(world)


def test_a_base_is_overwritten_unless_somebody_chose_otherwise() -> None:
    assert RematerializeSettings().method == "overwrite"


@pytest.mark.slow
def test_merged_batches_leave_by_partition_and_later_ones_stay(make_world: MakeWorld) -> None:
    world = make_world()
    for version in (1, 2):
        world.send([Said("p", version, "UPDATE", {"score": version})])
        world.ingest()

    def land(point: str) -> None:
        if point == "base.write:after" and len(world.landed) == 2:
            world.send([Said("p", 3, "UPDATE", {"score": 3})])
            world.ingest()

    # A run moves everything that waits, so it moves what landed in the middle too, in a second batch.
    first, second = world.move(land)
    assert (first.manifest.start, first.manifest.end) == ({"batch": -1}, {"batch": 1})
    assert (second.manifest.start, second.manifest.end) == ({"batch": 1}, {"batch": 2})
    history = DeltaTable(world.entity.changeset.uri(world.lake.root)).history()
    removed = [entry["operationMetrics"] for entry in history if entry["operation"] == "DELETE"]
    history += DeltaTable(world.entity.base.uri(world.lake.root)).history()
    assert {entry["engineInfo"].split("/")[0] for entry in history} == {"Apache-Spark"}
    figures = [(int(m["numRemovedFiles"]), int(m.get("numAddedFiles", 0))) for m in reversed(removed)]
    assert figures == [(2, 0), (1, 0)]
    assert first.counts["changes"] == 2
    assert first.details["watermark"] == 1
    assert world.snapshot.watermark == 2
    assert world.seen_by_rules() == world.expected()
    assert strangers(world.settings, world.stores) == set(), "our own job is taken for somebody else"


def test_what_was_deleted_long_ago_is_forgotten_where_a_retention_is_set(make_world: MakeWorld) -> None:
    world = make_world(rematerialize=RematerializeSettings(tombstone_retention=timedelta(days=30)))
    world.send([Said("p", 2, "DELETE"), Said("q", 2, "DELETE"), Said("q", 3, "UPDATE", {"name": "Ann"})])
    world.ingest()
    world.move(later=timedelta(days=29))
    assert len(world.lake.read(world.entity.base).collect()) == 2
    world.send([Said("q", 4, "UPDATE", {"name": "Bo"})])
    world.ingest()
    with pytest.raises(Crash):
        world.move(crash_at("tombstones.delete:after"), later=timedelta(days=31))
    [report] = world.move(later=timedelta(days=31))
    assert report.replayed
    assert report.counts["tombstones_removed"] == 1
    assert [row["profile_id"] for row in world.lake.read(world.entity.base).collect()] == ["q"]
    assert world.seen_by_rules() == world.expected()


def test_a_base_without_partitions_has_none_to_replace(make_world: MakeWorld) -> None:
    world = make_world(rematerialize=RematerializeSettings(method="replace_where"))
    with pytest.raises(PlatformError, match="no partitions to replace"):
        world.rematerialization()


def test_a_base_written_under_one_strategy_is_right_under_all(make_world: MakeWorld) -> None:
    """The DELETE of an unknown id has to be remembered, though the preferred strategy would drop it."""
    entity = replace(PROFILE, unknown_update="ignore", inserts_are_new=True)
    world = make_world(entity=entity, merge_on_read=MergeOnReadSettings(view="auto"))
    world.send([Said("p", 2, "DELETE"), Said("q", 1, "INSERT", {"name": "Ann"})])
    world.ingest()
    world.move()
    assert sorted(row["profile_id"] for row in world.lake.read(entity.base).collect()) == ["p", "q"]

"""A day of changes that is read again: readers see no difference, wherever it ends, but for what had not landed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from engagement_platform.engine.drain import drain
from engagement_platform.engine.job import Callbacks, MicroBatchJob
from engagement_platform.pipelines.declarations.declared import DeclaredEntity
from engagement_platform.pipelines.jobs import parts_of, reread_job
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.maintenance.guards.strangers import strangers
from engagement_platform_tests.matrix import spread
from engagement_platform_tests.pipelines.profiles.conftest import MakeWorld
from engagement_platform_tests.pipelines.profiles.histories import NOW, PROFILE, side_by_side
from engagement_platform_tests.pipelines.profiles.oracle import Said
from engagement_platform_tests.pipelines.profiles.test_job import reasons
from engagement_platform_tests.pipelines.profiles.world import AT_ONCE, World, ignore

pytestmark = pytest.mark.broker


def reread(world: World, observe: Any = ignore) -> MicroBatchJob[Any]:
    """The job for the day on which everything of the world landed."""
    declared = DeclaredEntity(world.topic, world.entity)
    callbacks = Callbacks(observe=observe)
    job = reread_job(NOW.date(), parts_of(world.spark, world.settings, world.stores, callbacks), declared)
    return replace(job, clock=lambda: datetime.now(UTC))


def points(world: World) -> list[str]:
    """Where it may end. Quarantine has the refused ones, so nothing is appended to it."""
    return [at for at in reread(world).crash_points if not at.startswith("quarantine.append")]


@pytest.mark.slow
def test_a_day_that_is_read_again_changes_nothing_that_readers_see_wherever_it_ends(make_world: MakeWorld) -> None:
    """Some points; all of them among the slow tests."""
    world = make_world()
    assert_nothing_changes_wherever_it_ends(world, spread(points(world), 3))


@pytest.mark.slow
def test_a_day_that_is_read_again_changes_nothing_that_readers_see_at_whatever_point_it_ends(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    assert_nothing_changes_wherever_it_ends(world, points(world))


def assert_nothing_changes_wherever_it_ends(world: World, ends: Sequence[str]) -> None:
    batches = side_by_side(1, PROFILE, 20, 3)
    for number, batch in enumerate(batches):
        world.send(batch)
        world.produce([b"{"])
        world.ingest()
        if number == 0:
            world.move()
    refused = reasons(world)
    for point in ends:
        with pytest.raises(Crash):
            list(drain(reread(world, crash_at(point)), AT_ONCE))
        assert world.seen_by_rules() == world.expected(), f"ended at {point}"
        finished = list(drain(reread(world), AT_ONCE))
        world.ingest()
        assert world.seen_by_rules() == world.expected(), f"ended at {point}, and was finished"
        assert finished, f"ended at {point}, and not begun again"
    assert reasons(world) == refused
    world.move()
    assert world.seen_by_rules() == world.expected()
    assert strangers(world.settings, world.stores) == set(), "our own job is taken for somebody else"


def test_what_would_pass_now_lands_when_its_day_is_read_again(make_world: MakeWorld) -> None:
    """An UPDATE that was refused since nobody had inserted its id; the INSERT came after it."""
    world = make_world(entity=replace(PROFILE, unknown_update="quarantine"))
    world.send([Said("p", 2, "UPDATE", {"name": "Ann"})])
    world.ingest()
    world.send([Said("p", 1, "INSERT", {"name": "An", "city": "Oslo"})])
    world.ingest()
    world.move()
    assert [(row[2], row[6]) for row in world.seen_by_rules()] == [("An", "Oslo")]
    assert [report.counts["landed"] for report in drain(reread(world), AT_ONCE)] == [2]
    assert world.seen_by_rules() == world.expected()

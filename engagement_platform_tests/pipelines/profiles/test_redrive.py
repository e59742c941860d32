"""Refused changes land once after their rule was changed, wherever a redrive ends, and are marked where they stood."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from engagement_platform.engine.drain import drain
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob, Observer
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.pipelines.declarations.declared import DeclaredEntity
from engagement_platform.pipelines.jobs import parts_of, redrive_declared
from engagement_platform.pipelines.redrive import REDRIVEN
from engagement_platform.settings import BatchSettings, StoreSettings
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.matrix import spread
from engagement_platform_tests.pipelines.profiles.conftest import MakeWorld
from engagement_platform_tests.pipelines.profiles.histories import NOW, PROFILE
from engagement_platform_tests.pipelines.profiles.oracle import Said
from engagement_platform_tests.pipelines.profiles.world import AT_ONCE, World, ignore

pytestmark = [pytest.mark.broker, pytest.mark.crash]

STRICT = replace(PROFILE, unknown_update="quarantine")
UNKNOWN = "unknown_profile"
# A redrive refuses nothing that is not in quarantine already, so it appends nothing there but marks.
POINTS = (
    *("manifest:after", "quarantine:recorded", "changeset.append:before", "changeset.append:after"),
    *("changeset:recorded", "redriven.append:before", "redriven.append:after", "redriven:recorded", "finalized"),
)


def redriving(world: World, reason: str, observe: Observer = ignore) -> MicroBatchJob[Any]:
    declared = DeclaredEntity(world.topic, world.entity)
    parts = parts_of(world.spark, world.settings, world.stores, Callbacks(observe=observe))
    job = redrive_declared(declared, reason, parts)
    assert job is not None
    return replace(job, clock=lambda: NOW)


def redrive(world: World, reason: str = UNKNOWN, observe: Observer = ignore) -> list[BatchReport]:
    return list(drain(redriving(world, reason, observe), AT_ONCE))


def refuse(world: World, *changes: Said) -> None:
    """Sent and refused: nothing that readers are to see."""
    world.send(changes)
    del world.landed[-len(changes) :]
    world.ingest()


def quarantined(world: World) -> Counter[tuple[str, str, int]]:
    """Which change stands there how often, under which code."""
    found: Counter[tuple[str, str, int]] = Counter()
    for row in world.lake.read(QUARANTINE).collect():
        said = json.loads(row["value"])
        found[row["reason_code"], said["profile_id"], said["version"]] += 1
    return found


def assert_landed_once(world: World, points: list[str]) -> None:
    stand: Counter[tuple[str, str, int]] = Counter()
    for number, point in enumerate(points):
        late, never = Said(f"p{number}", 2, "UPDATE", {"city": "Oslo"}), Said(f"never-{number}", 1, "UPDATE")
        refuse(world, late, never)
        stand.update([(UNKNOWN, late.key, 2), (UNKNOWN, never.key, 1)])
        world.send([Said(late.key, 1, "INSERT", {"name": "Ann", "city": "Rome"})])
        world.ingest()
        world.move()
        assert point in redriving(world, UNKNOWN).crash_points, "a point is spelled wrong"
        with pytest.raises(Crash):
            redrive(world, observe=crash_at(point))
        # What the crash left behind is in the view, or is not; either way the base takes it up once.
        world.move()
        redrive(world)
        world.landed.append(late)
        stand.update([(REDRIVEN, late.key, 2)])
        assert world.seen_by_rules() == world.expected(), f"ended at {point}"
        assert quarantined(world) == stand, f"ended at {point}"
        changes = world.lake.read(world.entity.changeset).where(f"profile_id = '{late.key}'").count()
        assert changes <= 1, f"ended at {point}, landed twice"
        world.move()
        assert world.seen_by_rules() == world.expected(), f"ended at {point}, and was moved"


def test_a_change_that_is_right_now_lands_once_wherever_its_redrive_ends(make_world: MakeWorld) -> None:
    assert_landed_once(make_world(entity=STRICT), spread(POINTS, 1))


@pytest.mark.slow
def test_a_change_that_is_right_now_lands_once_at_whatever_point_its_redrive_ends(make_world: MakeWorld) -> None:
    assert_landed_once(make_world(entity=STRICT), list(POINTS))


@pytest.mark.slow
def test_a_redrive_is_bounded_by_batches_and_a_second_one_finds_what_is_still_wrong(make_world: MakeWorld) -> None:
    world = make_world(entity=STRICT)
    said = [Said(f"p{n}", 2, "UPDATE", {"score": n}) for n in range(5)]
    refuse(world, *said)
    world.settings = world.settings.model_copy(update={"batch": BatchSettings(max_records=2)})
    world.send([Said(f"p{n}", 1, "INSERT") for n in range(4)])
    world.ingest()
    figures = [
        (report.counts["rows_in"], report.counts["landed"], report.counts["quarantined"], report.counts["redriven"])
        for report in redrive(world)
    ]
    assert figures == [(2, 2, 0, 2), (2, 2, 0, 2), (1, 0, 1, 0)]
    world.landed += said[:4]
    assert world.seen_by_rules() == world.expected()
    [again] = redrive(world)
    assert (again.counts["rows_in"], again.counts["landed"], again.counts["quarantined"]) == (1, 0, 1)
    assert quarantined(world) == Counter(
        [*((UNKNOWN, one.key, 2) for one in said), *((REDRIVEN, one.key, 2) for one in said[:4])]
    )


@pytest.mark.slow
def test_an_insert_of_a_known_id_stays_refused_until_its_rule_is_changed(make_world: MakeWorld) -> None:
    world = make_world(entity=replace(PROFILE, unknown_update="quarantine", inserts_are_new=True))
    world.send([Said("a", 1, "INSERT", {"name": "Ann"})])
    world.ingest()
    second = Said("a", 2, "INSERT", {"city": "Oslo"})
    refuse(world, second)
    [report] = redrive(world, "insert_not_new")
    assert (report.counts["quarantined"], report.counts["duplicates"], report.counts["redriven"]) == (1, 0, 0)
    world.entity = STRICT
    [report] = redrive(world, "insert_not_new")
    assert (report.counts["landed"], report.counts["redriven"]) == (1, 1)
    world.landed.append(second)
    assert world.seen_by_rules() == world.expected()


def test_no_batch_of_the_topic_begins_while_a_redrive_is_half_done(make_world: MakeWorld) -> None:
    """Both would take the same number, and the one that lands after a move would land where no reader looks."""
    world = make_world(entity=STRICT)
    refuse(world, Said("p", 2, "UPDATE", {"city": "Oslo"}))
    world.send([Said("p", 1, "INSERT")])
    world.ingest()
    with pytest.raises(Crash):
        redrive(world, observe=crash_at("changeset.append:before"))
    impatient = StoreSettings(lease_wait=timedelta(0))
    world.settings = world.settings.model_copy(update={"stores": impatient})
    world.send([Said("p", 3, "UPDATE", {"city": "Bonn"})])
    with pytest.raises(OthersBatchUnfinished, match="redrive-quarantine --reason unknown_profile"):
        world.ingest()
    redrive(world)
    world.landed.insert(1, Said("p", 2, "UPDATE", {"city": "Oslo"}))
    world.move()
    world.ingest()
    assert world.seen_by_rules() == world.expected()

"""Changes land exactly once, one partition a batch, whatever ends in between; the others go to quarantine."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.pipelines.profiles.entity import Attribute
from engagement_platform.settings import DecodingSettings
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.pipelines.profiles.conftest import MakeWorld
from engagement_platform_tests.pipelines.profiles.histories import PROFILE
from engagement_platform_tests.pipelines.profiles.oracle import Said
from engagement_platform_tests.pipelines.profiles.world import World

pytestmark = pytest.mark.broker


def reasons(world: World) -> list[tuple[str, int]]:
    rows = world.lake.read(QUARANTINE).orderBy("offset").collect()
    assert all(row["value"] is not None for row in rows)
    return [(row["reason_code"], row["offset"]) for row in rows]


@pytest.mark.slow
def test_a_batch_that_ends_anywhere_lands_once(make_world: MakeWorld) -> None:
    world = make_world()
    points = world.ingestion().crash_points
    for number, point in enumerate(points):
        world.send(
            [Said(f"p{number}", 1, "INSERT", {"name": "Ann"}), Said("p0", number + 2, "UPDATE", {"score": number})]
        )
        world.produce([b"{"])
        with pytest.raises(Crash):
            world.ingest(crash_at(point))
        world.ingest()
        assert world.seen_by_rules() == world.expected(), f"ended at {point}"
    batches = world.snapshot.batches
    assert {number: batch.rows for number, batch in batches.items()} == dict.fromkeys(range(len(points)), 2)
    assert reasons(world) == [("not_json", 3 * number + 2) for number in range(len(points))]


def test_reading_the_topic_again_changes_nothing_that_readers_see(make_world: MakeWorld) -> None:
    """A reset counts batches from 0; their numbers in the changeset go on, or the view would not look at them."""
    world = make_world()
    for version in (1, 2):
        world.send([Said("p", version, "UPDATE", {"score": version})])
        world.produce([b"x"])
        world.ingest()
    world.move()
    job = world.ingestion()
    with world.stores.leases.acquire(f"job/{job.name}", purpose="reset") as lease:
        world.stores.checkpoints.reset(job.name, fences=[lease.fence])
    world.send([Said("p", 3, "UPDATE", {"name": "Ann"})])
    [report] = world.ingest()
    assert (report.manifest.batch_id, report.counts["rows_in"], report.counts["landed"]) == (0, 5, 3)
    assert (world.snapshot.watermark, list(world.snapshot.pending)) == (1, [2])
    assert world.seen_by_rules() == world.expected()
    assert reasons(world) == [("not_json", 1), ("not_json", 3)]


def test_after_a_reset_an_insert_that_breaks_the_promise_goes_to_quarantine_and_one_that_had_landed_does_not(
    make_world: MakeWorld,
) -> None:
    world = make_world(entity=replace(PROFILE, unknown_update="quarantine", inserts_are_new=True))
    world.send([Said("a", 1, "INSERT", {"name": "Ann"})])
    world.ingest()
    world.stores.checkpoints.reset(world.entity.ingest_job)
    world.send([Said("a", 2, "INSERT", {"name": "An"}), Said("b", 1, "INSERT", {"name": "Bo"})])
    [report] = world.ingest()
    assert [report.counts[name] for name in ("rows_in", "duplicates", "quarantined", "landed")] == [3, 1, 1, 1]
    assert reasons(world) == [("insert_not_new", 1)]


def test_what_the_policies_refuse_goes_to_quarantine_whole(make_world: MakeWorld) -> None:
    world = make_world(entity=replace(PROFILE, unknown_update="quarantine", inserts_are_new=True))
    said = [
        Said("a", 2, "UPDATE", {"name": "An"}),
        Said("a", 1, "INSERT", {"name": "Ann"}),
        Said("b", 1, "UPDATE", {"name": "Bo"}),
    ]
    world.send(said)
    [report] = world.ingest()
    assert report.details["rejected"] == {"unknown_profile": 1}
    world.move()
    more = [Said("a", 3, "INSERT", {"name": "Al"}), Said("a", 4, "UPDATE", {"score": 1}), Said("c", 1, "INSERT")]
    world.send(more)
    [report] = world.ingest()
    assert report.details["rejected"] == {"insert_not_new": 1}
    assert reasons(world) == [("unknown_profile", 2), ("insert_not_new", 3)]
    [refused] = world.lake.read(QUARANTINE).where("offset = 3").collect()
    assert json.loads(refused["value"])["changes"] == {"name": "Al"}
    world.landed = [*said[:2], *more[1:]]
    assert world.seen_by_rules() == world.expected()


def test_a_change_that_a_batch_accepts_is_accepted_by_its_resume_whatever_the_policies_are_by_then(
    make_world: MakeWorld,
) -> None:
    """Decoding and the policies of the entity: both would refuse it under what the resume finds."""
    world = make_world()
    world.send([Said("p1", 2, "UPDATE", {"city": "Oslo"}), Said("a profile of many letters", 1, "INSERT", {})])
    with pytest.raises(Crash):
        world.ingest(crash_at("manifest:after"))
    strict = copy.copy(world)
    strict.__dict__.pop("settings", None)
    strict.__dict__.pop("lake", None)
    strict.entity = replace(world.entity, unknown_update="quarantine", inserts_are_new=True)
    strict.settings = world.settings.model_copy(update={"decoding": DecodingSettings(max_id_length=6)})
    (resumed,) = strict.ingest()
    assert (resumed.replayed, resumed.counts["landed"]) == (True, 2)
    assert world.seen_by_rules() == world.expected()
    unknown = {"profile_id": "p9", "version": 1, "op": "UPDATE", "changes": {"city": "Bergen"}}
    world.produce([json.dumps(unknown).encode()])
    (new,) = strict.ingest()
    assert new.counts["quarantined"] == 1, "a new batch goes by the policies of today"


def test_a_batch_is_finished_as_it_was_begun_where_an_attribute_was_declared_meanwhile(make_world: MakeWorld) -> None:
    """What it refused is in quarantine already; under the new declaration one more change would be refused."""
    world = make_world()
    world.send([Said("a", 1, "INSERT", {"name": "Ann", "size": "large"})])
    world.produce([b"{"])
    with pytest.raises(Crash):
        world.ingest(crash_at("changeset.append:before"))
    wider = world.declaring(Attribute("size", "long", "How large."))
    (resumed,) = wider.ingest()
    assert (resumed.replayed, resumed.counts["landed"], resumed.counts["quarantined"]) == (True, 1, 1)
    wider.send([Said("a", 2, "UPDATE", {"size": 7})])
    wider.ingest()
    assert wider.seen_by_rules() == [("a", 2, "Ann", *[None] * 6, 7)]
    assert reasons(wider) == [("not_json", 1)]

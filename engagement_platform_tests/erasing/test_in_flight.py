"""A batch and an erasure of one person at one time: whichever comes second, no row of the person stands afterwards.

The interleavings are forced where a batch says that it passes a point, never by waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from engagement_platform.engine.job import Callbacks
from engagement_platform.engine.lease import LeaseUnavailable
from engagement_platform.engine.model import Manifest
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.erasing import erase as erasures
from engagement_platform.erasing.job import Eraser
from engagement_platform.erasing.subject_lookup import SubjectIds
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MAPPING, MUTATION_REQUEST, QUARANTINE
from engagement_platform.pii.tombstones import ANYWHERE, StoredTombstones, entity
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, INGEST_PROFILE_CHANGES
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.pipelines.redrive import turn_of
from engagement_platform.settings import KafkaSettings, LayoutSettings, StoreSettings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.erasing.planted import BOB, DATA, LATER, PENDING, Planted, edge
from engagement_platform_tests.erasing.planted import engagement as row
from engagement_platform_tests.ingestion.oracle import as_bytes, engagement
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.ingestion.world import NOW, World
from engagement_platform_tests.matrix import quick

LAST_COMMIT = {
    INGEST_ENGAGEMENTS: "tables.data:before",
    INGEST_MUTATION_REQUESTS: "tables.mutation_request:before",
    INGEST_PROFILE_CHANGES: "changeset.append:before",
    APPLY_MUTATIONS: "notification.append:before",
    REMATERIALIZE_ALIASES: "base.data:before",
}
"""Where a batch has decided everything and has written nothing of what is decisive."""


@pytest.fixture(scope="module")
def world(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """With a topic of profile changes, too. Nobody waits for anybody."""
    world = World(spark, broker, tmp_path_factory.mktemp("in flight"), layout=LayoutSettings(auto_compact=False))
    profiles = f"{world.topics[0]}-profiles"
    broker.create_topic(profiles)
    kafka = KafkaSettings(**{**world.settings.kafka.model_dump(), "profile_changes_topic": profiles})
    changed = {"kafka": kafka, "stores": StoreSettings(lease_wait=timedelta(0))}
    world.__dict__["settings"] = world.settings.model_copy(update=changed)
    for name in LAST_COMMIT:
        speak(world, name, "somebody", 1)
        world.run(name=name)
    return world


def speak(world: World, job: str, person: str, time: int) -> None:
    """A message about the person for the job's next batch; of what is announced or moved one that has landed.

    time: first or second; each is about an engagement, a request or a change of its own.
    """
    own = f"{time} of {person}"
    if job in (INGEST_ENGAGEMENTS, REMATERIALIZE_ALIASES):
        world.produce([engagement("org", own, person_id=person, person_name=person)])
        if job == REMATERIALIZE_ALIASES:
            world.run()
            world.produce([engagement("org", own, person_id=person, version=2)])
            world.run()
    elif job == INGEST_PROFILE_CHANGES:
        change = {"profile_id": person, "version": time, "op": "INSERT", "changes": {"email": "a@b.c"}}
        world.broker.produce(world.settings.kafka.profile_changes_topic, [(0, None, as_bytes(change))])
    else:
        rename = {"request_id": own, "organization_id": "org", "operation": "RENAME", "from_id": person,
                  "name": "Zed", "execution_ts": NOW.isoformat()}  # fmt: skip
        world.produce_requests([rename])
        if job == APPLY_MUTATIONS:
            world.run(name=INGEST_MUTATION_REQUESTS)


def traces(world: World, person: str) -> list[str]:
    """Tables whose rows say something of the person."""
    named = {world.data: "person_id", CHANGESET: "person_id", MUTATION_REQUEST: "from_id", MAPPING: "id"}
    named |= {PROFILE.changeset: "profile_id"}
    found = [table.name for table, column in named.items() if person in {row[column] for row in world.rows(table)}]
    quarantined = [row["value"] for row in world.rows(QUARANTINE) if row["value"] is not None]
    return found + [QUARANTINE.name for value in quarantined if person.encode() in value]


def eraser(world: World, observe: Callable[[str], None] = lambda _point: None) -> Eraser:
    return Eraser(world.settings, world.stores, Callbacks(observe=observe))


def once_at(point: str, do: Callable[[], object]) -> Callable[[str], None]:
    """An observer that does something in the middle of a batch, once."""
    left: list[Any] = [do]

    def observe(passed: str) -> None:
        if passed == point and left:
            left.pop()()

    return observe


@pytest.mark.broker
@pytest.mark.parametrize("job", quick(list(LAST_COMMIT)))
def test_an_erasure_waits_for_a_batch_that_has_begun_and_no_batch_begins_while_an_erasure_is_unfinished(
    world: World, job: str
) -> None:
    """Else the batch would read its tombstones before they are put up, and commit after rows were looked for."""
    person = f"in flight {job}"
    whom = SubjectIds.of(person)

    def erase_and_die(point: str) -> None:
        if point == LAST_COMMIT[job]:
            with pytest.raises((LeaseUnavailable, OthersBatchUnfinished)):
                eraser(world).run(person, whom)
            raise Crash(point)

    speak(world, job, person, 1)
    with pytest.raises(Crash):
        world.run(erase_and_die, name=job)
    with pytest.raises(OthersBatchUnfinished, match=f"engagement-platform run {job} --until-idle"):
        eraser(world).run(person, whom)
    world.run(name=job)
    assert traces(world, person), "the batch has landed nothing"
    speak(world, job, person, 2)
    with pytest.raises(Crash):
        eraser(world, crash_at("manifest:after")).run(person, whom)
    finish = once_at(LAST_COMMIT[job], lambda: list(eraser(world).finish()))
    with pytest.raises(OthersBatchUnfinished, match="engagement-platform erase --finish"):
        world.run(finish, name=job)
    list(eraser(world).finish())
    world.run(name=job)
    assert traces(world, person) == []


@pytest.mark.slow
def test_conversions_that_a_batch_leaves_while_the_erasure_waits_for_it_are_followed(
    tmp_path: Path, spark: SparkSession
) -> None:
    planted = Planted(tmp_path)
    checkpoints = planted.stores.checkpoints
    planted.append(DATA, [row("org", "late", "late lead", "late lead")])
    pinned = {turn_of(MUTATION_REQUEST): 0}
    of_job = checkpoints.app_id(INGEST_MUTATION_REQUESTS)
    half_done = Manifest(INGEST_MUTATION_REQUESTS, of_job, 0, {}, {}, NOW, pinned)
    checkpoints.begin(half_done)

    def finish(_waits_for: str) -> None:
        late = {**edge("c11", "CONVERT", "late lead", BOB, LATER), "batch_sequence": PENDING + 1}
        planted.append(ALIAS, [late])
        checkpoints.succeed(half_done, {})

    planted.eraser(Callbacks(on_blocked=finish)).run("ref", SubjectIds.of(BOB))
    assert checkpoints.unfinished() == []
    assert "late" not in {each["engagement_id"] for each in planted.rows(DATA)}


@pytest.mark.slow
def test_declared_entities_refuse_nothing_about_the_person_once_quarantine_is_looked_through(
    tmp_path: Path, spark: SparkSession
) -> None:
    """What they refuse lands in engagement/quarantine, too, and nobody would look there a second time."""
    planted = Planted(tmp_path)
    folder = tmp_path / "declared"
    folder.mkdir()
    (folder / "defs.yaml").write_text(
        "type: engagement_platform.MergeOnReadEntity\nattributes: {topic: accounts, name: account, key: account_id, "
        "columns: {email: string}}\n",
        encoding="utf-8",
    )
    settings = planted.settings.model_copy(update={"defs_folder": folder})
    up = list[bool]()

    def look(point: str) -> None:
        if point == "quarantine.rewrite:before":
            key = (ANYWHERE, BOB)
            up.append(StoredTombstones(settings).erased(entity("account"), {key}) == {key})

    erasures.erase(settings, erasures.Request(BOB), Callbacks(observe=look))
    assert up == [True]

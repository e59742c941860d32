"""An erasure of what real ingestion has landed, and a replay of everything after it: nothing comes back."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from engagement_platform.erasing.job import Eraser, tables
from engagement_platform.erasing.subject_lookup import SubjectIds
from engagement_platform.lake.engagement import NOTIFICATION, QUARANTINE
from engagement_platform.lake.erased import current_files
from engagement_platform.maintenance.verify.identity import identity_findings
from engagement_platform.maintenance.verify.messages import verify
from engagement_platform.pipelines.jobs import (
    INGEST_ENGAGEMENTS,
    INGEST_MUTATION_REQUESTS,
    INGEST_PROFILE_CHANGES,
    reset_job,
)
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.settings import KafkaSettings, LayoutSettings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.files_with import places_with
from engagement_platform_tests.ingestion.oracle import as_bytes, engagement
from engagement_platform_tests.ingestion.world import NOW, World

BOB, SECRET = "bob-canary", "canary-secret"
JOBS = (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS, INGEST_PROFILE_CHANGES)


class Ingested(World):
    """A world with a topic of profile changes, too."""

    @property
    def profiles(self) -> str:
        return f"{self.topics[0]}-profiles"

    def run_every_job(self) -> None:
        for name in JOBS:
            self.run(name=name)


def said(id_: str, person: str, version: int = 1, **more: Any) -> dict[str, Any]:
    return engagement("org", id_, person_id=person, version=version, **more)


MESSAGES: list[dict[str, Any] | None] = [
    said("own", BOB, person_name=SECRET, subject=SECRET),
    said("led", "lead", subject=SECRET),
    said("two", BOB, subject=SECRET),
    said("ann's", "ann", person_name="Ann"),
]
CHANGES = [
    {"profile_id": who, "version": 1, "op": "INSERT", "changes": {"email": f"mail@{at}"}}
    for who, at in ((BOB, SECRET), ("ann", "example.org"))
]


def request(id_: str, operation: str, **more: Any) -> dict[str, Any]:
    return {"request_id": id_, "organization_id": "org", "operation": operation,
            "execution_ts": NOW.isoformat(), **more}  # fmt: skip


REQUESTS: list[dict[str, Any] | None] = [
    request("c1", "CONVERT", from_id="lead", to_id=BOB),
    request("u1", "UPDATE", engagement_id="own", subject=f"patched {SECRET}"),
    request("r1", "RENAME", from_id=BOB, name=SECRET),
    request("u2", "UPDATE", engagement_id="ann's", subject="patched"),
]


@pytest.fixture(scope="module")
def world(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    """Everything landed by its job, newer versions that are moved and that wait, a bad record; then Bob erased."""
    world = Ingested(spark, broker, tmp_path_factory.mktemp("erased"), layout=LayoutSettings(auto_compact=False))
    broker.create_topic(world.profiles)
    kafka = KafkaSettings(**{**world.settings.kafka.model_dump(), "profile_changes_topic": world.profiles})
    world.__dict__["settings"] = world.settings.model_copy(update={"kafka": kafka})
    world.produce(MESSAGES)
    world.produce_raw([(None, as_bytes({"engagement_id": "bad", "person_id": BOB, "note": SECRET}))])
    broker.produce(world.profiles, [(0, None, as_bytes(change)) for change in CHANGES])
    world.run_every_job()
    world.produce([said("two", BOB, version=2, subject=f"again {SECRET}")])
    world.run()
    world.run(name=REMATERIALIZE_ALIASES)
    world.produce([said("own", BOB, version=2, subject=SECRET)])
    world.produce_requests(REQUESTS)
    world.run_every_job()
    for table in (
        *(t for t in tables(world.settings) if t not in (PROFILE.base, PROFILE.changeset)),
        PROFILE.changeset,
    ):
        needles = [BOB.encode(), SECRET.encode()]
        assert places_with([Path(table.uri(world.settings.lake))], needles), f"nothing was planted in {table.name}"
    Eraser(world.settings, world.stores).run("ref", SubjectIds.of(BOB))
    return world


def in_use(world: World) -> list[str]:
    """Tables in whose files something of Bob stands."""
    needles, lake = [BOB.encode(), SECRET.encode()], world.settings.lake
    return [
        table.name
        for table in tables(world.settings)
        if current_files(lake, table).intersection(places_with([Path(table.uri(lake))], needles))
    ]


def wrong(world: World) -> dict[str, int]:
    found = [*verify(world.settings, world.spark), *identity_findings(world.settings, world.spark)]
    return {finding.check: finding.wrong for finding in found if finding.wrong}


@pytest.mark.slow
@pytest.mark.broker
def test_after_an_erasure_nothing_is_in_use_and_verify_has_nothing_to_say(world: Ingested) -> None:
    assert in_use(world) == []
    assert [row["engagement_id"] for row in world.rows(world.data)] == ["ann's"]
    assert [row["profile_id"] for row in world.rows(PROFILE.changeset)] == ["ann"]
    assert wrong(world) == {}


@pytest.mark.slow
@pytest.mark.broker
def test_late_messages_become_markers_and_a_replay_of_everything_brings_nothing_back(world: Ingested) -> None:
    world.produce([said("late", BOB, subject=SECRET), said("late too", "lead", subject=SECRET), said("fine", "ann")])
    world.produce_requests([request("c9", "CONVERT", from_id="ann", to_id=BOB)])
    # By the id of a request that the erasure took away, of which an edge stays.
    world.produce_requests([request("c1", "CONVERT", from_id="ann", to_id="zoe")])
    world.run_every_job()
    assert [row["reason_code"] for row in world.rows(QUARANTINE)].count("request_conflict") == 1
    markers = [(row["topic"], row["offset"], row["key"], row["value"]) for row in world.rows(QUARANTINE)]
    first = len(MESSAGES) + 3
    assert {(world.topics[0], first, None, None), (world.topics[0], first + 1, None, None)} <= set(markers)
    assert (world.topics[1], len(REQUESTS), None, None) in markers
    assert sorted(row["engagement_id"] for row in world.rows(world.data)) == ["ann's", "fine"]
    for name in JOBS:
        reset_job(name, world.settings)
    world.later = timedelta(minutes=1)
    world.run_every_job()
    assert in_use(world) == []
    assert sorted(row["engagement_id"] for row in world.rows(world.data)) == ["ann's", "fine"]
    assert {row["profile_id"] for row in world.rows(PROFILE.changeset)} == {"ann"}
    assert [name[1:3] for name in world.names()] == [("ann", "Ann")]
    ids = [row["notification_id"] for row in world.rows(NOTIFICATION)]
    assert len(ids) == len(set(ids))
    assert DeltaTable(NOTIFICATION.uri(world.settings.lake)).metadata().configuration["delta.appendOnly"] == "true"
    assert wrong(world) == {}

"""Where jobs are put back to, and that offsets of a topic that is gone are never taken for those of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from engagement_platform.engine.database import open_engine
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import LeaseStore
from engagement_platform.engine.model import Manifest, Offsets
from engagement_platform.engine.stores import BatchMetadataStore, CheckpointStore
from engagement_platform.maintenance.rollback.boundary import Timeline
from engagement_platform.maintenance.rollback.groups import engagements
from engagement_platform.maintenance.rollback.plan import Asked, CannotReplay, Offset, RestoreMode, _offsets
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.kafka_errors import TopicRecreated
from engagement_platform_tests.maintenance.rollback.test_boundary import BEGAN, DATA

OLD, NEW = {"topic": "engagements", "topic_id": "old"}, {"topic": "engagements", "topic_id": "new"}
FULL, FEWER = {"0": 1_000}, {"0": 700}


class Topic(KafkaSource):
    """As the broker has it now; all messages are there."""

    def __init__(self, now: Mapping[str, str], settings: Settings) -> None:
        super().__init__("engagements", settings.kafka)
        self.now = now

    def identify(self, pinned: Mapping[str, str]) -> Mapping[str, str]:
        if pinned.get("topic_id", self.now["topic_id"]) != self.now["topic_id"]:
            raise TopicRecreated(self.topic, "is of another topic")
        return self.now

    def check(self, start: Offsets, end: Offsets) -> None:
        """All of it is there."""


class Job:
    """`ingest-engagements` of some topics, without tables."""

    def __init__(self, engine: Engine, home: Path) -> None:
        self.stores = Stores(CheckpointStore(engine), BatchMetadataStore(engine), LeaseStore(engine))
        self.settings = Settings(home=home)

    def read(self, start: Offsets, end: Offsets, identity: Mapping[str, str]) -> None:
        checkpoints = self.stores.checkpoints
        last, app_id = checkpoints.latest(INGEST_ENGAGEMENTS), checkpoints.app_id(INGEST_ENGAGEMENTS)
        number = 0 if last is None else last.manifest.batch_id + 1
        pins = {DATA: len(checkpoints.history(INGEST_ENGAGEMENTS))}
        manifest = Manifest(INGEST_ENGAGEMENTS, app_id, number, start, end, BEGAN, pins, identity=identity)
        checkpoints.succeed(checkpoints.begin(manifest), {})

    def offsets(self, now: Mapping[str, str], step: int, mode: RestoreMode = "replay") -> list[Offset]:
        """Of a restore to the end of a step."""
        timeline = Timeline(self.stores.checkpoints.history(INGEST_ENGAGEMENTS), DATA)
        group = replace(
            engagements(self.settings), read={INGEST_ENGAGEMENTS: lambda: Topic(now, self.settings)}, follows=()
        )
        return list(_offsets(group, self.stores, timeline, step, Asked(DATA, 1, mode)))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(open_engine(f"sqlite:///{tmp_path / 'stores.db'}"), tmp_path)
    job.read({"0": 0}, FULL, OLD)
    return job


@pytest.mark.parametrize("end", [FEWER, FULL, {"0": 5_000}])
def test_offsets_of_a_topic_that_was_made_anew_since_are_not_applied_to_the_new_one(job: Job, end: Offsets) -> None:
    """Or its first thousand records would leave the tables and never be read again."""
    job.stores.checkpoints.reset(INGEST_ENGAGEMENTS)
    job.read({"0": 0}, end, NEW)
    with pytest.raises(CannotReplay, match="offsets of another topic, or cluster, than the last"):
        job.offsets(NEW, step=0)
    [dropped] = job.offsets(NEW, step=0, mode="drop")
    assert (dropped.rewind, dropped.records) == ((end, end), None)


def test_a_topic_that_was_made_anew_and_that_no_batch_has_met_yet_is_not_read_from_the_old_offsets(job: Job) -> None:
    job.read(FULL, {"0": 2_000}, OLD)
    with pytest.raises(CannotReplay, match="recreated or truncated"):
        job.offsets(NEW, step=0)
    [found] = job.offsets(OLD, step=0)
    assert (found.rewind, found.records) == (({"0": 0}, FULL), 1_000)


def test_a_boundary_after_a_reset_is_of_the_new_topic(job: Job) -> None:
    job.stores.checkpoints.reset(INGEST_ENGAGEMENTS)
    job.read({"0": 0}, FEWER, NEW)
    job.read(FEWER, FULL, NEW)
    [found] = job.offsets(NEW, step=1)
    assert (found.rewind, found.records) == (({"0": 0}, FEWER), 300)
    assert job.offsets(NEW, step=2) == []

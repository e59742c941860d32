"""Which requests wait unread, as a purge asks for it, and whose clock it trusts: what cannot be told is never none."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from engagement_platform.engine.job import Callbacks, Stores
from engagement_platform.engine.model import Limits, Manifest, Offsets
from engagement_platform.lake.lake import Lake
from engagement_platform.pipelines import jobs
from engagement_platform.pipelines.jobs import INGEST_MUTATION_REQUESTS, open_stores, unread_requests
from engagement_platform.pipelines.mutations.move import (
    REMATERIALIZE_ALIASES,
    PendingChanges,
    purge_before,
    purge_horizon,
)
from engagement_platform.pipelines.parts import APPLY_MUTATIONS, Parts
from engagement_platform.settings import Settings, StoreSettings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.kafka_errors import TopicRecreated
from engagement_platform.sources.lateness import from_microseconds, microseconds

TOPIC_ID = "now"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
LATER = timedelta(days=400)
"""By how much a clock is ahead."""


class Topic(KafkaSource):
    """Has one request, at offset 0."""

    def identify(self, pinned: Mapping[str, str]) -> Mapping[str, str]:
        if pinned.get("topic_id", TOPIC_ID) != TOPIC_ID:
            raise TopicRecreated(self.topic, "is of another topic")
        return {"topic_id": TOPIC_ID}

    def first_unread(self, start: Offsets | None) -> dict[str, int | None]:
        return {"0": 1_700_000_000_000} if start is None or start["0"] < 1 else {}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(jobs, "KafkaSource", Topic)
    return Settings(home=tmp_path, stores=StoreSettings(url=f"sqlite:///{tmp_path / 'stores.db'}"))


def ran(stores: Stores, job: str, ended: datetime, end: Offsets, identity: Mapping[str, str] | None = None) -> None:
    """One batch of a job."""
    last, app_id = stores.checkpoints.latest(job), stores.checkpoints.app_id(job)
    number = 0 if last is None else last.manifest.batch_id + 1
    manifest = Manifest(job, app_id, number, {"0": 0}, end, ended, identity=identity or {})
    stores.checkpoints.succeed(stores.checkpoints.begin(manifest), {}, finished_ts=ended)


@pytest.mark.parametrize(
    ("read_from", "waiting"), [(None, [1_700_000_000_000]), (TOPIC_ID, []), ("one that is gone", [None])]
)
def test_what_was_read_of_another_topic_says_nothing_of_this_one(
    read_from: str | None, waiting: list[int | None], settings: Settings
) -> None:
    """The old one was read up to offset 1, and the new one has grown as far."""
    stores = open_stores(settings)
    if read_from is not None:
        ran(stores, INGEST_MUTATION_REQUESTS, NOW, {"0": 1}, {"topic_id": read_from})
        waiting = [microseconds(NOW) // 1000, *waiting]
    assert list(unread_requests(settings, stores)) == waiting


def horizon(settings: Settings, stores: Stores, now: datetime) -> datetime | None:
    return purge_horizon(now, unread_requests(settings, stores), settings.mutation)


def test_no_deletion_is_final_by_a_clock_that_is_further_than_that_of_the_last_batch(settings: Settings) -> None:
    """A clock that is ahead for a batch, of whichever job, leaves behind what the next batch puts right."""
    stores = open_stores(settings)
    ran(stores, INGEST_MUTATION_REQUESTS, NOW, {"0": 1})
    by_then = horizon(settings, stores, NOW)
    assert by_then is not None
    assert horizon(settings, stores, NOW + LATER) == by_then
    ran(stores, REMATERIALIZE_ALIASES, NOW + LATER, {"sequence": 1, "purge_before": 0})
    assert horizon(settings, stores, NOW + LATER) == by_then, "its own batches are by the same clock"
    ran(stores, APPLY_MUTATIONS, NOW + LATER, {"sequence": 1})
    assert horizon(settings, stores, NOW) is None, "which of two clocks is ahead is not known"
    ran(stores, INGEST_MUTATION_REQUESTS, NOW + timedelta(hours=1), {"0": 1})
    assert horizon(settings, stores, NOW + timedelta(hours=1)) == by_then + timedelta(hours=1)


def test_a_lake_in_which_nothing_happens_asks_no_broker_for_a_purge_that_cannot_be(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, asked = open_stores(settings), list[str]()
    ran(stores, INGEST_MUTATION_REQUESTS, NOW, {"0": 1})
    purged = purge_before(0, NOW, partial(unread_requests, settings, stores), settings.mutation, lambda: True)
    assert purged == microseconds(NOW - settings.mutation.max_disorder - settings.mutation.max_lateness)
    monkeypatch.setattr(Topic, "identify", lambda *_: asked.append("the broker"))
    for day in range(1, 30):
        unread = partial(unread_requests, settings, stores)
        assert purge_before(purged, NOW + timedelta(days=day), unread, settings.mutation, lambda: True) == purged
    assert asked == []


def test_a_time_that_a_clock_which_was_ahead_has_left_is_taken_back_and_purges_nothing(settings: Settings) -> None:
    """Names would keep nothing of what requests from before it may change, and no purge would be due for a year."""
    stores, limits = open_stores(settings), Limits(1, 1)
    no_tables = cast("Lake", SimpleNamespace(root=str(settings.home / "lake")))
    changes = PendingChanges(Parts(no_tables, stores, settings, Callbacks()), list, lambda: NOW)
    at_most = purge_horizon(NOW, [], settings.mutation)
    assert at_most is not None
    planned = changes.plan({"sequence": 0, "purge_before": microseconds(NOW + LATER)}, limits, None)
    assert planned is not None
    start, end = planned
    assert from_microseconds(end["purge_before"]) == from_microseconds(start["purge_before"]) == at_most
    assert changes.plan(end, limits, None) is None

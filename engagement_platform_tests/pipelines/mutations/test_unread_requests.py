"""Which requests wait unread, as a purge asks for it: one that cannot be told is never taken for none."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from engagement_platform.engine.model import Manifest, Offsets
from engagement_platform.pipelines import jobs
from engagement_platform.pipelines.jobs import INGEST_MUTATION_REQUESTS, open_stores, unread_requests
from engagement_platform.settings import Settings, StoreSettings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.kafka_errors import TopicRecreated

TOPIC_ID = "now"


class Topic(KafkaSource):
    """Has one request, at offset 0."""

    def identify(self, pinned: Mapping[str, str]) -> Mapping[str, str]:
        if pinned.get("topic_id", TOPIC_ID) != TOPIC_ID:
            raise TopicRecreated(self.topic, "is of another topic")
        return {"topic_id": TOPIC_ID}

    def first_unread(self, start: Offsets | None) -> dict[str, int | None]:
        return {"0": 1_700_000_000_000} if start is None or start["0"] < 1 else {}


@pytest.mark.parametrize(
    ("read_from", "waiting"), [(None, [1_700_000_000_000]), (TOPIC_ID, []), ("one that is gone", [None])]
)
def test_what_was_read_of_another_topic_says_nothing_of_this_one(
    read_from: str | None, waiting: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one was read up to offset 1, and the new one has grown as far."""
    monkeypatch.setattr(jobs, "KafkaSource", Topic)
    settings = Settings(home=tmp_path, stores=StoreSettings(url=f"sqlite:///{tmp_path / 'stores.db'}"))
    stores = open_stores(settings)
    if read_from is not None:
        app_id, now = stores.checkpoints.app_id(INGEST_MUTATION_REQUESTS), datetime(2026, 3, 1, tzinfo=UTC)
        identity = {"topic_id": read_from}
        manifest = Manifest(INGEST_MUTATION_REQUESTS, app_id, 0, {"0": 0}, {"0": 1}, now, identity=identity)
        stores.checkpoints.succeed(stores.checkpoints.begin(manifest), {})
    assert list(unread_requests(settings, stores)) == waiting

"""Objects of batches that the stores no longer know: the error names the job, and the command by which it goes on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from engagement_platform.engine.model import Limits, Manifest
from engagement_platform.pipelines.games.event_type import GROUP
from engagement_platform.pipelines.games.feed import Feed
from engagement_platform.pipelines.games.job import may_be_replayed
from engagement_platform.pipelines.games.objects import BATCH, ObjectsForgotten, QueueSource
from engagement_platform.pipelines.games.registry import registry
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import GamesSettings, Settings
from engagement_platform.sources.s3_events import S3File

JOB = "ingest-game-events"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueSource:
    """With new stores, and a queue that nobody asks."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    queue = "http://127.0.0.1:1/123456789012/events"
    return QueueSource(JOB, Settings(home=tmp_path, games=GamesSettings(queue_url=queue)))


def test_a_checkpoint_ahead_of_the_stores_names_the_reset_that_goes_on(source: QueueSource) -> None:
    """As after `recover`, which finds batches in the tables and not which objects they had."""
    with pytest.raises(ObjectsForgotten, match=f"batch 2.*engagement-platform reset {JOB}"):
        source.plan({"batch": 2}, Limits(10, 10), None)


def test_an_unfinished_batch_that_the_stores_do_not_know_does_so_too(source: QueueSource) -> None:
    with pytest.raises(ObjectsForgotten, match=f"batch 2.*engagement-platform reset {JOB}"):
        source.check({"batch": 1}, {"batch": 2})


def test_what_a_replay_may_have_read_before_its_announcement_was_is_looked_for_in_quarantine(tmp_path: Path) -> None:
    """Lines that are refused have no id by which they are recognized, and looking for them costs a pass."""
    checkpoints, feed = open_stores(Settings(home=tmp_path)).checkpoints, Feed(GROUP, registry())
    job = feed.replay_job

    def arrived(*hours: int | None) -> bool:
        times = (None if hour is None else f"2026-11-22T{hour:02}:00:00.000Z" for hour in hours)
        return may_be_replayed(checkpoints, feed, [S3File("raw", f"{n}", event_time=at) for n, at in enumerate(times)])

    assert not arrived(0, None)
    for batch, hour in enumerate((1, 8)):
        at = datetime(2026, 11, 22, hour, tzinfo=UTC)
        begun = Manifest(job, checkpoints.app_id(job), batch, {BATCH: batch}, {BATCH: batch + 1}, at)
        checkpoints.succeed(checkpoints.begin(begun), {})
    assert [arrived(7), arrived(8), arrived(23, 7), arrived(None)] == [True] * 4
    assert arrived(9), "clocks differ"
    assert not arrived(10, 11)
    checkpoints.reset(job)
    assert arrived(7), "a reset takes back no line"

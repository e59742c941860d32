"""Objects of batches that the stores no longer know: the error names the job, and the command by which it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from engagement_platform.engine.model import Limits
from engagement_platform.pipelines.games.objects import ObjectsForgotten, QueueSource
from engagement_platform.settings import GamesSettings, Settings

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

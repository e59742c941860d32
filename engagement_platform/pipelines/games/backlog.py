"""How much waits of game events: messages, and objects to read again. Never receives; for sensors and `status`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from engagement_platform.engine.model import BatchRecord, JobState
from engagement_platform.pipelines.games.objects import BATCH, options_of
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_sqs_aws import client, reason_of
from engagement_platform.sources.s3_sqs_errors import QueueUnavailable
from engagement_platform.sources.s3_sqs_options import S3SqsOptions
from engagement_platform.sources.s3_sqs_state import S3SqsState


@dataclass(frozen=True)
class Depth:
    """Messages, as SQS estimates them."""

    visible: int
    """That anybody may receive."""
    in_flight: int
    """That a run has received; after a crash they become visible again."""


def backlog(settings: Settings, last: BatchRecord | None) -> int:
    """What there is to do for a job of game events: messages, an unfinished batch, and objects of batches that were
    undone, whose messages are deleted. last: its last batch. Raises NoGameQueue, QueueUnavailable, StoresUnavailable.
    """
    now = depth(settings)
    if last is None:
        return now.visible
    if last.state is not JobState.SUCCEEDED:
        # The messages of an unfinished batch are in flight.
        return now.visible + max(1, now.in_flight)
    state = _state(options_of(settings).state_location)
    return now.visible + state.planned_after(last.manifest.job, last.manifest.end[BATCH])


@lru_cache(maxsize=2)
def _state(location: str) -> S3SqsState:
    # Opening it looks whether its tables are there.
    return S3SqsState.open(location, allow_overwrites=False)


def depth(settings: Settings) -> Depth:
    """The queue now. Raises NoGameQueue, QueueUnavailable."""
    options = options_of(settings)
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    try:
        answer = _client(options).get_queue_attributes(QueueUrl=options.queue_url, AttributeNames=names)
    except (BotoCoreError, ClientError) as failed:
        raise QueueUnavailable(options.queue_url, reason_of(failed)) from failed
    found = answer["Attributes"]
    return Depth(*(int(found[name]) for name in names))


@lru_cache(maxsize=8)
def _client(options: S3SqsOptions) -> Any:
    # Sensors ask every few seconds; making a client takes longer than asking.
    return client("sqs", options)

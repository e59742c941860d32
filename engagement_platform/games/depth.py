"""How much waits in the queue of game events. Asks and never receives; for sensors and `status`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from engagement_platform.games.objects import options_of
from engagement_platform.microbatch.model import Checkpoint, JobState
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_sqs_aws import client, said
from engagement_platform.sources.s3_sqs_errors import QueueUnavailable
from engagement_platform.sources.s3_sqs_options import S3SqsOptions


@dataclass(frozen=True)
class Depth:
    """Messages, as SQS estimates them."""

    visible: int
    """That anybody may receive."""
    in_flight: int
    """That a run has received; after a crash they become visible again."""

    def backlog(self, last: Checkpoint | None) -> int:
        """What there is to do: messages, and an unfinished batch, whose messages are in flight."""
        unfinished = last is not None and last.state is not JobState.SUCCEEDED
        return self.visible + (max(1, self.in_flight) if unfinished else 0)


def depth(settings: Settings) -> Depth:
    """The queue now. Raises NoGameQueue, QueueUnavailable."""
    options = options_of(settings)
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    try:
        answer = _client(options).get_queue_attributes(QueueUrl=options.queue_url, AttributeNames=names)
    except (BotoCoreError, ClientError) as failed:
        raise QueueUnavailable(options.queue_url, said(failed)) from failed
    found = answer["Attributes"]
    return Depth(*(int(found[name]) for name in names))


@lru_cache(maxsize=8)
def _client(options: S3SqsOptions) -> Any:
    # Sensors ask every few seconds; making a client takes longer than asking.
    return client("sqs", options)

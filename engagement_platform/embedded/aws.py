"""S3, SNS and SQS for one machine: moto's server, with the bucket of game events, its announcements and its queues, and
those of declared tables.

State is in memory: what was in the bucket is gone after a restart, what had been ingested stays in the tables. What
is put into the bucket is `game_traffic`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engagement_platform.embedded.ports import LOCALHOST, answers
from engagement_platform.embedded.process import Child
from engagement_platform.settings import Settings

NAME = "aws"
REGION = "eu-central-1"
ACCOUNT = "123456789012"
"""The one that moto knows."""
BUCKET, QUEUE, DEAD_LETTERS, TOPIC = "game-events", "game-events", "game-events-dead-letters", "game-events"
# A run that is killed leaves messages in flight; with more receipts than this one is poison.
_MAX_RECEIPTS = 10
NOT_INSTALLED = (
    "Game events are off: moto, the emulator of S3 and SQS, is not installed. Install `moto[server]`, or set "
    "ENGAGEMENT_PLATFORM_GAMES__QUEUE_URL to a queue of yours."
)


@dataclass(frozen=True)
class EmbeddedAws:
    """The server on a port of 127.0.0.1, and what is made in it."""

    port: int
    declared: tuple[tuple[str, str], ...] = ()
    """Bucket and queue URL of each `S3SqsTables`; those that are here are made, others are somebody else's."""

    @property
    def endpoint(self) -> str:
        """Where clients go."""
        return f"http://{LOCALHOST}:{self.port}"

    @property
    def queue_url(self) -> str:
        """The queue that S3 announces objects in."""
        return f"{self.endpoint}/{ACCOUNT}/{QUEUE}"

    @property
    def variables(self) -> Mapping[str, str]:
        """What AWS's own tools, boto3 and delta-rs read. The key opens nothing."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "embedded",
            "AWS_SECRET_ACCESS_KEY": "embedded",
            "AWS_REGION": REGION,
        }

    def child(self) -> Child:
        """The server as a process to supervise. Ready once bucket, topic and queues are there."""

        def ready() -> bool:
            if not answers(self.port):
                return False
            self.furnish()
            return True

        command = [sys.executable, "-m", "moto.server", "-H", LOCALHOST, "-p", str(self.port)]
        return Child(name=NAME, command=command, ready=ready)

    def furnish(self) -> None:
        """Make bucket, topic, queue, dead-letter queue and what connects them; what is there stays as it is."""
        s3, sns, sqs = (self.client(service) for service in ("s3", "sns", "sqs"))
        dead_letters = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{DEAD_LETTERS}"
        sqs.create_queue(QueueName=DEAD_LETTERS)
        policy = {"deadLetterTargetArn": dead_letters, "maxReceiveCount": _MAX_RECEIPTS}
        sqs.create_queue(QueueName=QUEUE, Attributes={"RedrivePolicy": json.dumps(policy)})
        topic = sns.create_topic(Name=TOPIC)["TopicArn"]
        queue = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{QUEUE}"
        subscribed = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        if not any(subscription["Endpoint"] == queue for subscription in subscribed):
            sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue, Attributes={"RawMessageDelivery": "true"})
        announced = {"TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}
        _bucket(s3, BUCKET, {"TopicConfigurations": [announced]})
        for bucket, queue_url in self.declared:
            place, _, name = queue_url.rpartition("/")
            if place == f"{self.endpoint}/{ACCOUNT}":
                sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": json.dumps(policy)})
                told = {"QueueArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}", "Events": ["s3:ObjectCreated:*"]}
                _bucket(s3, bucket, {"QueueConfigurations": [told]})

    def client(self, service: str) -> Any:
        """A client of boto3 that goes here, whatever the environment says."""
        import boto3

        key, secret = self.variables["AWS_ACCESS_KEY_ID"], self.variables["AWS_SECRET_ACCESS_KEY"]
        session = boto3.session.Session(key, secret, region_name=REGION)
        return session.client(service, endpoint_url=self.endpoint)


def _bucket(s3: Any, name: str, announces: Mapping[str, object]) -> None:
    """Make a bucket that announces its objects; one that is there stays as it is."""
    if name in (bucket["Name"] for bucket in s3.list_buckets()["Buckets"]):
        return
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration=announces)


def is_installed() -> bool:
    """Whether moto's server can be started."""
    return importlib.util.find_spec("moto") is not None and importlib.util.find_spec("flask") is not None


def with_aws(settings: Settings, aws: EmbeddedAws) -> Settings:
    """The settings as they are with the server here."""
    games = settings.games.model_copy(update={"bucket": BUCKET, "queue_url": aws.queue_url})
    return settings.model_copy(update={"games": games})

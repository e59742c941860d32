"""S3, SNS and SQS for one machine: moto's server, with the bucket of game events, its announcements and its queues, and
those of declared tables.

State is in memory: what was in the bucket is gone after a restart, what had been ingested stays in the tables. What
is put into the bucket is `games`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engagement_platform.errors import missing
from engagement_platform.local.ports import LOCALHOST, answers
from engagement_platform.local.process import Child

NAME = "aws"
REGION = "eu-central-1"
ACCOUNT = "123456789012"
"""The one that moto knows."""
BUCKET = "game-events"
QUEUE = "game-events"
# A run that is killed leaves messages in flight; with more receipts than this one is poison.
_MAX_RECEIPTS = 10
NOT_INSTALLED = (
    "Game events are off: the ingest server, or the emulator of S3 and SQS, is not installed. Install both by pip "
    "install 'engagement-platform[games]', or set ENGAGEMENT_PLATFORM_GAMES__QUEUE_URL to a queue of yours."
)


@dataclass(frozen=True)
class EmbeddedAws:
    """The server on a port of 127.0.0.1, and what is made in it."""

    port: int
    declared: Sequence[tuple[str, str]] = ()
    """Bucket and queue URL of each `S3SqsTables`; only those on this server are made."""

    @property
    def endpoint(self) -> str:
        return f"http://{LOCALHOST}:{self.port}"

    @property
    def queue_url(self) -> str:
        """The queue that S3 announces game events in."""
        return f"{self.endpoint}/{ACCOUNT}/{QUEUE}"

    @property
    def variables(self) -> dict[str, str]:
        """What AWS's own tools, boto3 (AWS_DEFAULT_REGION) and delta-rs (AWS_REGION) read. The key opens nothing."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            # A developer's own, which would win for the service, or for all.
            **{f"AWS_ENDPOINT_URL_{service}": self.endpoint for service in ("S3", "SNS", "SQS")},
            "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",
            "AWS_ACCESS_KEY_ID": "embedded",
            "AWS_SECRET_ACCESS_KEY": "embedded",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def child(self) -> Child:
        """The server as a process to supervise. Ready once bucket, topic and queues are there."""

        from botocore.exceptions import BotoCoreError, ClientError

        def ready() -> bool:
            if not answers(self.port):
                return False
            try:
                self.furnish()
            except (BotoCoreError, ClientError):
                # It is slow, or has ended again just now.
                return False
            return True

        command = [sys.executable, "-m", "engagement_platform.local.emulator", "-H", LOCALHOST, "-p", str(self.port)]
        # By default the answers say that every page may read them.
        return Child(name=NAME, command=command, ready=ready, env={"MOTO_DISABLE_GLOBAL_CORS": "true"})

    def furnish(self) -> None:
        """Make buckets, queues, the topic and what connects them; what is there stays as it is."""
        s3, sns, sqs = (self.client(service) for service in ("s3", "sns", "sqs"))
        sqs.create_queue(QueueName=f"{QUEUE}-dead-letters")
        redrive = {"deadLetterTargetArn": _queue_arn(f"{QUEUE}-dead-letters"), "maxReceiveCount": _MAX_RECEIPTS}
        queues = self.queue_url.removesuffix(QUEUE)
        declared = [(bucket, url.removeprefix(queues)) for bucket, url in self.declared if url.startswith(queues)]
        for queue in (QUEUE, *(queue for _, queue in declared)):
            sqs.create_queue(QueueName=queue, Attributes={"RedrivePolicy": json.dumps(redrive)})
        # Subscribing once more is the same subscription.
        topic, raw = sns.create_topic(Name=QUEUE)["TopicArn"], {"RawMessageDelivery": "true"}
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=_queue_arn(QUEUE), Attributes=raw)
        # Of queues that share a bucket the first is announced to; the bucket of game events goes on with its topic.
        announced = {bucket: ("Queue", _queue_arn(queue)) for bucket, queue in reversed(declared)}
        announced[BUCKET] = ("Topic", topic)
        for bucket in announced.keys() - {there["Name"] for there in s3.list_buckets()["Buckets"]}:
            kind, arn = announced[bucket]
            to = {f"{kind}Configurations": [{f"{kind}Arn": arn, "Events": ["s3:ObjectCreated:*"]}]}
            s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
            s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=to)

    def client(self, service: str) -> Any:
        """A client of boto3 that goes here, whatever the environment says."""
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.variables["AWS_SECRET_ACCESS_KEY"],
        )


def _queue_arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def is_installed() -> bool:
    """Whether moto's server can be started, and the ingest server that writes into its bucket."""
    return missing("games", "Game events on one machine") is None

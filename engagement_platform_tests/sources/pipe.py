"""A bucket, the queue that it tells, and a stream on them, driven as Spark drives one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadMaxFiles

from engagement_platform.sources.s3_sqs import Offset, S3SqsDataSource, S3SqsStreamReader
from engagement_platform_tests.conftest import Moto

SCHEMA = T.StructType().add("a", "integer").add("_file", "string")
_numbers = itertools.count()


class Pipe:
    """A bucket that tells a queue, with a dead-letter queue, and a stream on it, driven as Spark drives one."""

    def __init__(self, moto: Moto, folder: Path, *, dead_letters: bool = True, **options: str) -> None:
        name = f"t{next(_numbers)}"
        self.moto, self.bucket = moto, f"{name}-raw"
        self.s3, self.sqs = moto.client("s3"), moto.client("sqs")
        self.s3.create_bucket(Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        attributes = {}
        self.dead = self.sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
        if dead_letters:
            policy = {"deadLetterTargetArn": self._arn(self.dead), "maxReceiveCount": 100}
            attributes = {"RedrivePolicy": json.dumps(policy)}
        self.url = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self.tell()
        self.options = {
            "queueUrl": self.url,
            "endpoint": moto.endpoint,
            "region": "eu-central-1",
            "waitTime": "0",
            "fetchParallelism": "2",
            "visibilityTimeout": "3",
            "stateLocation": str(folder),
            **options,
        }
        self.readers: list[S3SqsStreamReader] = []
        self.offset: Offset | None = None

    def _arn(self, url: str) -> str:
        arn: str = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        return arn

    def tell(self, *, nothing: bool = False) -> None:
        """Have the bucket tell the queue from now on what happens in it, or nothing."""
        told = [{"QueueArn": self._arn(self.url), "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}]
        self.s3.put_bucket_notification_configuration(
            Bucket=self.bucket, NotificationConfiguration={} if nothing else {"QueueConfigurations": told}
        )

    def put(self, key: str, *values: int, content: bytes | None = None) -> None:
        body = content if content is not None else b"".join(b'{"a":%d}\n' % value for value in values)
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)

    def send(self, body: str) -> None:
        self.sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def start(self, **options: str) -> S3SqsStreamReader:
        """The reader of a new process."""
        source = S3SqsDataSource(CaseInsensitiveDict({**self.options, **options}))
        self.readers.append(source.streamReader(SCHEMA))
        return self.readers[-1]

    def batch(self, reader: S3SqsStreamReader, most: int = 1000) -> list[int] | None:
        """One batch as Spark runs it, committed in its log; None when there was nothing."""
        start = self.offset or reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxFiles(most))
        if end == start:
            return None
        rows = self.rows(reader, start, end)
        self.offset = end
        return rows

    def rows(self, reader: S3SqsStreamReader, start: Offset, end: Offset) -> list[int]:
        partitions = reader.partitions(start, end)
        return sorted(row["a"] for p in partitions for batch in reader.read(p) for row in batch.to_pylist())

    def drained(self, reader: S3SqsStreamReader, most: int = 1000) -> list[int]:
        rows: list[int] = []
        while (batch := self.batch(reader, most)) is not None:
            rows += batch
        return sorted(rows)

    def left(self) -> int:
        """Messages in the queue, the invisible ones included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(map(int, found.values()))

    def dead_letters(self) -> list[tuple[str, str]]:
        """Reason code and body of every dead letter."""
        answer = self.sqs.receive_message(
            QueueUrl=self.dead, MaxNumberOfMessages=10, MessageAttributeNames=["All"], VisibilityTimeout=0
        )
        return sorted(
            (m["MessageAttributes"]["reason_code"]["StringValue"], m["Body"]) for m in answer.get("Messages", ())
        )


MakePipe = Callable[..., Pipe]

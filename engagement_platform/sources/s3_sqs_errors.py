"""What can be wrong with a stream from S3 through SQS, each cause its own error. Raised by the modules beside it."""

from __future__ import annotations

from collections.abc import Iterable

from engagement_platform.errors import PlatformError


class S3SqsOptionRefused(PlatformError):
    """An option of the source that is missing, unknown or has a value it cannot have."""

    def __init__(self, what: str, options: Iterable[str]) -> None:
        super().__init__(f"s3-sqs: {what}. Nothing was read. The options are {', '.join(options)}.")


class S3SqsSchemaRefused(PlatformError):
    """No schema was given, or one that the file format cannot fill."""

    def __init__(self, what: str) -> None:
        super().__init__(f"s3-sqs: {what}. Nothing was read. Give the columns with .schema(…).")


class QueueUnavailable(PlatformError):
    """SQS did not answer, does not know the queue, or refused."""

    def __init__(self, queue_url: str, reason: str) -> None:
        self.queue_url = queue_url
        super().__init__(
            f"The queue {queue_url} cannot be used: {reason}. No message was lost; those not read yet stay in the "
            "queue. Check queueUrl, region, endpoint and the rights of these credentials."
        )


class NoDeadLetterQueue(PlatformError):
    """Something cannot be read, and there is no queue to put it in."""

    def __init__(self, what: str, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{what} cannot be read ({reason}), and the queue has no dead-letter queue to take it. Nothing was "
            "skipped. Give the queue a redrive policy, or name a queue in the option deadLetterQueueUrl, and start "
            "again."
        )


class S3SqsStateLost(PlatformError):
    """The checkpoint names a batch that the state of the source does not know."""

    def __init__(self, stream: str, batch: int, location: str) -> None:
        self.stream, self.batch = stream, batch
        super().__init__(
            f"The checkpoint stands at batch {batch} of stream {stream}, which the state at {location} does not know. "
            "Nothing was read. Name the stateLocation that this checkpoint was made with; if it is gone, start with a "
            "new checkpoint: messages that were not deleted come again."
        )


class ObjectNotReadable(PlatformError):
    """S3 refused an object for a reason that trying another one would not mend."""

    def __init__(self, file: str, reason: str) -> None:
        self.file = file
        super().__init__(
            f"{file} cannot be read: {reason}. The batch was not finished and comes again. Check the network and "
            "the rights of these credentials: s3:GetObject and s3:GetObjectVersion; s3:ListBucket, without which S3 "
            "does not tell a missing object from a forbidden one; kms:Decrypt where objects are encrypted with KMS."
        )


class BadRecords(PlatformError):
    """Records that cannot be read, with badRecords = fail."""

    def __init__(self, file: str, reason: str) -> None:
        self.file = file
        super().__init__(
            f"{file} has records that cannot be read: {reason}. The batch was not finished. Mend the schema, or set "
            "badRecords to deadLetter or column."
        )

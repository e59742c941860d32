"""The queue: receiving, keeping what is in work invisible to others, deleting what is done, and dead letters.

Knows messages, not what they mean (`s3_events`) nor which of them are done (`s3_sqs_state`).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from engagement_platform.sources.s3_events import Refusal
from engagement_platform.sources.s3_sqs_aws import client, reason_of
from engagement_platform.sources.s3_sqs_errors import QueueUnavailable
from engagement_platform.sources.s3_sqs_options import S3SqsOptions

log = logging.getLogger(__name__)

# SQS: messages in one call.
_PER_CALL = 10
# A message stays invisible for twelve hours after it was received, however often that is extended; afterwards SQS
# refuses, the message comes again and is recognized.
_EXTENSIONS_PER_TIMEOUT = 3
_NOT_TAKEN = ("InvalidParameterValue", "InvalidMessageContents")
"""What SQS answers to a message that is too large, or whose attributes have a character that it does not take."""


@dataclass(frozen=True)
class Message:
    """As SQS hands it out. sent_ms: SQS's clock, milliseconds since 1970."""

    message_id: str
    receipt: str
    body: str
    sent_ms: int


class Queue:
    """One queue, asked by the driver only. Raises QueueUnavailable where nothing else is stated."""

    def __init__(self, options: S3SqsOptions) -> None:
        self._options = options
        self._url = options.queue_url
        self._sqs: Any = client("sqs", options)
        self._receivers = ThreadPoolExecutor(options.fetch_parallelism, "s3-sqs-receive")
        self._held: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._keeper: threading.Thread | None = None

    def now_ms(self) -> int:
        """SQS's clock, in milliseconds since 1970, at most a second ahead: it tells whole seconds only."""
        answer = self._call("get_queue_attributes", QueueUrl=self._url, AttributeNames=["QueueArn"])
        date = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        return (int(date.timestamp()) + 1) * 1000 - 1

    def receive(self, wait_s: int) -> list[Message]:
        """What is there, at most ten messages for each of fetchParallelism calls.

        Waits up to wait_s for the first, with one call: those beside it would go on waiting once it has all there is,
        so that a lone message was handed out no sooner than the whole wait. They stay invisible to others until they
        are deleted or this is closed.
        """
        messages = self._receive(wait_s) if wait_s else []
        if messages or not wait_s:
            calls = self._options.fetch_parallelism - bool(wait_s)
            asks = [self._receivers.submit(self._receive, 0) for _ in range(calls)]
            messages = [*messages, *(message for ask in asks for message in ask.result())]
            # A queue may hand one message to two calls that ask at the same moment; the later receipt deletes it.
            messages = list({message.message_id: message for message in messages}.values())
        self.hold({message.message_id: message.receipt for message in messages})
        return messages

    def hold(self, receipts: Mapping[str, str]) -> None:
        """Keep these invisible to others from now on, by message id; also those that an earlier run received."""
        with self._lock:
            self._held.update(receipts)
            if self._held and self._keeper is None and not self._stopped.is_set():
                self._keeper = threading.Thread(target=self._keep, name="s3-sqs-visibility", daemon=True)
                self._keeper.start()

    def delete(self, receipts: Mapping[str, str]) -> set[str]:
        """Delete messages, receipts by message id; the ids of those that are gone. The others can be tried again."""
        gone: set[str] = set()
        for batch, answer in self._by_tens("delete_message_batch", receipts):
            gone.update(batch[int(done["Id"])][0] for done in answer.get("Successful", ()))
        with self._lock:
            for message_id in gone:
                self._held.pop(message_id, None)
        return gone

    def dead_letter_queue(self) -> str | None:
        """Where refused messages go: the option, or what the queue's redrive policy names; None without either."""
        return self._options.dead_letter_queue_url or self._redriven

    @cached_property
    def _redriven(self) -> str | None:
        answer = self._call("get_queue_attributes", QueueUrl=self._url, AttributeNames=["RedrivePolicy"])
        policy = answer.get("Attributes", {}).get("RedrivePolicy")
        if not policy:
            return None
        *_, account, name = json.loads(policy)["deadLetterTargetArn"].split(":")
        url: str = self._call("get_queue_url", QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"]
        return url

    def bury(self, queue_url: str, message: Message, refusals: Iterable[Refusal]) -> None:
        """Put a message into the dead-letter queue with its reasons."""
        send_dead_letter(self._sqs, queue_url, message.body, list(refusals), self._url)

    def close(self) -> None:
        """Stop keeping messages invisible: they come again when their time is over."""
        self._stopped.set()
        if self._keeper is not None:
            self._keeper.join(timeout=10)
        self._receivers.shutdown(wait=False, cancel_futures=True)

    def _receive(self, wait_s: int) -> list[Message]:
        answer = self._call(
            "receive_message",
            QueueUrl=self._url,
            MaxNumberOfMessages=_PER_CALL,
            WaitTimeSeconds=wait_s,
            VisibilityTimeout=self._options.visibility_timeout_s,
            AttributeNames=["SentTimestamp"],
        )
        return [
            Message(m["MessageId"], m["ReceiptHandle"], m["Body"], int(m["Attributes"]["SentTimestamp"]))
            for m in answer.get("Messages", ())
        ]

    def _keep(self) -> None:
        """Extend what is held, again and again; in a thread, because a batch of Spark lasts as long as it lasts."""
        timeout_s = self._options.visibility_timeout_s
        while not self._stopped.wait(timeout_s / _EXTENSIONS_PER_TIMEOUT):
            with self._lock:
                held = dict(self._held)
            try:
                asked = self._by_tens("change_message_visibility_batch", held, VisibilityTimeout=timeout_s)
                for batch, answer in asked:
                    self._drop([batch[int(failed["Id"])] for failed in answer.get("Failed", ())])
                    if self._stopped.is_set():
                        return
            except QueueUnavailable as failed:
                # The next round may reach it; at worst messages come again, and are recognized.
                log.warning("s3-sqs: could not keep messages invisible: %s", failed)

    def _drop(self, receipts: Iterable[tuple[str, str]]) -> None:
        """Hold these no longer: deleted meanwhile, or received again under another receipt."""
        with self._lock:
            for message_id, receipt in receipts:
                if self._held.get(message_id) == receipt:
                    del self._held[message_id]

    def _by_tens(
        self, name: str, receipts: Mapping[str, str], **more: object
    ) -> Iterator[tuple[list[tuple[str, str]], Any]]:
        """Call for ten messages at a time; each ten with the answer, which names messages by their place in it."""
        pairs = list(receipts.items())
        for begin in range(0, len(pairs), _PER_CALL):
            batch = pairs[begin : begin + _PER_CALL]
            entries = [{"Id": str(n), "ReceiptHandle": receipt, **more} for n, (_id, receipt) in enumerate(batch)]
            yield batch, self._call(name, QueueUrl=self._url, Entries=entries)

    def _call(self, name: str, **arguments: object) -> Any:
        try:
            return getattr(self._sqs, name)(**arguments)
        except (BotoCoreError, ClientError) as failed:
            raise QueueUnavailable(self._url, reason_of(failed)) from failed


def send_dead_letter(sqs: Any, queue_url: str, body: str, refusals: list[Refusal], source: str) -> None:
    """Send a message with the attributes reason_code, reason and source. Also called by tasks, for files.

    Attributes count for the most bytes that a message may have. Of a body that leaves no room for them the code goes
    along, or nothing.
    """
    codes = ",".join(sorted({refusal.code for refusal in refusals}))
    reason = " ".join(refusal.sentence for refusal in refusals)[:1000]
    attributes = {"reason_code": codes, "reason": reason, "source": source}
    for names in (tuple(attributes), ("reason_code",), ()):
        try:
            sqs.send_message(
                QueueUrl=queue_url,
                MessageBody=body,
                MessageAttributes={k: {"DataType": "String", "StringValue": attributes[k]} for k in names},
            )
        except (BotoCoreError, ClientError) as failed:
            refused = isinstance(failed, ClientError) and failed.response["Error"]["Code"] in _NOT_TAKEN
            if not refused or not names:
                raise QueueUnavailable(queue_url, reason_of(failed)) from failed
            log.warning("s3-sqs: a dead letter did not fit with %s: %s", ", ".join(names), reason)
        else:
            return

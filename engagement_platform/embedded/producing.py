"""Puts messages on a broker, at a steady rate or as fast as it goes, and counts what became of each.

Where the messages come from is `traffic`, or a file of lines read here.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Record

from engagement_platform.embedded.traffic import ENGAGEMENTS, Kind, Message, Traffic
from engagement_platform.errors import PlatformError
from engagement_platform.settings import KafkaSettings, PipelinesSettings, Settings
from engagement_platform.sources.kafka_errors import BrokerUnavailable, KafkaOptionRefused, TopicMissing
from engagement_platform.sources.kafka_options import client_options, without_secrets

# The broker's own limit decides (the embedded one takes 4 MiB); the client's default would refuse 1 MB already.
_LARGEST_BYTES = 32 * 1024 * 1024
# Below this a sleep is less exact than the pace it keeps.
_SHORTEST_SLEEP_S = 0.002
_POLL_EVERY = 1_000
# A topic that was made a moment ago is not known to every broker yet.
_TOPIC_APPEARS_WITHIN_S = 3.0

SAMPLE_START = datetime(2026, 1, 5, 8, tzinfo=UTC)
"""Where a sample of fixed length starts, so that the same seed makes the same sample on any day."""


@dataclass(frozen=True)
class ProduceReport:
    """What became of the messages: acknowledged by all replicas, per topic, or not, per reason."""

    produced: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    """Kafka's name of the error -> messages it happened to."""
    seconds: float = 0.0

    @property
    def failed(self) -> int:
        """Messages that did not arrive, or of which nobody knows."""
        return sum(self.failures.values())

    def __str__(self) -> str:
        total = sum(self.produced.values())
        topics = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(self.produced.items())) or "none"
        text = f"Produced {total:,} messages in {self.seconds:.1f} s: {topics}."
        if self.failures:
            reasons = ", ".join(f"{count:,} {name}" for name, count in sorted(self.failures.items()))
            text += f" {self.failed:,} were not delivered: {reasons}."
        return text


class NotDelivered(PlatformError):
    """The broker did not take every message."""

    def __init__(self, report: ProduceReport) -> None:
        self.report = report
        super().__init__(
            f"{report} The others are on the broker. Look at the broker's log and limits, then send again."
        )


class ProducerBroke(PlatformError):
    """The client gave up for good; idempotence cannot be kept after that."""

    def __init__(self, bootstrap_servers: str, reason: str) -> None:
        super().__init__(
            f"The Kafka client stopped producing to {bootstrap_servers}: {reason}. What was acknowledged before is on "
            "the broker. Start again"
        )


def produce(
    settings: KafkaSettings,
    messages: Iterable[Message],
    *,
    topics: Mapping[Kind, str] | None = None,
    rate: float | None = None,
    limit: int | None = None,
    stop: threading.Event | None = None,
) -> ProduceReport:
    """Send messages until they end, `limit` is reached or `stop` is set; then wait for every acknowledgement.

    topics: where each kind goes, by default the topics of the settings. rate: messages a second in all; who falls
    behind catches up.
    A message that the broker does not take is counted in the report, and the next one is sent.
    Raises BrokerUnavailable before anything is sent, TopicMissing, KafkaOptionRefused, ProducerBroke.
    """
    topics = topics or topics_of(settings)
    sender = _Sender(settings)
    stop = stop or threading.Event()
    try:
        _send_all(sender, islice(messages, limit), topics, rate, stop)
    except BaseException:
        # What was handed over before is not taken back.
        sender.finish()
        raise
    return sender.finish()


def topics_of(settings: KafkaSettings) -> dict[Kind, str]:
    """Where engagements, requests and changes of profiles go."""
    return {
        "engagements": settings.engagements_topic,
        "mutation-requests": settings.mutation_requests_topic,
        "profile-changes": settings.profile_changes_topic,
    }


def kinds_of(pipelines: PipelinesSettings) -> frozenset[Kind]:
    """What the traffic of a machine is for: messages of the pipelines that are on."""
    kinds: set[Kind] = {*ENGAGEMENTS} if pipelines.engagements else set()
    kinds |= {"profile-changes"} if pipelines.profiles else set()
    return frozenset(kinds | ({"page-views"} if pipelines.page_views else set()))


def read_jsonl(path: Path, kind: Kind = "engagements") -> Iterator[Message]:
    """Each line of the file as one message, byte for byte without its line feed, also when it is broken or empty.

    The key is the line's organization_id; none when the line does not say.
    """
    with path.open("rb") as lines:
        for line in lines:
            value = line.removesuffix(b"\n")
            yield Message(kind, _organization(value), value)


def produce_from(
    settings: Settings,
    *,
    sample: int | None = None,
    file: Path | None = None,
    topic: str | None = None,
    rate: float | None = None,
    stop: threading.Event | None = None,
) -> ProduceReport:
    """What `engagement-platform produce` does: a file, a sample of so many messages, or (neither) traffic until `stop`.

    topic: a file goes there whole, of sample and traffic the kind of message that the topic is for.
    rate: messages a second for file and sample; for endless traffic new engagements a second (default traffic.rate, 0
    sends nothing), as the setting counts, whatever else comes with them.
    The same settings make the same sample. Raises NotDelivered when a message was not taken, and what `produce` does.
    """
    topics: dict[Kind, str] = {**topics_of(settings.kafka), "page-views": settings.page_views.topic}
    # Of the sample only what the topic is for: requests among engagements would all be quarantined.
    only: Kind = next((kind for kind, of in topics.items() if of == topic), "engagements")
    kinds = ENGAGEMENTS if sample is not None else kinds_of(settings.pipelines)
    if topic is not None:
        kinds = ENGAGEMENTS if only in ENGAGEMENTS else frozenset({only})
    if file is not None:
        messages = read_jsonl(file)
    elif sample is not None:
        messages = Traffic(settings.traffic, start=SAMPLE_START, kinds=kinds).messages()
    else:
        traffic = Traffic(settings.traffic, start=datetime.now(UTC), clock=lambda: datetime.now(UTC), kinds=kinds)
        engagements = settings.traffic.rate if rate is None else rate
        rate = engagements * traffic.messages_per_engagement
        if rate <= 0:
            return ProduceReport()
        messages = traffic.messages()
    if topic is not None and file is None:
        messages = (message for message in messages if message.kind == only)
    report = produce(
        settings.kafka,
        messages,
        topics=dict.fromkeys(topics, topic) if topic else topics,
        rate=rate,
        limit=sample,
        stop=stop,
    )
    if report.failed:
        raise NotDelivered(report)
    return report


def _send_all(
    sender: _Sender, messages: Iterable[Message], topics: Mapping[Kind, str], rate: float | None, stop: threading.Event
) -> None:
    began = time.monotonic()
    for number, message in enumerate(messages):
        if rate:
            # From the beginning, not from the last message: waiting a little too long does not add up.
            ahead = began + number / rate - time.monotonic()
            if ahead > _SHORTEST_SLEEP_S:
                sender.turn()
                stop.wait(ahead)
        if stop.is_set():
            return
        sender.send(topics[message.kind], message)
        if number % _POLL_EVERY == 0:
            sender.turn()


class _Sender:
    """An idempotent producer and its counts: every message handed in ends as produced or as failed."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._produced: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._known: set[str] = set()
        self._complaint = ""
        self._began = time.monotonic()
        timeout_s = settings.timeout.total_seconds()
        options: dict[str, object] = client_options(settings) | {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "compression.type": "lz4",
            "message.max.bytes": _LARGEST_BYTES,
            "message.timeout.ms": int(timeout_s * 1000),
            "error_cb": self._complained,
        }
        try:
            self._producer = Producer(options)
        except KafkaException as refused:
            raise KafkaOptionRefused(without_secrets(refused.args[0].str(), settings)) from None

    def send(self, topic: str, message: Message) -> None:
        """Hand one message over; waits while the client's queue is full."""
        if topic not in self._known:
            self._require(topic)
        while True:
            try:
                self._producer.produce(topic, message.value, message.key, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as refused:
                error: KafkaError = refused.args[0]
                if error.fatal():
                    raise self._broke(error) from None
                self._failures[error.name()] += 1
                return
            else:
                return

    def turn(self) -> None:
        """Let the client report deliveries."""
        self._producer.poll(0)

    def finish(self) -> ProduceReport:
        """Wait until every message was acknowledged or has timed out."""
        # A message times out in the client after settings.timeout, so this wait ends by itself a little later.
        waiting = self._producer.flush(self._settings.timeout.total_seconds() + 5)
        if waiting:
            self._failures["_UNKNOWN_OUTCOME"] += waiting
        return ProduceReport(dict(self._produced), dict(self._failures), time.monotonic() - self._began)

    def _delivered(self, error: KafkaError | None, record: Record) -> None:
        if error is None:
            self._produced[str(record.topic())] += 1
        else:
            self._failures[error.name()] += 1

    def _complained(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._complaint = without_secrets(error.str(), self._settings)

    def _broke(self, error: KafkaError) -> ProducerBroke:
        return ProducerBroke(self._settings.bootstrap_servers, without_secrets(error.str(), self._settings))

    def _require(self, topic: str) -> None:
        """Ask for the topic before the first message to it: a message to nowhere would only time out much later."""
        seconds = self._settings.timeout.total_seconds()
        deadline = time.monotonic() + min(seconds, _TOPIC_APPEARS_WITHIN_S)
        while True:
            try:
                found = self._producer.list_topics(topic, timeout=seconds).topics[topic].error
            except KafkaException as failed:
                self._producer.poll(0)
                reason = self._complaint or without_secrets(failed.args[0].str(), self._settings)
                raise BrokerUnavailable(self._settings.bootstrap_servers, seconds, reason) from None
            if found is None:
                self._known.add(topic)
                return
            if time.monotonic() > deadline:
                raise TopicMissing(self._settings.bootstrap_servers, topic)
            time.sleep(0.2)


def _organization(line: bytes) -> bytes | None:
    try:
        fields = json.loads(line)
        organization = fields.get("organization_id") if isinstance(fields, dict) else None
        return organization.encode() if isinstance(organization, str) else None
    except (ValueError, RecursionError):
        # Broken on purpose, most likely; UnicodeError is a ValueError too.
        return None

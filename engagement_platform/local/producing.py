"""Puts messages on a broker, at a steady rate or as fast as it goes, and counts what became of each.

Where the messages come from is `traffic`, or a file of lines read here.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Record

from engagement_platform.errors import PlatformError
from engagement_platform.local.traffic import ENGAGEMENTS, Kind, Message, Traffic
from engagement_platform.settings import KafkaSettings, PipelinesSettings, Settings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.kafka_errors import KafkaRefused, TopicMissing
from engagement_platform.sources.kafka_options import client_options, without_secrets

# The broker's own limit decides (the embedded one takes 4 MiB); the client's default would refuse 1 MB already.
_LARGEST_BYTES = 32 * 1024 * 1024
# Below this a sleep is less exact than the pace it keeps.
_SHORTEST_SLEEP_S = 0.002
_POLL_EVERY = 1_000
# Brokers of a cluster learn of a new topic one after the other, within milliseconds (three seconds are a guess).
_TOPIC_KNOWN_WITHIN_S = 3.0

SAMPLE_START = datetime(2026, 1, 5, 8, tzinfo=UTC)
"""Where a sample of fixed length starts, so that the same seed makes the same sample on any day."""


@dataclass
class ProduceReport:
    """What became of the messages: acknowledged by all replicas, per topic, or not, per reason."""

    produced: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """Kafka's name of the error -> messages it happened to."""
    seconds: float = 0.0

    @property
    def failed(self) -> int:
        """Messages that did not arrive, or whose outcome is unknown."""
        return self.failures.total()

    def __str__(self) -> str:
        topics = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(self.produced.items())) or "none"
        text = f"Produced {self.produced.total():,} messages in {self.seconds:.1f} s: {topics}."
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

    topics: where each kind goes, by default the topics of the settings. rate: messages a second in all; a producer that
    falls behind catches up. A message that the broker does not take is counted in the report, and the next one is sent.
    Raises BrokerUnavailable before anything is sent, TopicMissing, KafkaRefused, and PlatformError when the
    client gives up for good.
    """
    topics, stop, began = topics or topics_of(settings), stop or threading.Event(), time.monotonic()
    report, known = ProduceReport(), set[str]()
    producer = _producer(settings)

    def delivered(error: KafkaError | None, record: Record) -> None:
        if error is None:
            report.produced[str(record.topic())] += 1
        else:
            report.failures[error.name()] += 1

    try:
        for number, message in enumerate(islice(messages, limit)):
            # From the beginning, not from the last message: waiting a little too long does not add up.
            ahead = began + number / rate - time.monotonic() if rate else 0.0
            if ahead > 0 or number % _POLL_EVERY == 0:
                producer.poll(0)
            if ahead > 0:
                # Never early: what is due within a moment waits for all of it, and the next ones catch up.
                stop.wait(max(ahead, _SHORTEST_SLEEP_S))
            if stop.is_set():
                break
            topic = topics[message.kind]
            if topic not in known:
                # A message to nowhere would only time out, much later.
                _require_topic(topic, settings)
                known.add(topic)
            try:
                _hand_over(producer, topic, message, delivered)
            except KafkaException as refused:
                error: KafkaError = refused.args[0]
                if error.fatal():
                    raise PlatformError(
                        f"The Kafka client stopped producing to {settings.bootstrap_servers}: "
                        f"{without_secrets(error.str(), settings)}. What was acknowledged before is on the broker. "
                        "Start again."
                    ) from None
                report.failures[error.name()] += 1
    finally:
        # What was handed over is not taken back. A message times out in the client after settings.timeout.
        if unknown := producer.flush(settings.timeout.total_seconds() + 5):
            report.failures["_UNKNOWN_OUTCOME"] += unknown
    report.seconds = time.monotonic() - began
    return report


def _require_topic(topic: str, settings: KafkaSettings) -> None:
    """Raise TopicMissing when still no broker has it after a moment, and what else is wrong at once."""
    source, deadline = KafkaSource(topic, settings), time.monotonic() + _TOPIC_KNOWN_WITHIN_S
    while True:
        try:
            source.end_offsets()
        except TopicMissing:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _producer(settings: KafkaSettings) -> Producer:
    """Idempotent, acknowledged by all replicas."""
    options = {
        **client_options(settings),
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 20,
        "compression.type": "lz4",
        "message.max.bytes": _LARGEST_BYTES,
        "message.timeout.ms": int(settings.timeout.total_seconds() * 1000),
    }
    try:
        return Producer(options)
    except KafkaException as refused:
        raise KafkaRefused(without_secrets(refused.args[0].str(), settings)) from None


def _hand_over(
    producer: Producer, topic: str, message: Message, delivered: Callable[[KafkaError | None, Record], None]
) -> None:
    """Wait while the client's queue is full."""
    while True:
        try:
            producer.produce(topic, message.value, message.key, on_delivery=delivered)
        except BufferError:
            producer.poll(0.1)
        else:
            return


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


def read_jsonl(path: Path) -> Iterator[Message]:
    """Each line of the file as one message, byte for byte without its line feed, also when it is broken or empty.

    The key is the line's organization_id; none when the line has none.
    """
    with path.open("rb") as lines:
        for line in lines:
            value, key = line.removesuffix(b"\n"), None
            # Broken on purpose, most likely; UnicodeError, also of half a surrogate pair, is a ValueError too.
            with suppress(ValueError, RecursionError):
                fields = json.loads(value)
                organization = fields.get("organization_id") if isinstance(fields, dict) else None
                key = organization.encode() if isinstance(organization, str) else None
            yield Message("engagements", key, value)


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
        rate = (settings.traffic.rate if rate is None else rate) * traffic.messages_per_engagement
        messages = traffic.messages() if rate > 0 else iter(())
    if topic is not None:
        topics = dict.fromkeys(topics, topic)
        messages = (message for message in messages if file is not None or message.kind == only)
    report = produce(settings.kafka, messages, topics=topics, rate=rate, limit=sample, stop=stop)
    if report.failed:
        raise NotDelivered(report)
    return report

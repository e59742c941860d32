"""What `up` shows of the work done, and whether the books balance; the caller says where the figures come from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from engagement_platform.errors import PlatformError
from engagement_platform.settings import KafkaSettings, Settings


class BrokerSilent(PlatformError):
    """The broker did not tell its offsets."""

    def __init__(self, bootstrap_servers: str, cause: str) -> None:
        super().__init__(
            f"The broker at {bootstrap_servers} does not answer ({cause}). Nothing was changed. Which broker it is, is "
            "set by ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS."
        )


class Snapshot(Protocol):
    """Totals since the stores exist, counted from finished batches; landed to backlog in messages of the topics."""

    @property
    def landed(self) -> int: ...
    @property
    def duplicates(self) -> int: ...
    @property
    def quarantined(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def backlog(self) -> int:
        """Messages on the broker behind the end of each job's last finished batch; a running batch's are included."""
        ...

    @property
    def failing(self) -> str | None:
        """Which job's last batch failed, and why."""
        ...

    @property
    def mutation_batches(self) -> int: ...
    @property
    def requests_applied(self) -> int:
        """Accepted requests that are announced."""
        ...

    @property
    def requests_waiting(self) -> int:
        """Accepted requests that are not; readers of the view see them."""
        ...


class Summary(Protocol):
    """Totals of the batches that finished at or after a moment; landed to batches of the topics' messages alone."""

    @property
    def landed(self) -> int: ...
    @property
    def duplicates(self) -> int: ...
    @property
    def quarantined(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def files(self) -> int: ...
    @property
    def freshness_p50_s(self) -> float | None:
        """Seconds from produced to committed; None when nothing landed."""
        ...

    @property
    def freshness_p95_s(self) -> float | None: ...
    @property
    def freshness_running_p95_s(self) -> float | None:
        """Without the first batches after a start."""
        ...

    @property
    def mutation_batches(self) -> int: ...
    @property
    def requests_applied(self) -> int: ...
    @property
    def rows_mutated(self) -> int:
        """Rows that requests inserted, updated or deleted for readers."""
        ...

    @property
    def mutated_p50_s(self) -> float | None:
        """Seconds from a request's production to the end of the batch that announced it; None when none was."""
        ...

    @property
    def mutated_p95_s(self) -> float | None: ...


@dataclass(frozen=True)
class Figures:
    """The two questions `up` asks the stores."""

    snapshot: Callable[[Settings], Snapshot]
    summary: Callable[[Settings, datetime], Summary]


@dataclass(frozen=True)
class Opening:
    """The books when `up` began, before anything was produced or ingested by it."""

    at: datetime
    on_broker: int
    """Messages ever written to the topics."""
    snapshot: Snapshot


@dataclass(frozen=True)
class Unknown:
    """A snapshot for when there is none: `up` still has to show the UI in which one can see why."""

    landed: int = 0
    duplicates: int = 0
    quarantined: int = 0
    batches: int = 0
    backlog: int = 0
    failing: str | None = None
    mutation_batches: int = 0
    requests_applied: int = 0
    requests_waiting: int = 0


def balance(opening: Opening, on_broker: int, summary: Summary) -> int:
    """Messages that are unaccounted for; 0 is right, negative means that some were counted twice.

    What was waiting at the opening and what was produced since must have landed, been known or been quarantined. A
    request is accounted for when it lands; its announcement is no message of its own.
    """
    expected = opening.snapshot.backlog + on_broker - opening.on_broker
    return expected - summary.landed - summary.duplicates - summary.quarantined


def messages_on_broker(kafka: KafkaSettings) -> int:
    """Messages ever written to the topics: the sum of their end offsets, whatever retention removed since.

    Asked of the broker, not of the producer, so that a producer that was killed cannot make the books wrong.
    Raises BrokerSilent.
    """
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    security = {key: value.get_secret_value() for key, value in kafka.security.items()}
    timeout_s = kafka.timeout.total_seconds()
    consumer = Consumer(
        {**security, "bootstrap.servers": kafka.bootstrap_servers, "group.id": "engagement-platform", "log_level": 0}
    )
    total = 0
    try:
        for topic in (kafka.engagements_topic, kafka.mutation_requests_topic, kafka.profile_changes_topic):
            described = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
            for partition in described.partitions:
                _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
                total += end
    except KafkaException as error:
        raise BrokerSilent(kafka.bootstrap_servers, str(error.args[0])) from error
    finally:
        consumer.close()
    return total


class Watch:
    """Asks every few seconds in a thread, so that a broker that is down never stops the console. `latest` and
    `on_broker` are the last answers, `trouble` is why there is no newer one, `asked` counts the rounds."""

    def __init__(self, settings: Settings, ask: Callable[[Settings], Snapshot], every_s: float = 2.0) -> None:
        self._settings, self._ask, self._every_s = settings, ask, every_s
        self._stop = threading.Event()
        self.latest: Snapshot | None = None
        self.on_broker: int | None = None
        self.trouble: str | None = None
        self.asked = 0
        self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)

    def start(self) -> None:
        """Begin asking."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; does not wait for a question under way."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.on_broker = messages_on_broker(self._settings.kafka)
                self.latest, self.trouble = self._ask(self._settings), None
            except PlatformError as error:
                self.trouble = str(error)
            except Exception as error:  # the console says it; the services go on
                self.trouble = f"{type(error).__name__}: {error}"
            self.asked += 1
            self._stop.wait(self._every_s)

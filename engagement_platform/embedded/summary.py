"""Whether the messages of a run of `up` are accounted for, and the thread that asks for the figures meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from engagement_platform.errors import PlatformError
from engagement_platform.settings import KafkaSettings, Settings
from engagement_platform.sources.kafka import KafkaSource
from engagement_platform.sources.kafka_errors import TopicMissing
from engagement_platform.status import StatusSnapshot, StatusSummary, snapshot


@dataclass(frozen=True)
class Opening:
    """The figures when `up` began, before it produced or ingested anything."""

    at: datetime
    on_broker: int
    """Messages ever written to the topics."""
    snapshot: StatusSnapshot


def balance(opening: Opening, on_broker: int, summary: StatusSummary) -> int:
    """Messages that are unaccounted for; 0 is right, negative means that some were counted twice.

    Each message that waited at the opening or was produced since must have landed, been known or been quarantined. A
    request is accounted for when it lands; its announcement is no message of its own.
    """
    expected = opening.snapshot.backlog + on_broker - opening.on_broker
    return expected - summary.landed - summary.duplicates - summary.quarantined


def messages_on_broker(kafka: KafkaSettings) -> int:
    """Messages ever written to the topics: the sum of their end offsets, whatever retention removed since.

    Asks the broker, not the producer, so that a producer that was killed cannot make the sum wrong. A topic that does
    not exist holds none. Raises BrokerUnavailable, BrokerRefused, KafkaOptionRefused.
    """
    total = 0
    for topic in (kafka.engagements_topic, kafka.mutation_requests_topic, kafka.profile_changes_topic):
        with suppress(TopicMissing):
            total += sum(KafkaSource(topic, kafka).end_offsets().values())
    return total


class Watch:
    """Asks every few seconds in a thread, so that a broker that is down never stops the console. `latest` and
    `on_broker` are the last answers, `trouble` is why there is no newer one, `asked` counts the rounds."""

    def __init__(
        self, settings: Settings, ask: Callable[[Settings], StatusSnapshot] = snapshot, every_s: float = 2.0
    ) -> None:
        self._settings, self._ask, self._every_s = settings, ask, every_s
        self._stop = threading.Event()
        self.latest: StatusSnapshot | None = None
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

"""What the rest of the platform calls: say that something is wrong or over, send what waits. Nothing here ever raises.

A pipeline only writes a row; sending goes on in threads that nobody waits for.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from engagement_platform.alerting.model import Alert, Severity, Standing, State
from engagement_platform.alerting.outbox import Outbox, Queue
from engagement_platform.alerting.schema import make_tables
from engagement_platform.alerting.sender import Sender, Target
from engagement_platform.alerting.store import AlertStore, Telling
from engagement_platform.errors import PlatformError
from engagement_platform.settings import AlertingSettings

_LOG = logging.getLogger(__name__)

NOBODY = "alerting.urls is empty: nothing is sent"

_TROUBLE = (PlatformError, SQLAlchemyError)


def utc_now() -> datetime:
    """This machine's clock, UTC."""
    return datetime.now(UTC)


class Alerts:
    """Alerts of one database, told to the URLs of one set of settings.

    `counts` has what happened since it was made: sent, failed, given_up, not_kept (the database did not take it).
    """

    def __init__(self, engine: Engine, settings: AlertingSettings, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._engine, self._settings = engine, settings
        self._store, self._outbox = AlertStore(engine, clock), Outbox(engine, clock)
        self._sender = Sender(settings.urls, settings.timeout)
        self._lock = threading.Lock()
        self._sending: threading.Thread | None = None
        self._tables_made = False
        self.counts: Counter[str] = Counter()

    @property
    def targets(self) -> tuple[Target, ...]:
        """Whom messages go to, in the order of the settings."""
        return self._sender.targets

    def raised(self, alert: Alert) -> State | None:
        """Something is wrong, again or for the first time. None when that could not be kept; the log says so."""
        try:
            self._ready()
            return self._store.raised(alert, self._telling(alert.key, alert.severity))
        except _TROUBLE as error:
            self._not_kept(alert.key, error)
            return None

    def recovered(self, key: str, words: str = "") -> bool:
        """Something is over; whether it stood. words: what is said of it, sentences."""
        try:
            self._ready()
            # Whether it was told is known to the store: the severity to go by is the one it had then.
            return self._store.recovered(key, words, self._telling(key, None))
        except _TROUBLE as error:
            self._not_kept(key, error)
            return False

    def standing(self) -> list[Standing]:
        """Alerts that stand now, worst first. Raises StoresUnavailable: it is asked by people, not by pipelines."""
        self._ready()
        return self._store.standing()

    def queues(self) -> dict[Target, Queue]:
        """What waits for each URL, and what it never took. Raises StoresUnavailable."""
        self._ready()
        found = self._outbox.queues([target.name for target in self.targets])
        return {target: found[target.name] for target in self.targets}

    def deliver(self) -> None:
        """Send what is due, to all URLs side by side; ends when each has taken it, refused, or used its time."""
        try:
            self._ready()
            self._outbox.tidy([target.name for target in self.targets])
        except _TROUBLE as error:
            self._not_kept("the outbox", error)
            return
        threads = [
            threading.Thread(target=self._deliver_to, args=(target,), name=f"alerts-{target.name}", daemon=True)
            for target in self.targets
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def deliver_in_background(self) -> threading.Thread:
        """The same in a thread, and back at once; a delivery that is under way is left to go on."""
        with self._lock:
            if self._sending is None or not self._sending.is_alive():
                self._sending = threading.Thread(target=self.deliver, name="alerts", daemon=True)
                self._sending.start()
            return self._sending

    def muted(self, key: str) -> bool:
        """Whether the settings keep this alert from being sent."""
        return any(fnmatchcase(key, pattern) for pattern in self._settings.mute)

    def _ready(self) -> None:
        # Not in the constructor: a database that is down then must not stop a run, either.
        if not self._tables_made:
            make_tables(self._engine)
            self._tables_made = True

    def _telling(self, key: str, severity: Severity | None) -> Telling:
        tell = (severity is None or severity in self._settings.severities) and not self.muted(key)
        targets: Sequence[str] = [target.name for target in self.targets] if tell else ()
        return Telling(targets, self._settings.dedupe, self._settings.settle)

    def _deliver_to(self, target: Target) -> None:
        try:
            left = self._outbox.take(target.name, self._settings.per_minute, self._settings.timeout)
            while left:
                sent = self._sender.send(target, left[0].message)
                if not sent.taken:
                    given_up = self._outbox.failed(target.name, left, sent.reason, self._settings.keep_trying)
                    self._refused(target, given_up, sent.reason)
                    return
                self._count("sent")
                self._outbox.sent(target.name, left[0])
                left = left[1:]
        except _TROUBLE as error:
            self._not_kept(f"the outbox of {target.name}", error)

    def _refused(self, target: Target, given_up: int, reason: str) -> None:
        self._count("failed")
        self._count("given_up", given_up)
        lost = f" {given_up} messages are given up." if given_up else " It is tried again."
        _LOG.warning("An alert was not delivered to %s: %s.%s", target.name, reason, lost)

    def _not_kept(self, what: str, error: Exception) -> None:
        self._count("not_kept")
        # The first line only: SQLAlchemy adds statement and parameters.
        _LOG.error("Alerting could not keep %s: %s", what, (str(error).splitlines() or [type(error).__name__])[0])

    def _count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self.counts[what] += by

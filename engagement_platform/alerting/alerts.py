"""What the rest of the platform calls: say that something is wrong or over, send what is due. Nothing here ever raises.

A pipeline only writes a row; sending goes on in threads that nobody waits for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from engagement_platform.alerting.model import Alert, Standing, State
from engagement_platform.alerting.schema import make_tables
from engagement_platform.alerting.sender import Sender, Target
from engagement_platform.alerting.store import AlertStore, Queue
from engagement_platform.errors import PlatformError
from engagement_platform.settings import AlertingSettings

_LOG = logging.getLogger(__name__)

NOBODY = "alerting.urls is empty: nothing is sent"

_TROUBLE = (PlatformError, SQLAlchemyError)


def utc_now() -> datetime:
    """This machine's clock, UTC."""
    return datetime.now(UTC)


class Alerts:
    """Alerts of one database, sent to the URLs of one set of settings."""

    def __init__(self, engine: Engine, settings: AlertingSettings, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._engine, self._settings = engine, settings
        self._store = AlertStore(engine, settings, self.muted, clock)
        self._sender = Sender(settings.urls, settings.timeout)
        self._lock = threading.Lock()
        self._sending: threading.Thread | None = None
        self._tables_made = False

    @property
    def targets(self) -> tuple[Target, ...]:
        """Whom messages go to, in the order of the settings."""
        return self._sender.targets

    def raised(self, alert: Alert) -> State | None:
        """Something is wrong, again or for the first time. None when that could not be kept; the log says so."""
        try:
            return self._ready().raised(alert)
        except _TROUBLE as error:
            _not_kept(alert.key, error)
            return None

    def recovered(self, key: str, words: str = "") -> bool:
        """Something is over; whether it stood. words: what is said of it, sentences."""
        try:
            return self._ready().recovered(key, words)
        except _TROUBLE as error:
            _not_kept(key, error)
            return False

    def standing(self) -> list[Standing]:
        """Alerts that stand now, worst first. Raises StoresUnavailable: it is asked by people, not by pipelines."""
        return self._ready().standing()

    def queues(self) -> dict[Target, Queue]:
        """What waits for each URL. Raises StoresUnavailable."""
        store = self._ready()
        return {target: store.queue(target.name) for target in self.targets}

    def deliver(self) -> None:
        """Send what is due, to all URLs side by side; ends when each has taken it, refused, or used its time."""
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

    def _ready(self) -> AlertStore:
        # Not in the constructor: a database that is down then must not stop a run, either.
        with self._lock:
            if not self._tables_made:
                make_tables(self._engine)
                self._tables_made = True
        return self._store

    def _deliver_to(self, target: Target) -> None:
        try:
            store = self._ready()
            parcels = store.take(target.name)
            for place, parcel in enumerate(parcels, start=1):
                sent = self._sender.send(target, parcel.message)
                if not sent.taken:
                    store.failed(target.name, sent.reason)
                    _LOG.warning("An alert was not delivered to %s: %s. It is tried again.", target.name, sent.reason)
                    return
                store.sent(target.name, parcel, more=place < len(parcels))
        except _TROUBLE as error:
            _not_kept(f"what was sent to {target.name}", error)


def _not_kept(what: str, error: Exception) -> None:
    # The first line only: SQLAlchemy adds statement and parameters.
    _LOG.error("Alerting could not keep %s: %s", what, (str(error).splitlines() or [type(error).__name__])[0])

"""What is wrong at the moment, in one table of the stores' database, and sending what people are to know of it.

What a URL is sent follows from where an alert is and what the URL was sent last about it; there is no queue. So what a
URL did not take is sent later, as it is then, and what was over before it could be sent is not sent at all. Raising
only writes a row; sending goes on in threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, Row, String, Table, Text, delete, select
from sqlalchemy.exc import SQLAlchemyError

from engagement_platform.alerting.model import Alert, Message, Severity, State, message_about, summed_up
from engagement_platform.alerting.sender import Target, targets_of
from engagement_platform.engine.database import ensure_tables, reading, storable, upsert, utc_now, writing
from engagement_platform.engine.schema import JsonObject, UtcTimestamp
from engagement_platform.errors import PlatformError, first_line
from engagement_platform.settings import AlertingSettings

_LOG = logging.getLogger(__name__)

NOTHING_SENT = "alerting.urls is empty: nothing is sent"
KEPT = timedelta(days=1)
"""How long an alert that is over is kept, for a URL that takes nothing meanwhile."""

_TROUBLE = (PlatformError, SQLAlchemyError)
_LOCK = "alerts"
_MINUTE_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 30.0, 300.0
_OF_FAILURES = ("failures", "reason", "pause")

# Of its own and not among the stores' tables: what looks at alerts first makes it.
_METADATA = MetaData()
ALERTS = Table(
    "alerts",
    _METADATA,
    Column("key", Text, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("labels", JsonObject, nullable=False),
    Column("times", BigInteger, nullable=False),
    Column("since_ts", UtcTimestamp, nullable=False),
    Column("seen_ts", UtcTimestamp, nullable=False),
    Column("recovered_ts", UtcTimestamp),
    # The words about the recovery.
    Column("recovery", Text, nullable=False),
    # Name of a URL -> what it was sent last (`state`, `severity`, `at`), when messages that began with this alert were
    # sent (`messages`, those of a minute), until when it is being sent something (`until`), how often in a row, why,
    # and until when it takes nothing (`failures`, `reason`, `pause`). Unix times.
    Column("sent", JsonObject, nullable=False),
)

Entry = dict[str, Any]
Due = tuple[Message, Row[Any], State, Severity]


@dataclass(frozen=True)
class Standing:
    """An alert that is not over."""

    alert: Alert
    """With the `since` of its beginning and the words of its newest look."""
    state: State
    times: int
    """How often it was seen since it began."""
    seen_ts: datetime
    sent: bool
    """Whether any URL was sent something about it."""


@dataclass(frozen=True)
class Queue:
    """What is known of the messages to one URL."""

    waiting: int
    reason: str | None
    """Why the last attempt failed; None when it did not."""


class Alerts:
    """Alerts of one database, sent to the URLs of one set of settings."""

    def __init__(self, engine: Engine, settings: AlertingSettings, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._engine, self._settings, self._clock = engine, settings, clock
        self.targets: tuple[Target, ...] = targets_of(settings.urls, settings.timeout)
        self._lock = threading.Lock()
        self._sending: dict[str, threading.Thread] = {}

    def raised(self, alert: Alert) -> State | None:
        """Keep that something is wrong: RAISED when that is new, REPEATED when it goes on. Never raises.

        What recovered less than `settle` ago goes on. None when it could not be kept; the log says so.
        """
        try:
            with self._writing() as connection:
                return self._raised(connection, alert)
        except _TROUBLE as error:
            _not_kept(alert.key, error)
            return None

    def _raised(self, connection: Connection, alert: Alert) -> State:
        now, kept = self._clock(), _row(connection, alert.key)
        over = kept and kept.state == State.RECOVERED and self._settled(kept.recovered_ts, now)
        before = None if over else kept
        state = State.REPEATED if before else State.RAISED
        values = {name: getattr(alert, name) for name in ("key", "severity", "source", "labels")}
        # A check or a run quotes what it found: a database refuses some of that.
        values |= {"title": storable(alert.title), "body": storable(alert.body)}
        values |= {
            "state": state,
            "times": before.times + 1 if before else 1,
            "since_ts": before.since_ts if before else alert.since,
            "seen_ts": now,
            "recovered_ts": None,
            "recovery": "",
            "sent": kept.sent if kept else {},
        }
        upsert(connection, ALERTS, values, "key")
        return state

    def recovered(self, key: str, words: str = "") -> bool | None:
        """Keep that something is over, and sentences about that; whether it was wrong before. Never raises.

        None when it could not be kept; the log says so.
        """
        over = {"state": State.RECOVERED, "recovered_ts": self._clock(), "recovery": storable(words)}
        try:
            with self._writing() as connection:
                wrong = (ALERTS.c.key == key) & (ALERTS.c.state != State.RECOVERED)
                return connection.execute(ALERTS.update().where(wrong).values(**over)).rowcount > 0
        except _TROUBLE as error:
            _not_kept(key, error)
            return None

    def standing(self) -> list[Standing]:
        """Alerts that are not over, worst first, of one severity the oldest first. Raises StoresUnavailable."""
        rows = [row for row in self._rows() if row.state != State.RECOVERED]
        found = [
            Standing(
                _alert(row), State(row.state), row.times, row.seen_ts, any("at" in one for one in row.sent.values())
            )
            for row in rows
        ]
        return sorted(found, key=lambda one: -one.alert.severity.rank)

    def queues(self) -> dict[Target, Queue]:
        """What waits for each URL. Raises StoresUnavailable."""
        rows, now = self._rows(), self._clock()
        found = {}
        for target in self.targets:
            reasons = [sent["reason"] for row in rows if (sent := _sent(row, target)).get("reason")]
            found[target] = Queue(len(self._due(rows, target, now)), reasons[-1] if reasons else None)
        return found

    def deliver(self) -> None:
        """Send what is due, to all URLs side by side; ends when each has taken it or refused. Never raises."""
        for thread in self.deliver_in_background():
            thread.join()

    def deliver_in_background(self) -> list[threading.Thread]:
        """The same in threads, and back at once. A URL that is still busy is left alone."""
        with self._lock:
            for target in self.targets:
                busy = self._sending.get(target.name)
                if busy is None or not busy.is_alive():
                    thread = threading.Thread(target=self._deliver_to, args=(target,), daemon=True)
                    self._sending[target.name] = thread
                    thread.start()
            return list(self._sending.values())

    def muted(self, key: str) -> bool:
        """Whether the settings keep this alert from being sent."""
        return any(fnmatchcase(key, pattern) for pattern in self._settings.mute)

    def _deliver_to(self, target: Target) -> None:
        try:
            while claimed := self._claim(target):
                message = claimed[0][0] if len(claimed) == 1 else summed_up([one[0] for one in claimed])
                reason = target.send(message)
                self._settle(target, claimed, reason)
                if reason is not None:
                    _LOG.warning("An alert was not delivered to %s: %s. It is tried again.", target.name, reason)
                    return
        except _TROUBLE as error:
            _not_kept(f"what was sent to {target.name}", error)

    def _claim(self, target: Target) -> list[Due]:
        """What a URL is sent next: one message, or all that are due when only one more may go out in this minute.

        No other process takes anything for the URL until that is settled, or until time is up.
        """
        with self._writing() as connection:
            now = self._clock()
            at = now.timestamp()
            connection.execute(delete(ALERTS).where(ALERTS.c.recovered_ts < now - KEPT))
            rows = _all(connection)
            sent = [_sent(row, target) for row in rows]
            busy_s = self._settings.timeout.total_seconds() + _MINUTE_S
            spans = {"until": busy_s, "pause": _LONGEST_PAUSE_S}
            # Not what lies further ahead than it may: a clock was ahead when that was written.
            if any(at < one.get(name, 0.0) <= at + span_s for one in sent for name, span_s in spans.items()):
                return []
            room = self._settings.per_minute - sum(len(_of_a_minute(one, at)) for one in sent)
            # What the URL refused before comes after all else: it may be for what it says.
            due = sorted(self._due(rows, target, now), key=lambda one: _sent(one[1], target).get("failures", 0))
            claimed = due[:1] if room > 1 else due if room == 1 else []
            for _, row, _, _ in claimed:
                _put(connection, target, row, {**_sent(row, target), "until": at + busy_s})
            return claimed

    def _settle(self, target: Target, claimed: Sequence[Due], reason: str | None) -> None:
        """A URL took what was claimed for it, and its failures are over; or did not, and is left alone for longer after
        each failure in a row."""
        with self._writing() as connection:
            at = self._clock().timestamp()
            failures = max((_sent(row, target).get("failures", 0) for row in _all(connection)), default=0)
            pause = at + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(failures, 10))
            for number, (_, claimed_row, state, severity) in enumerate(claimed):
                row = _row(connection, claimed_row.key)
                if row is None:
                    continue
                before = {name: value for name, value in _sent(row, target).items() if name != "until"}
                messages = _of_a_minute(before, at) + ([at] if number == 0 else [])
                entry = (
                    {"state": state, "severity": severity, "at": at, "messages": messages}
                    if reason is None
                    else {**before, "failures": failures + 1, "reason": reason, "pause": pause}
                )
                _put(connection, target, row, entry)
            if reason is None:
                for row in _all(connection):
                    sent = _sent(row, target)
                    if any(name in sent for name in _OF_FAILURES):
                        left = {name: value for name, value in sent.items() if name not in _OF_FAILURES}
                        _put(connection, target, row, left)

    def _due(self, rows: Sequence[Row[Any]], target: Target, now: datetime) -> list[Due]:
        """Messages for a URL, oldest alert first, each with its alert and what the URL has been sent then."""
        found = []
        for row in rows:
            alert, sent = _alert(row), _sent(row, target)
            state = self._to_send(row, sent, now)
            if state is None or self.muted(alert.key):
                continue
            worst = alert.severity
            if sent.get("state") not in (None, State.RECOVERED):
                worst = max(worst, Severity(sent["severity"]), key=lambda one: one.rank)
            over = row.recovered_ts if state is State.RECOVERED else None
            found.append((message_about(alert, state, row.times, over, row.recovery), row, state, worst))
        return found

    def _to_send(self, row: Row[Any], sent: Entry, now: datetime) -> State | None:
        """What a URL is to be sent about an alert; None: nothing.

        What is new, what got worse, and what goes on once in `dedupe`; a recovery once it has lasted for `settle`.
        """
        knows = sent.get("state") not in (None, State.RECOVERED)
        if row.state == State.RECOVERED:
            return State.RECOVERED if knows and self._settled(row.recovered_ts, now) else None
        if row.severity not in self._settings.severities:
            return None
        if not knows:
            return State.RAISED
        worse = Severity(row.severity).rank > Severity(sent["severity"]).rank
        at = now.timestamp()
        last = sent["at"] if sent["at"] <= at else 0.0
        again = last < row.seen_ts.timestamp() <= at and at - last >= self._settings.dedupe.total_seconds()
        return State.REPEATED if worse or again else None

    def _settled(self, recovered: datetime, now: datetime) -> bool:
        """Whether a recovery has lasted; one that lies ahead was written by a clock that was ahead."""
        return recovered > now or now - recovered >= self._settings.settle

    @cached_property
    def _database(self) -> Engine:
        """With the table, which is looked for once: what judges games asks for each of them, each minute."""
        # Not in the constructor: a database that is down then must not stop a run, either.
        ensure_tables(self._engine, _METADATA)
        return self._engine

    def _writing(self) -> AbstractContextManager[Connection]:
        return writing(self._database, _LOCK)

    def _rows(self) -> Sequence[Row[Any]]:
        with reading(self._database) as connection:
            return _all(connection)


def _all(connection: Connection) -> Sequence[Row[Any]]:
    return connection.execute(select(ALERTS).order_by(ALERTS.c.since_ts, ALERTS.c.key)).all()


def _row(connection: Connection, key: str) -> Row[Any] | None:
    return connection.execute(select(ALERTS).where(ALERTS.c.key == key)).one_or_none()


def _sent(row: Row[Any], target: Target) -> Entry:
    return dict(row.sent.get(target.name, {}))


def _of_a_minute(sent: Entry, at: float) -> list[float]:
    """When messages that began with this alert were sent, of the minute before `at`."""
    return [moment for moment in sent.get("messages", ()) if at - _MINUTE_S < moment <= at]


def _put(connection: Connection, target: Target, row: Row[Any], entry: Entry) -> None:
    sent = {**row.sent, target.name: entry}
    connection.execute(ALERTS.update().where(ALERTS.c.key == row.key).values(sent=sent))


def _alert(row: Row[Any]) -> Alert:
    return Alert(row.key, Severity(row.severity), row.title, row.body, row.source, row.since_ts, row.labels)


def _not_kept(what: str, error: Exception) -> None:
    # The first line only: SQLAlchemy adds statement and parameters.
    _LOG.error("Alerting could not keep %s: %s", what, first_line(error))

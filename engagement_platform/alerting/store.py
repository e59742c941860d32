"""What is wrong at the moment, one row an alert, and what each URL was sent about it.

What is sent follows from where an alert stands and what the URL was sent last; there is no queue. So what a URL did not
take is sent with the next delivery, as it stands then, and what was over before anything was sent is not told at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, Row, Table, and_, func, or_, select

from engagement_platform.alerting.model import Alert, Message, Severity, Standing, State
from engagement_platform.alerting.schema import ALERT, ALERT_SENT, ALERT_TARGET
from engagement_platform.alerting.wording import summed_up, worded
from engagement_platform.engine.database import reading, writing
from engagement_platform.settings import AlertingSettings

_LOCK = "alerts"
_MINUTE = timedelta(minutes=1)
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(minutes=5)


@dataclass(frozen=True)
class Parcel:
    """What goes to a URL in one call: a message, and which alerts it is about, each with its state and severity."""

    message: Message
    about: tuple[tuple[str, State, Severity], ...]


@dataclass(frozen=True)
class Queue:
    """What is known of the messages to one URL."""

    waiting: int
    reason: str | None
    """Why the last attempt failed; None when it did not."""


def parcels(messages: Sequence[Parcel], room: int) -> list[Parcel]:
    """At most `room`: one for each message as far as it goes, then one that sums the others up.

    room: how many may be sent now; without room nothing is.
    """
    if room <= 0 or len(messages) <= room:
        return list(messages[: max(room, 0)])
    alone, rest = messages[: room - 1], messages[room - 1 :]
    about = tuple(one for parcel in rest for one in parcel.about)
    return [*alone, Parcel(summed_up([parcel.message for parcel in rest]), about)]


class AlertStore:
    """The alerts of one database, under the settings of alerting. Raises StoresUnavailable."""

    def __init__(
        self,
        engine: Engine,
        settings: AlertingSettings,
        muted: Callable[[str], bool],
        clock: Callable[[], datetime],
    ) -> None:
        self._engine, self._settings, self._muted, self._clock = engine, settings, muted, clock

    def raised(self, alert: Alert) -> State:
        """Write down that something is wrong: RAISED when that is new, REPEATED when it goes on.

        What recovered less than `settle` ago goes on.
        """
        with writing(self._engine, _LOCK) as connection:
            now, before = self._clock(), _found(connection, alert.key)
            if before and before.state == State.RECOVERED and now - before.recovered_ts >= self._settings.settle:
                before = None
            state = State.REPEATED if before else State.RAISED
            values = {name: getattr(alert, name) for name in ("severity", "title", "body", "source", "labels")}
            values |= {
                "state": state,
                "times": before.times + 1 if before else 1,
                "since_ts": before.since_ts if before else alert.since,
                "seen_ts": now,
                "recovered_ts": None,
                "recovery": "",
            }
            _write(connection, ALERT, {"key": alert.key}, values)
            return state

    def recovered(self, key: str, words: str) -> bool:
        """Write down that it is over; whether it stood. words: what is said of it, sentences."""
        with writing(self._engine, _LOCK) as connection:
            before = _found(connection, key)
            if before is None or before.state == State.RECOVERED:
                return False
            values = {"state": State.RECOVERED, "recovered_ts": self._clock(), "recovery": words}
            _write(connection, ALERT, {"key": key}, values)
            return True

    def standing(self) -> list[Standing]:
        """Alerts that stand now, worst first, of one severity the oldest first."""
        sent = select(func.max(ALERT_SENT.c.sent_ts)).where(ALERT_SENT.c.key == ALERT.c.key).scalar_subquery()
        query = select(ALERT, sent.label("sent_ts")).where(ALERT.c.state != State.RECOVERED)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(ALERT.c.since_ts, ALERT.c.key)).all()
        found = [Standing(_alert(row), State(row.state), row.times, row.seen_ts, row.sent_ts) for row in rows]
        return sorted(found, key=lambda one: -one.alert.severity.rank)

    def queue(self, target: str) -> Queue:
        """What waits for a URL."""
        with reading(self._engine) as connection:
            known = connection.execute(select(ALERT_TARGET).where(ALERT_TARGET.c.target == target)).one_or_none()
            return Queue(len(self._due(connection, target, self._clock())), known.reason if known else None)

    def take(self, target: str) -> list[Parcel]:
        """What may go to a URL now; nobody else takes anything for it until `sent` or `failed`, or until time is up."""
        with writing(self._engine, _lock(target)) as connection:
            now = self._clock()
            known = connection.execute(select(ALERT_TARGET).where(ALERT_TARGET.c.target == target)).one_or_none()
            if known and max(filter(None, (known.claimed_until_ts, known.not_before_ts)), default=now) > now:
                return []
            used = known.messages if known and now - known.minute_ts < _MINUTE else 0
            made = parcels(self._due(connection, target, now), self._settings.per_minute - used)
            if made:
                claimed = {"claimed_until_ts": now + self._settings.timeout * len(made) + _MINUTE}
                minute = {"minute_ts": known.minute_ts if known and used else now, "messages": used}
                failures = known.failures if known else 0
                _write(connection, ALERT_TARGET, {"target": target}, {**claimed, **minute, "failures": failures})
            return made

    def sent(self, target: str, parcel: Parcel, *, more: bool) -> None:
        """A URL took it. more: the next of those that were taken follows."""
        with writing(self._engine, _lock(target)) as connection:
            now = self._clock()
            for key, state, severity in parcel.about:
                values = {"state": state, "severity": severity, "sent_ts": now}
                _write(connection, ALERT_SENT, {"key": key, "target": target}, values)
            done = {"messages": ALERT_TARGET.c.messages + 1, "failures": 0, "reason": None, "not_before_ts": None}
            released = {} if more else {"claimed_until_ts": None}
            _write(connection, ALERT_TARGET, {"target": target}, {**done, **released})

    def failed(self, target: str, reason: str) -> None:
        """A URL did not take a message: nothing more goes to it for a while, longer after each failure in a row."""
        with writing(self._engine, _lock(target)) as connection:
            failures = connection.execute(
                select(ALERT_TARGET.c.failures).where(ALERT_TARGET.c.target == target)
            ).scalar_one()
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10))
            values = {"failures": failures + 1, "reason": reason, "not_before_ts": self._clock() + pause}
            _write(connection, ALERT_TARGET, {"target": target}, {**values, "claimed_until_ts": None})

    def _due(self, connection: Connection, target: str, now: datetime) -> list[Parcel]:
        """Messages for a URL, oldest alert first."""
        ours = and_(ALERT_SENT.c.key == ALERT.c.key, ALERT_SENT.c.target == target)
        query = (
            select(
                ALERT,
                ALERT_SENT.c.state.label("sent_state"),
                ALERT_SENT.c.severity.label("sent_severity"),
                ALERT_SENT.c.sent_ts,
            )
            .join_from(ALERT, ALERT_SENT, ours, isouter=True)
            .where(or_(ALERT.c.state != State.RECOVERED, ALERT_SENT.c.state != State.RECOVERED))
            .order_by(ALERT.c.since_ts, ALERT.c.key)
        )
        found = []
        for row in connection.execute(query):
            alert, state = _alert(row), self._to_say(row, now)
            if state is None or self._muted(alert.key):
                continue
            at, words = (row.recovered_ts, row.recovery) if state is State.RECOVERED else (now, "")
            told = State(row.sent_state) if row.sent_state else State.RECOVERED
            worst = alert.severity
            if told is not State.RECOVERED:
                worst = max(worst, Severity(row.sent_severity), key=lambda one: one.rank)
            message = worded(alert, state, row.times, at, words)
            found.append(Parcel(message, ((alert.key, state, worst),)))
        return found

    def _to_say(self, row: Row[tuple[object, ...]], now: datetime) -> State | None:
        """What a URL is to be sent of an alert; None: nothing, people know.

        What is new, what got worse, and what goes on once in `dedupe`; a recovery once it has lasted for `settle`.
        """
        told = row.sent_state not in (None, State.RECOVERED)
        if row.state == State.RECOVERED:
            return State.RECOVERED if told and now - row.recovered_ts >= self._settings.settle else None
        if row.severity not in self._settings.severities:
            return None
        if not told:
            return State.RAISED
        worse = Severity(row.severity).rank > Severity(row.sent_severity).rank
        again = row.seen_ts > row.sent_ts and now - row.sent_ts >= self._settings.dedupe
        return State.REPEATED if worse or again else None


def _write(connection: Connection, table: Table, key: dict[str, str], values: dict[str, object]) -> None:
    where = and_(*(table.c[name] == value for name, value in key.items()))
    if connection.execute(table.update().where(where).values(**values)).rowcount == 0:
        connection.execute(table.insert().values(**key, **values))


def _found(connection: Connection, key: str) -> Row[tuple[object, ...]] | None:
    return connection.execute(select(ALERT).where(ALERT.c.key == key)).one_or_none()


def _alert(row: Row[tuple[object, ...]]) -> Alert:
    return Alert(row.key, Severity(row.severity), row.title, row.body, row.source, row.since_ts, row.labels)


def _lock(target: str) -> str:
    return f"{_LOCK}/{target}"

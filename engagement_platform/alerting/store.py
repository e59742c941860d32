"""What is wrong at the moment: one row an alert, its states, and what of it is put into the outbox.

Deduplication and recoveries are decided here, in one transaction each; sending is `outbox` and `sender`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, Row, select

from engagement_platform.alerting.model import Alert, Severity, Standing, State
from engagement_platform.alerting.outbox import put, withdraw
from engagement_platform.alerting.schema import ALERT
from engagement_platform.alerting.wording import worded
from engagement_platform.engine.database import reading, writing

_LOCK = "alerts"

_Kept = Row[tuple[object, ...]]


@dataclass(frozen=True)
class Telling:
    """Whom to tell of an alert, and how often. dedupe, settle: as in the settings of alerting."""

    targets: Sequence[str]
    """None for alerts that are kept and not told."""
    dedupe: timedelta
    settle: timedelta


class AlertStore:
    """The alerts of one database. Raises StoresUnavailable."""

    def __init__(self, engine: Engine, clock: Callable[[], datetime]) -> None:
        self._engine, self._clock = engine, clock

    def raised(self, alert: Alert, telling: Telling) -> State:
        """Write down that something is wrong: RAISED when that is new, REPEATED when it goes on.

        A message is put out for what is new, for what got worse, and for what goes on once in `dedupe`. What
        recovered less than `settle` ago goes on, and its recovery is not told.
        """
        with writing(self._engine, _LOCK) as connection:
            now, before = self._clock(), _found(connection, alert.key)
            if before is not None and before.state == State.RECOVERED and now - before.recovered_ts < telling.settle:
                withdraw(connection, alert.key, now)
            elif before is not None and before.state == State.RECOVERED:
                before = None
            state = State.RAISED if before is None else State.REPEATED
            kept = Alert(**{**vars(alert), "since": alert.since if before is None else before.since_ts})
            times = 1 if before is None else before.times + 1
            values = {**_columns(kept), "state": state, "times": times, "seen_ts": now, "recovered_ts": None}
            values |= {"told_ts": None, "told_severity": None} if before is None else {}
            if telling.targets and (said := _to_say(before, alert.severity, telling.dedupe, now)):
                put(connection, alert.key, telling.targets, worded(kept, said, times, now), now)
                values |= {"told_ts": now, "told_severity": _worst(before, alert.severity)}
            _write(connection, alert.key, values)
            return state

    def recovered(self, key: str, words: str, telling: Telling) -> bool:
        """Write down that it is over; whether it stood. Told, after `settle`, only where the alert was told."""
        with writing(self._engine, _LOCK) as connection:
            now, before = self._clock(), _found(connection, key)
            if before is None or before.state == State.RECOVERED:
                return False
            if before.told_ts is not None and telling.targets:
                message = worded(_alert(before), State.RECOVERED, before.times, now, words)
                put(connection, key, telling.targets, message, now, not_before=now + telling.settle)
            _write(connection, key, {"state": State.RECOVERED, "recovered_ts": now})
            return True

    def standing(self) -> list[Standing]:
        """Alerts that stand now, worst first, of one severity the oldest first."""
        query = select(ALERT).where(ALERT.c.state != State.RECOVERED).order_by(ALERT.c.since_ts, ALERT.c.key)
        with reading(self._engine) as connection:
            found = [_standing(row) for row in connection.execute(query)]
        return sorted(found, key=lambda one: -one.alert.severity.rank)

    def get(self, key: str) -> Standing | None:
        """An alert, recovered or not."""
        with reading(self._engine) as connection:
            row = _found(connection, key)
        return None if row is None else _standing(row)


def _to_say(before: _Kept | None, severity: Severity, dedupe: timedelta, now: datetime) -> State | None:
    """What to tell of an alert that was seen; None: nothing, people know."""
    if before is None or before.told_ts is None:
        return State.RAISED
    worse = severity.rank > Severity(before.told_severity).rank
    return State.REPEATED if worse or now - before.told_ts >= dedupe else None


def _worst(before: _Kept | None, severity: Severity) -> Severity:
    if before is None or before.told_severity is None:
        return severity
    return max(severity, Severity(before.told_severity), key=lambda one: one.rank)


def _write(connection: Connection, key: str, values: dict[str, object]) -> None:
    if connection.execute(ALERT.update().where(ALERT.c.key == key).values(**values)).rowcount == 0:
        connection.execute(ALERT.insert().values(key=key, **values))


def _found(connection: Connection, key: str) -> _Kept | None:
    return connection.execute(select(ALERT).where(ALERT.c.key == key)).one_or_none()


def _columns(alert: Alert) -> dict[str, object]:
    names = ("severity", "title", "body", "source", "labels")
    return {**{name: getattr(alert, name) for name in names}, "since_ts": alert.since}


def _alert(row: _Kept) -> Alert:
    severity = Severity(row.severity)
    return Alert(row.key, severity, row.title, row.body, row.source, row.since_ts, row.labels)


def _standing(row: _Kept) -> Standing:
    return Standing(_alert(row), State(row.state), row.times, row.seen_ts, row.told_ts, row.recovered_ts)

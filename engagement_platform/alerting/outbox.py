"""Messages that wait to be sent: one queue for each URL, rate-limited, summed up where too many wait, tried again.

A message leaves the queue when its URL took it, so one that is being sent while the process dies is sent again.
How it is sent is `sender`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Engine, Row, and_, delete, func, or_, select, update

from engagement_platform.alerting.model import Message, Severity, State
from engagement_platform.alerting.schema import ALERT_MESSAGE as M
from engagement_platform.alerting.wording import summed_up
from engagement_platform.engine.database import reading, writing

SENT, SUMMED_UP, GIVEN_UP, WITHDRAWN = "sent", "summed_up", "given_up", "withdrawn"
_MINUTE = timedelta(minutes=1)
# SQLite takes at most 32,766 values in one statement; what is more comes with the next look.
_AT_ONCE = 1000
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(minutes=5)
KEPT_FOR = timedelta(days=30)


@dataclass(frozen=True)
class Parcel:
    """What goes to a URL in one call, and the rows it settles."""

    message: Message
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Queue:
    """What is known of the messages to one URL."""

    waiting: int
    given_up: int
    """In the last 30 days."""
    reason: str | None
    """Why the newest failed attempt failed, while messages wait."""


def put(
    connection: Connection, key: str, targets: Sequence[str], message: Message, now: datetime,
    not_before: datetime | None = None,
) -> None:  # fmt: skip
    """Put a message into the queue of each target, within somebody's transaction."""
    values = {
        "key": key, "state": message.state, "severity": message.severity, "title": message.title,
        "text": message.text, "created_ts": now, "not_before_ts": not_before or now, "attempts": 0,
    }  # fmt: skip
    connection.execute(M.insert(), [{"target": target, **values} for target in targets])


def withdraw(connection: Connection, key: str, now: datetime) -> None:
    """Take back the recovery of an alert that is not told yet."""
    ours = and_(M.c.key == key, M.c.state == State.RECOVERED, M.c.outcome.is_(None), M.c.not_before_ts > now)
    connection.execute(update(M).where(ours).values(outcome=WITHDRAWN, settled_ts=now))


def parcels(rows: Sequence[tuple[int, Message]], room: int) -> list[Parcel]:
    """Rows as parcels, at most `room`: one each as far as it goes, then one that sums the others up.

    room: how many may be sent now; without room nothing is.
    """
    if room <= 0:
        return []
    alone = len(rows) if len(rows) <= room else room - 1
    made = [Parcel(message, (number,)) for number, message in rows[:alone]]
    if rest := rows[alone:]:
        made.append(Parcel(summed_up([message for _, message in rest]), tuple(number for number, _ in rest)))
    return made


class Outbox:
    """The queues of one database. Raises StoresUnavailable."""

    def __init__(self, engine: Engine, clock: Callable[[], datetime]) -> None:
        self._engine, self._clock = engine, clock

    def take(self, target: str, per_minute: int, each: timedelta) -> list[Parcel]:
        """What may go to a target now; nobody else takes anything for it meanwhile.

        each: how long sending one may take; after that for all of them, somebody else may take them.
        """
        with writing(self._engine, _lock(target)) as connection:
            now = self._clock()
            waits = and_(M.c.target == target, M.c.outcome.is_(None))
            under_way = select(func.count()).select_from(M).where(waits, M.c.claimed_until_ts > now)
            if connection.execute(under_way).scalar_one():
                return []
            due = select(M).where(waits, M.c.not_before_ts <= now).order_by(M.c.number).limit(_AT_ONCE)
            rows = [(row.number, _message(row)) for row in connection.execute(due)]
            lately = and_(M.c.target == target, M.c.outcome == SENT, M.c.settled_ts > now - _MINUTE)
            used = connection.execute(select(func.count()).select_from(M).where(lately)).scalar_one()
            made = parcels(rows, per_minute - used)
            for parcel in made:
                until = now + each * len(made) + _MINUTE
                connection.execute(update(M).where(_among(parcel.numbers)).values(claimed_until_ts=until))
            return made

    def sent(self, target: str, parcel: Parcel) -> None:
        """A target took it. Of several summed up, one counts as sent: what is limited is messages."""
        with writing(self._engine, _lock(target)) as connection:
            now = self._clock()
            settled = {"settled_ts": now, "claimed_until_ts": None, "reason": None}
            connection.execute(update(M).where(_among(parcel.numbers)).values(outcome=SUMMED_UP, **settled))
            connection.execute(update(M).where(M.c.number == parcel.numbers[-1]).values(outcome=SENT))

    def failed(self, target: str, left: Sequence[Parcel], reason: str, keep_trying: timedelta) -> int:
        """A target did not take the first of these, and the others were not tried; how many messages are given up."""
        numbers = [number for parcel in left for number in parcel.numbers]
        with writing(self._engine, _lock(target)) as connection:
            now = self._clock()
            attempts = connection.execute(select(func.max(M.c.attempts)).where(_among(numbers))).scalar() or 0
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempts, 10))
            again = {"attempts": attempts + 1, "not_before_ts": now + pause, "claimed_until_ts": None, "reason": reason}
            connection.execute(update(M).where(_among(numbers)).values(**again))
            old = and_(_among(numbers), M.c.created_ts <= now - keep_trying)
            return connection.execute(update(M).where(old).values(outcome=GIVEN_UP, settled_ts=now)).rowcount

    def tidy(self, targets: Collection[str]) -> None:
        """Give up messages to targets that are no longer set, and forget those that were settled a month ago."""
        with writing(self._engine, "alerts") as connection:
            now = self._clock()
            gone = and_(M.c.outcome.is_(None), M.c.target.not_in(list(targets)))
            connection.execute(update(M).where(gone).values(outcome=GIVEN_UP, settled_ts=now, reason="no longer set"))
            connection.execute(delete(M).where(M.c.settled_ts < now - KEPT_FOR))

    def queues(self, targets: Sequence[str]) -> dict[str, Queue]:
        """What waits and what was given up, by target."""
        found = {target: Queue(0, 0, None) for target in targets}
        query = (
            select(M.c.target, M.c.outcome, func.count().label("messages"), func.max(M.c.reason).label("reason"))
            .where(M.c.target.in_(list(targets)), or_(M.c.outcome.is_(None), M.c.outcome == GIVEN_UP))
            .group_by(M.c.target, M.c.outcome)
        )
        with reading(self._engine) as connection:
            for row in connection.execute(query):
                queue = found[row.target]
                if row.outcome is None:
                    found[row.target] = Queue(row.messages, queue.given_up, row.reason)
                else:
                    found[row.target] = Queue(queue.waiting, row.messages, queue.reason)
        return found


def _among(numbers: Sequence[int]) -> ColumnElement[bool]:
    return M.c.number.in_(list(numbers))


def _lock(target: str) -> str:
    return f"alerts/{target}"


def _message(row: Row[tuple[object, ...]]) -> Message:
    return Message(State(row.state), Severity(row.severity), row.title, row.text)

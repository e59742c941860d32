"""Histories of an organization: engagements and requests as they arrive, by hand or random, meeting each other often.

Messages are dicts as on the topics. What they should lead to is `oracle`; nothing here knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from random import Random
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from engagement_platform.pipelines.mutations.identity import Edge

T = TypeVar("T")
Message = dict[str, Any]

FIRST_DAY = date(2026, 11, 15)
DAYS = 4
PERSONS = ("p1", "p2", "p3", "p4")
ENGAGEMENTS = ("e1", "e2", "e3", "e4", "e5")
NAMES = ("Ann", "Bo", "Zoë", "😀", "")
# Three a day, the first and the last moment of it among them, so that equal times and the edges of days are frequent.
MOMENTS = (time(), time(10), time(23, 59, 59, 999_999))
ELSEWHERE = timezone(timedelta(hours=2))


class Choose(Protocol):
    """Where chance comes from: hypothesis, or a seeded generator."""

    def __call__(self, options: Sequence[T], /) -> T: ...


def random_history(
    seed: int, *, organization: str | None = None, first_day: date = FIRST_DAY, size: int = 24, conflicts: bool = False
) -> list[Message]:
    """Up to `size` messages of one organization (default `org-<seed>`) in arrival order; the same seed, the same list.

    All times lie within DAYS days from first_day. conflicts: a few copies contradict an earlier message, so that
    arrival order matters.
    """
    rng = Random(seed)
    choose: Choose = rng.choice
    return _history(choose, organization or f"org-{seed}", first_day, rng.randint(1, size), conflicts)


@st.composite
def histories(
    draw: st.DrawFn, *, organization: str = "org", size: int = 16, conflicts: bool = False, first_day: date = FIRST_DAY
) -> list[Message]:
    """Lists of 0 to `size` messages in arrival order, for hypothesis."""

    def choose(options: Sequence[T], /) -> T:
        return draw(st.sampled_from(options))

    return _history(choose, organization, first_day, draw(st.integers(0, size)), conflicts)


def edges(messages: Sequence[Message]) -> list[Edge]:
    """The CONVERTs and DELETEs among the messages, in arrival order; of one request_id the first message counts.

    Self edges are kept: decoding refuses them now, but tables may hold old ones.
    """
    claimed: set[tuple[str, str]] = set()
    found = []
    for message in messages:
        if "request_id" not in message:
            continue
        key = (message["organization_id"], message["request_id"])
        if key not in claimed and message["operation"] in {"CONVERT", "DELETE"}:
            found.append(edge(message))
        claimed.add(key)
    return found


def edge(request: Message) -> Edge:
    """One CONVERT or DELETE as an edge; fields that the operation does not use are left out."""
    first, last = request.get("engagement_date_from"), request.get("engagement_date_to")
    return Edge(
        organization_id=request["organization_id"],
        request_id=request["request_id"],
        operation=request["operation"],
        from_id=request.get("from_id"),
        to_id=request["to_id"] if request["operation"] == "CONVERT" else None,
        engagement_id=request.get("engagement_id"),
        engagement_date_from=None if first is None else date.fromisoformat(first),
        engagement_date_to=None if last is None else date.fromisoformat(last),
        execution_ts=datetime.fromisoformat(request["execution_ts"]).astimezone(UTC),
    )


def at(hours: float) -> str:
    """A time, so many hours after the first day began, as messages write it."""
    return (datetime.combine(FIRST_DAY, time(), tzinfo=UTC) + timedelta(hours=hours)).isoformat()


def engagement(engagement_id: str, person_id: str, hours: float, **more: Any) -> Message:
    """An engagement by hand, at that many hours."""
    return {
        "engagement_id": engagement_id,
        "organization_id": "org",
        "person_id": person_id,
        "engagement_ts": at(hours),
        "type": "email",
        **more,
    }


def request(request_id: str, operation: str, hours: float, **fields: Any) -> Message:
    """A mutation request by hand, executed at that many hours."""
    return {
        "request_id": request_id,
        "organization_id": "org",
        "operation": operation,
        **fields,
        "execution_ts": at(hours),
    }


def convert(request_id: str, from_id: str, to_id: str, hours: float, **narrowed: Any) -> Message:
    """A CONVERT by hand."""
    return request(request_id, "CONVERT", hours, from_id=from_id, to_id=to_id, **narrowed)


def delete(request_id: str, hours: float, **target: Any) -> Message:
    """A DELETE by hand."""
    return request(request_id, "DELETE", hours, **target)


def _history(choose: Choose, organization: str, first_day: date, size: int, conflicts: bool) -> list[Message]:
    maker = _Maker(choose, organization, first_day)
    messages: list[Message] = []
    while len(messages) < size:
        kind = choose(range(20))
        if kind == 0 and messages:
            messages.append(dict(choose(messages)))
        elif kind == 1 and messages and conflicts:
            messages.append(_contradiction(choose, choose(messages)))
        else:
            messages.append(maker.message())
    return messages


def _contradiction(choose: Choose, message: Message) -> Message:
    """The same version or request_id with different content."""
    if "request_id" not in message:
        return {**message, "subject": "contradiction", "person_name": "Zz", "person_id": choose(PERSONS)}
    moved = datetime.fromisoformat(message["execution_ts"]) + timedelta(minutes=choose((-1, 1)))
    return {**message, "execution_ts": moved.isoformat()}


class _Maker:
    """Makes messages that do not contradict each other: an engagement has one time, a version one content."""

    def __init__(self, choose: Choose, organization: str, first_day: date) -> None:
        self._choose, self._organization = choose, organization
        self._days = [first_day + timedelta(days=n) for n in range(DAYS)]
        self._times: dict[str, datetime] = {}
        self._versions: dict[tuple[str, int], Message] = {}
        self._requests = 0

    def message(self) -> Message:
        """An engagement, or one of the four requests; conversions are the most frequent request."""
        make: Callable[[], Message] = self._choose(
            (self.engagement,) * 6 + (self.convert,) * 6 + (self.delete,) * 2 + (self.rename,) * 2 + (self.update,) * 3
        )
        return make()

    def engagement(self) -> Message:
        choose = self._choose
        engagement_id, version = choose(ENGAGEMENTS), choose((1, 1, 2, 3))
        if engagement_id not in self._times:
            self._times[engagement_id] = self._moment()
        if (engagement_id, version) not in self._versions:
            content: Message = {
                "person_id": choose(PERSONS),
                "version": version,
                "type": choose(("email", "call")),
                "channel": choose((None, "web")),
                "subject": choose((None, f"subject {version}")),
                "attributes": choose((None, {}, {"a": "1"}, {"a": "1", "b": f"{version}"})),
            }
            self._versions[engagement_id, version] = self._without_some_nulls(content)
        message = {
            "engagement_id": engagement_id,
            "organization_id": self._organization,
            "engagement_ts": self._written(self._times[engagement_id]),
            **self._versions[engagement_id, version],
        }
        # The name is no content: copies of one version may each carry another.
        name = choose((None, None, *NAMES))
        return message if name is None else {**message, "person_name": name}

    def convert(self) -> Message:
        from_id = self._choose(PERSONS)
        others = [person for person in PERSONS if person != from_id]
        to_id = self._choose((*others, *others, *others, from_id))
        return self._request("CONVERT", from_id=from_id, to_id=to_id, **self._narrowed(0, 0, 0, 1, 2))

    def delete(self) -> Message:
        choose = self._choose
        target: Message = choose(
            (
                {"from_id": choose(PERSONS)},
                {"engagement_id": choose(ENGAGEMENTS)},
                {"from_id": choose(PERSONS), "engagement_id": choose(ENGAGEMENTS)},
            )
        )
        narrowed = self._narrowed(0, 0, 1)
        return self._request("DELETE", **{**narrowed, **target}, **self._unused({"to_id": "p2", "name": "No"}))

    def rename(self) -> Message:
        unused = self._unused({"to_id": "p2", "engagement_id": "e1", "engagement_date_to": "2026-11-15"})
        return self._request("RENAME", from_id=self._choose(PERSONS), name=self._choose(NAMES), **unused)

    def update(self) -> Message:
        choose = self._choose
        patch: Message = {}
        if choose((True, False)):
            patch["type"] = choose((None, "patched", "meeting"))
        if choose((True, False)):
            patch["channel"] = choose((None, "phone", "fax"))
        if choose((True, False)):
            patch["subject"] = choose((None, "corrected", ""))
        if choose((True, False)):
            patch["attributes"] = choose(
                (None, {}, {"a": "2"}, {"a": None}, {"b": None, "c": "3"}, {"a": "4", "c": None})
            )
        unused = self._unused({"from_id": "p1", "engagement_date_from": "2026-11-18", "name": "No"})
        return self._request("UPDATE", engagement_id=choose(ENGAGEMENTS), **patch, **unused)

    def _request(self, operation: str, **fields: Any) -> Message:
        self._requests += 1
        # The letter comes first, so that the order of request ids is not the order of arrival.
        return {
            "request_id": f"r-{self._choose('abcd')}{self._requests}",
            "organization_id": self._organization,
            "operation": operation,
            **fields,
            "execution_ts": self._written(self._moment()),
        }

    def _narrowed(self, *kinds: int) -> Message:
        """Kind 0: nothing. 1: a range of days, open at either end now and then. 2: one engagement, maybe in a range."""
        choose = self._choose
        kind = choose(kinds)
        if kind == 0:
            return {}
        first, last = sorted((choose(self._days), choose(self._days)))
        days = {"engagement_date_from": first.isoformat(), "engagement_date_to": last.isoformat()}
        for end in choose(((), (), ("engagement_date_from",), ("engagement_date_to",))):
            days.pop(end)
        if kind == 1:
            return days
        return {"engagement_id": choose(ENGAGEMENTS), **choose(({}, {}, days))}

    def _unused(self, fields: Message) -> Message:
        return self._choose(({}, {}, {}, fields))

    def _without_some_nulls(self, fields: Message) -> Message:
        """A null optional field and a missing one are the same."""
        if self._choose((True, False)):
            return fields
        return {key: value for key, value in fields.items() if value is not None and (key, value) != ("version", 1)}

    def _moment(self) -> datetime:
        return datetime.combine(self._choose(self._days), self._choose(MOMENTS), tzinfo=UTC)

    def _written(self, moment: datetime) -> str:
        return moment.astimezone(self._choose((UTC, UTC, ELSEWHERE))).isoformat()

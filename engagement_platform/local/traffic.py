"""Sample traffic: a seeded, endless stream of engagements and mutation requests as a real producer would send them.

Only makes messages; sending them is `producing`, what they are about `content`, the bad ones `invalid_messages`.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from itertools import accumulate
from random import Random
from typing import Any, Literal, NamedTuple

from engagement_platform.local.content import ProfileChanges, compact, contents, full_name, page_views
from engagement_platform.local.invalid_messages import INVALID_ENGAGEMENTS, INVALID_REQUESTS
from engagement_platform.settings import TrafficSettings

Kind = Literal["engagements", "mutation-requests", "profile-changes", "page-views"]
ENGAGEMENTS: frozenset[Kind] = frozenset({"engagements", "mutation-requests"})
"""Kinds that only come together: requests are about engagements that were sent."""


class Message(NamedTuple):
    """One Kafka message: which kind of topic it belongs to, its key (the organization's or profile's id), its bytes."""

    kind: Kind
    key: bytes | None
    value: bytes


class Size(StrEnum):
    """How busy an organization is."""

    S = "S"
    M = "M"
    L = "L"
    XL = "XL"
    XXL = "XXL"


# Source: the write-up on data skipping: 2,814 (S) to 1,968,764 (XXL) engagements a day; the sizes between lie on the
# geometric line through both, a factor of 5.143.
ENGAGEMENTS_PER_DAY: Mapping[Size, int] = {
    Size.S: 2_814, Size.M: 14_472, Size.L: 74_432, Size.XL: 382_804, Size.XXL: 1_968_764,
}  # fmt: skip
SMALL_SHARE = 0.90

# A guess: ever more persons, but not in step with traffic, so that busy organizations have busy persons.
_PERSONS_FACTOR = {Size.S: 1, Size.M: 2, Size.L: 5, Size.XL: 10, Size.XXL: 20}
# Of what is left after one organization of each larger size.
_LARGER = (Size.M, Size.M, Size.M, Size.L, Size.M, Size.L, Size.M, Size.XL)

# How many engagements back updates and requests reach, and how many messages later a duplicate may come.
_RECENT = 512
_DUPLICATE_LAG = (20, 1_000)
_STEP = timedelta(milliseconds=1)
_ELSEWHERE = timezone(timedelta(hours=2))


@dataclass(frozen=True)
class Organization:
    """One customer of the platform."""

    id: str
    size: Size
    persons: int

    @property
    def engagements_per_day(self) -> int:
        """Its weight in the traffic."""
        return ENGAGEMENTS_PER_DAY[self.size]


def organizations(count: int, persons_per_small: int) -> tuple[Organization, ...]:
    """`count` organizations, 90 % of them small (rounded), the others of every larger size in turn."""
    small = max(1, round(count * SMALL_SHARE))
    larger = [Size.M, Size.L, Size.XL, Size.XXL][: count - small]
    larger += [_LARGER[n % len(_LARGER)] for n in range(count - small - len(larger))]
    sizes = [Size.S] * small + sorted(larger, key=list(Size).index)
    return tuple(
        Organization(f"org-{n:03d}-{size.lower()}", size, persons_per_small * _PERSONS_FACTOR[size])
        for n, size in enumerate(sizes, start=1)
    )


class _Person:
    """A place in an organization and who has it now: first a lead, then a contact, then a merged contact."""

    def __init__(self, number: int, name: str) -> None:
        self._number, self._life, self.name = number, 0, name
        self.ids = [self._id("lead")]

    @property
    def id(self) -> str:
        return self.ids[-1]

    def next_id(self) -> str:
        return self._id("contact") + ("" if len(self.ids) == 1 else f"-{len(self.ids)}")

    def renew(self) -> None:
        """The place goes to another person: keeps chains of conversions, and memory, short however long we run."""
        self._life += 1
        self.ids = [self._id("lead")]

    def _id(self, role: str) -> str:
        return f"{role}-{self._number:05d}" + (f"-{self._life:x}" if self._life else "")


@dataclass
class _Sent:
    """An engagement that later messages may refer to."""

    organization: int
    person: _Person
    day: str
    fields: dict[str, str]
    """Ids and time, which are those of every version."""
    content: dict[str, Any]
    version: int = 1


class Traffic:
    """The stream of one producer. The same settings, start and clock make the same bytes.

    start: distinguishes this producer's ids from those of an earlier one, so that it may start anew at any time
    without meeting its own past. clock: when the next message is sent; engagement times lie up to two
    seconds before it (late ones days), execution times of requests on it. Not given: one millisecond a message from
    `start` on, which suits benchmarks and tests. kinds: what is sent; what is sent of one does not depend on others.
    """

    def __init__(
        self,
        settings: TrafficSettings,
        *,
        start: datetime,
        clock: Callable[[], datetime] | None = None,
        kinds: Collection[Kind] = ENGAGEMENTS,
    ) -> None:
        self.organizations = organizations(settings.organizations, settings.persons_per_organization)
        self._settings = settings
        self._engagements = self._requests = self._sent = self._invalid = 0
        self._token = f"{int(start.timestamp() * 1_000_000):x}"
        self._rng = Random(f"{settings.seed}/{self._token}")
        self._clock = clock or (lambda: start + self._sent * _STEP)
        self._contents = contents(Random(settings.seed), 400)
        self._has_engagements = not ENGAGEMENTS.isdisjoint(kinds)
        self._profile_share = settings.profile_share if "profile-changes" in kinds else 0.0
        self._profiles = ProfileChanges(settings.seed, self._token, settings.profiles)
        self._page_view_share = settings.page_view_share if "page-views" in kinds else 0.0
        self._page_views = page_views(settings.seed, self._token, self._clock)
        self._weights = list(accumulate(o.engagements_per_day for o in self.organizations))
        self._keys = [o.id.encode() for o in self.organizations]
        self._people: list[dict[int, _Person]] = [{} for _ in self.organizations]
        self._recent: deque[_Sent] = deque(maxlen=_RECENT)
        self._again: list[tuple[int, Message]] = []

    @property
    def messages_per_engagement(self) -> float:
        """Messages of any kind for each new engagement, on average; for pacing by engagements."""
        s = self._settings
        usual = (1 + s.update_share + s.mutation_share) * (1 + s.duplicate_share + s.bad_share)
        return (usual if self._has_engagements else 0) + self._profile_share + self._page_view_share

    def messages(self) -> Iterator[Message]:
        """Endless. New engagements, and between them updates, requests, duplicates and bad ones by their shares."""
        shares = (self._settings.mutation_share, self._profile_share, self._page_view_share)
        request_due, change_due, view_due = map(_every, shares)
        while self.messages_per_engagement:
            if self._has_engagements:
                yield from self._with_company(self._new_engagement())
                if self._rng.random() < self._settings.update_share:
                    yield from self._with_company(self._next_version())
                if next(request_due):
                    yield from self._with_company(self._request())
            if next(change_due):
                yield Message("profile-changes", *self._profiles.next())
            if next(view_due):
                yield Message("page-views", *next(self._page_views))

    def _with_company(self, message: Message) -> Iterator[Message]:
        """The message, and whatever duplicates and bad ones are due after it."""
        self._sent += 1
        yield message
        while self._again and self._again[0][0] <= self._sent:
            yield heapq.heappop(self._again)[1]
        draw = self._rng.random()
        if draw < self._settings.bad_share:
            yield self._bad()
        elif draw < self._settings.bad_share + self._settings.duplicate_share:
            heapq.heappush(self._again, (self._sent + self._rng.randint(*_DUPLICATE_LAG), message))

    def _new_engagement(self) -> Message:
        random = self._rng.random
        organization = bisect(self._weights, random() * self._weights[-1])
        person = self._person(organization)
        late = random() < self._settings.late_share
        # The newest id mostly; a late event, or a device that does not know of the conversion, names an older one.
        known = len(person.ids)
        person_id = person.ids[int(random() * known)] if known > 1 and (late or random() < 0.1) else person.ids[-1]
        ts = self._clock() - timedelta(days=1 + random() * 8 if late else 0, seconds=1e-6 + random() * 2)
        day = ts.astimezone(UTC).date().isoformat()
        if random() < 0.05:
            ts = ts.astimezone(_ELSEWHERE)
        self._engagements += 1
        fields = {
            "engagement_id": f"eng-{self._token}-{self._engagements:07d}",
            "organization_id": self.organizations[organization].id,
            "person_id": person_id,
            "engagement_ts": ts.isoformat(),
        }
        content = self._contents[int(random() * len(self._contents))]
        self._recent.append(_Sent(organization, person, day, fields, content))
        return self._engagement(self._recent[-1])

    def _next_version(self) -> Message:
        sent = self._rng.choice(self._recent)
        sent.version += 1
        sent.content = self._rng.choice(self._contents)
        return self._engagement(sent)

    def _engagement(self, sent: _Sent) -> Message:
        name = {"person_name": sent.person.name} if self._rng.random() < 0.5 else {}
        version = {"version": sent.version} if sent.version > 1 or self._engagements % 2 else {}
        return self._message("engagements", sent.organization, {**sent.fields, **name, **version, **sent.content})

    def _message(self, kind: Kind, organization: int, fields: Mapping[str, object]) -> Message:
        return Message(kind, self._keys[organization], compact(fields).encode())

    def _request(self) -> Message:
        sent = self._rng.choice(self._recent)
        self._requests += 1
        fields: dict[str, object] = {
            "request_id": f"req-{self._token}-{self._requests:07d}",
            "organization_id": self.organizations[sent.organization].id,
        }
        draw = self._rng.random()
        if draw < 0.55:
            fields |= {"operation": "CONVERT", **self._conversion(sent)}
        elif draw < 0.75:
            sent.person.name = full_name(self._rng.randrange(1_000))
            fields |= {"operation": "RENAME", "from_id": sent.person.id, "name": sent.person.name}
        elif draw < 0.96:
            fields |= {"operation": "UPDATE", "engagement_id": sent.fields["engagement_id"], **self._patch()}
        elif draw < 0.98:
            fields |= {"operation": "DELETE", "engagement_id": sent.fields["engagement_id"]}
        else:
            fields |= {"operation": "DELETE", "from_id": sent.person.id}
            sent.person.renew()
        fields["execution_ts"] = self._clock().isoformat()
        return self._message("mutation-requests", sent.organization, fields)

    def _conversion(self, sent: _Sent) -> dict[str, object]:
        """A lead becomes a contact, a contact is merged into the next: chains of up to three ids, then a new person."""
        person, other, draw = sent.person, self._person(sent.organization), self._rng.random()
        if other is not person and draw < 0.05:
            from_id, engagement_id = sent.fields["person_id"], sent.fields["engagement_id"]
            return {"from_id": from_id, "to_id": other.id, "engagement_id": engagement_id}
        if other is not person and draw < 0.10:
            return {"from_id": person.id, "to_id": other.id, "engagement_date_from": sent.day}
        from_id = person.id
        if other is not person and draw < 0.30:
            person.renew()
            return {"from_id": from_id, "to_id": other.id}
        to_id = person.next_id()
        person.ids.append(to_id)
        if len(person.ids) > 3:
            person.renew()
        return {"from_id": from_id, "to_id": to_id}

    def _patch(self) -> dict[str, object]:
        content = self._rng.choice(self._contents)
        patches: tuple[dict[str, object], ...] = (
            {"subject": content.get("subject", "Corrected")},
            {"channel": None, "attributes": {"reviewed": "yes"}},
            {"type": content["type"], "attributes": {"campaign": None, "outcome": "corrected"}},
        )
        return self._rng.choice(patches)

    def _bad(self) -> Message:
        """A good message made invalid, each way in turn."""
        ways = (*INVALID_ENGAGEMENTS.values(), *INVALID_REQUESTS.values())
        turn = self._invalid % len(ways)
        self._invalid += 1
        organization = bisect(self._weights, self._rng.random() * self._weights[-1])
        name, now = self.organizations[organization].id, self._clock().isoformat()
        marker = f"bad-{self._token}-{self._invalid:07d}"
        if turn < len(INVALID_ENGAGEMENTS):
            fields = {"engagement_id": marker, "organization_id": name, "person_id": "lead-00000"}
            value = ways[turn](fields | {"engagement_ts": now, "type": "page_viewed"})
            return Message("engagements", self._keys[organization], value)
        fields = {"request_id": marker, "organization_id": name, "operation": "RENAME", "from_id": "lead-00000"}
        return Message("mutation-requests", self._keys[organization], ways[turn](fields | {"execution_ts": now}))

    def _person(self, organization: int) -> _Person:
        """A person of the organization; the lower numbers are the busier ones."""
        number = int(self.organizations[organization].persons * self._rng.random() ** 2)
        people = self._people[organization]
        person = people.get(number)
        if person is None:
            person = people[number] = _Person(number, full_name(number + 17 * organization))
        return person


def _every(share: float) -> Iterator[bool]:
    """Whether it is due: counted, not drawn, so that 1,000 engagements come with exactly 200 requests."""
    waits = 0.0
    while True:
        waits += share
        is_due = waits >= 1 - 1e-9
        waits -= is_due
        yield is_due

"""What sample messages are about: contents of engagements, names, changes of profiles, page views.

All seeded and endless; nothing is sent. Who does what when is `traffic`, which mixes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import count
from random import Random
from typing import Any

_FIRST = (
    "Amina", "Björn", "Chen", "Daniela", "Elif", "François", "Grace", "Hiroshi", "Ines", "João", "Kateryna", "Łukasz",
    "Maya", "Nikhil", "Olga", "Priya", "Quentin", "Rosa", "Søren", "Tomás", "Uma", "Viktor", "Wanjiru", "Ximena",
    "Yusuf", "Zoë", "李娜", "Владимир", "علي",
)  # fmt: skip
_LAST = (
    "Abebe", "Brandt", "Castillo", "Dubois", "Eriksson", "Ferrari", "García", "Huang", "Ivanova", "Jansen", "Kowalski",
    "Lindqvist", "Müller", "Nakamura", "O'Connor", "Papadopoulos", "Quiroga", "Rossi", "Şahin", "Takahashi", "Usman",
    "Varga", "Williams", "Xu", "Yılmaz", "Zhang", "de la Cruz",
)  # fmt: skip

# type, channel (None: left out), subjects, attribute keys
_EVENTS: tuple[tuple[str, str | None, tuple[str, ...], tuple[str, ...]], ...] = (
    ("email_sent", "email", ("Welcome aboard", "Your trial ends soon", "What is new in March"), ("campaign", "locale")),
    ("email_opened", "email", ("Welcome aboard", "Your trial ends soon"), ("campaign", "device")),
    ("email_clicked", "email", ('Read "Ten ways to grow"', "See plans & prices"), ("campaign", "url", "device")),
    ("email_replied", "email", ("Re: Quick question", "Re: Next steps"), ("locale",)),
    ("page_viewed", "web", (), ("url", "device", "referrer")),
    ("form_submitted", "web", ("Request a demo", "Newsletter"), ("url", "campaign")),
    ("call_logged", "phone", ("Discovery call", "Renewal", "No answer"), ("duration_s", "outcome")),
    ("meeting_booked", "calendar", ("Demo", "Kick-off"), ("outcome",)),
    ("webinar_attended", "event", ("Data you can change",), ("duration_s", "campaign")),
    ("chat_message", "chat", ("Pricing", "Support"), ("locale", "device")),
    ("note_added", None, ("Met at the trade fair",), ()),
)
_VALUES = {
    "campaign": ("spring-launch", "win-back", "nurture-7"),
    "device": ("mobile", "desktop", "tablet"),
    "duration_s": ("35", "310", "1800"),
    "locale": ("en-GB", "de-DE", "pt-BR", "ja-JP"),
    "outcome": ("connected", "left voicemail", "rescheduled"),
    "referrer": ("search", "newsletter", "partner"),
    "url": ("/pricing", "/docs/start?utm=mail", "/blog/ten-ways"),
}

_CITIES = ("Berlin", "Lyon", "Oslo", "Porto", "Kraków", "Austin", "Osaka")
_COMPANIES = ("Acme", "Globex", "Initech", "Umbrella", "Hooli", "Vandelay")
_TITLES = ("Analyst", "Buyer", "Director", "Engineer", "Partner")
_PLANS = ("free", "team", "business")

# Shares of all changes of profiles. Mostly updates, as the source met them; one that is deleted makes room for another.
_DELETES, _LATE, _CLEARS = 0.02, 0.02, 0.05

_PAGES = ("/", "/pricing", "/docs", "/docs/start", "/blog", "/signup", "/account")
_AT_ONCE = 20
"""Users who are there at a time."""
_LEAVES = 0.1


def contents(rng: Random, count: int) -> list[dict[str, Any]]:
    """Members of `count` engagements; subjects and attributes are left out now and then, as real producers do."""
    return [_content(rng) for _ in range(count)]


def full_name(number: int) -> str:
    """One of some 780 names; the same number has the same name."""
    return f"{_FIRST[number % len(_FIRST)]} {_LAST[number // 3 % len(_LAST)]}"


def _content(rng: Random) -> dict[str, Any]:
    kind, channel, subjects, keys = rng.choice(_EVENTS)
    subject = rng.choice(subjects) if subjects and rng.random() < 0.9 else None
    attributes = {key: rng.choice(_VALUES[key]) for key in keys if rng.random() < 0.8}
    members = {"type": kind, "channel": channel, "subject": subject, "attributes": attributes}
    return {name: value for name, value in members.items() if value}


compact: Callable[[object], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""JSON without blanks, characters beyond ASCII as themselves."""


class ProfileChanges:
    """The changes of one producer. The same seed and token make the same ones.

    token: part of each id, so that a producer that starts anew never meets the versions of an earlier one.
    """

    def __init__(self, seed: int, token: str, profiles: int) -> None:
        self._rng, self._token, self._most = Random(f"{seed}/{token}/profiles"), token, profiles
        self._versions: dict[str, int] = {}
        self._living: list[str] = []
        self._held: list[tuple[bytes, bytes]] = []
        self._made = 0

    def next(self) -> tuple[bytes, bytes]:
        """Key and value of the next message. Some are held back, and come after later versions of their profile."""
        if self._held and self._rng.random() < _LATE:
            return self._held.pop(0)
        message = self._change()
        if self._rng.random() < _LATE:
            self._held.append(message)
            message = self._change()
        return message

    def _change(self) -> tuple[bytes, bytes]:
        """An INSERT while there are few, else mostly an UPDATE of any profile."""
        random = self._rng.random
        if not self._living or (len(self._living) < self._most and random() < 0.5):
            self._made += 1
            profile_id = f"profile-{self._token}-{self._made:07d}"
            self._living.append(profile_id)
            person = {"name": full_name(self._made), "email": f"{self._made}@example.org", "plan": "free"}
            return self._message(profile_id, "INSERT", person | self._values())
        place = int(random() * len(self._living))
        profile_id = self._living[place]
        if random() < _DELETES:
            self._living[place] = self._living[-1]
            self._living.pop()
            return self._message(profile_id, "DELETE", {})
        cleared = {"set_null": [self._rng.choice(("title", "city"))]} if random() < _CLEARS else {}
        return self._message(profile_id, "UPDATE", self._values(), **cleared)

    def _values(self) -> dict[str, object]:
        choice = self._rng.choice
        every: tuple[tuple[str, object], ...] = (
            ("title", choice(_TITLES)),
            ("company", choice(_COMPANIES)),
            ("city", choice(_CITIES)),
            ("plan", choice(_PLANS)),
            ("score", self._rng.randrange(101)),
        )
        return dict(self._rng.sample(every, choice((1, 1, 2))))

    def _message(self, profile_id: str, op: str, changes: dict[str, object], **more: object) -> tuple[bytes, bytes]:
        version = self._versions[profile_id] = self._versions.get(profile_id, 0) + 1
        if op == "DELETE":
            del self._versions[profile_id]
        change = {"profile_id": profile_id, "version": version, "op": op, "changes": changes, **more}
        return profile_id.encode(), compact(change).encode()


def page_views(seed: int, token: str, clock: Callable[[], datetime]) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each view of one producer. The same seed, token and times make the same ones.

    token: part of each id, so that a producer that starts anew never meets the ids of an earlier one.
    """
    rng, users, there = Random(f"{seed}/{token}/page-views"), count(1), list[str]()
    for number in count(1):
        if len(there) < _AT_ONCE:
            there.append(f"user-{token}-{next(users):05d}")
        place = rng.randrange(len(there))
        user = there.pop(place) if rng.random() < _LEAVES else there[place]
        view = {"view_id": f"view-{token}-{number:07d}", "user_id": user, "page": rng.choice(_PAGES)}
        yield user.encode(), compact({**view, "viewed_at": clock().isoformat()}).encode()

"""What sample engagements talk about: event types, subjects, attributes, names. Who does it when is `traffic`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

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

# type, channel (None: not said), subjects, attribute keys
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


@dataclass(frozen=True)
class Content:
    """What one engagement says, and the same as JSON members with a leading comma, made once and used often."""

    type: str
    channel: str | None
    subject: str | None
    attributes: dict[str, str]
    members: str


def contents(rng: Random, count: int) -> list[Content]:
    """`count` contents; subjects and attributes are left out now and then, as real producers do."""
    return [_content(rng) for _ in range(count)]


def full_name(number: int) -> str:
    """One of some 780 names; the same number has the same name."""
    return f"{_FIRST[number % len(_FIRST)]} {_LAST[number // 3 % len(_LAST)]}"


def _content(rng: Random) -> Content:
    kind, channel, subjects, keys = rng.choice(_EVENTS)
    subject = rng.choice(subjects) if subjects and rng.random() < 0.9 else None
    attributes = {key: rng.choice(_VALUES[key]) for key in keys if rng.random() < 0.8}
    said: dict[str, object] = {"type": kind, "channel": channel, "subject": subject, "attributes": attributes}
    present = {name: value for name, value in said.items() if value}
    return Content(kind, channel, subject, attributes, "," + compact(present)[1:-1])


def compact(value: object) -> str:
    """JSON without blanks, characters beyond ASCII as themselves."""
    return _ENCODE(value)


_ENCODE: Callable[[object], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

"""What sample engagements are about: event types, subjects, attributes, names. Who does what when is `traffic`."""

from __future__ import annotations

import json
from collections.abc import Callable
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

"""What has to hold for inputs that come at random, and what the fuzzers of decoders share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hypothesis import strategies as st

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
TS = "2026-11-26T10:00:00Z"
EVENTS = tuple(
    {"event_id": "i-1", "event_type": kind, "event_ts": TS, "game_id": "puzzle", "player_id": "p-1", **more}
    for kind, more in (
        ("purchase", {"price": 1.99, "currency": "EUR", "payment": {"card_number": "4111111111111111"}}),
        ("level_up", {"level": 7, "email": "bob@example.org", "note": "bob@example.org"}),
        ("chat_message", {"text": "hello", "recipients": [{"name": "Bob Bobson"}]}),
        ("session_start", {"platform": "iOS", "country": "de"}),
    )
)
"""Events of games, with personal data."""


class Property(NamedTuple):
    """Input, and what has to hold for it."""

    given: st.SearchStrategy[Any]
    holds: Callable[[Any], None]

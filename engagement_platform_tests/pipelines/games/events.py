"""Lines of events for tests: a good one of every declared type, and what can be wrong with one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from engagement_platform.pipelines.games.decoding import EventLimits
from engagement_platform.pipelines.games.event_type import EventType
from engagement_platform.sources.messages import DecodingLimits

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
"""When objects of tests arrive."""
LIMITS = EventLimits(DecodingLimits(), timedelta(days=7), timedelta(hours=1))
VALUES: dict[str, object] = {
    "string": "text", "long": 1, "double": 0.5, "boolean": True, "date": "2026-11-22",
    "timestamp": "2027-11-22T00:00:00Z", "array<string>": ["one", "two"],
}  # fmt: skip


def event(declared: EventType, event_id: str = "e-1", **fields: Any) -> dict[str, Any]:
    """A good event with every declared field, and with some replaced; a value of ... takes one away."""
    own = {name: f.one_of[0] if f.one_of else VALUES[f.type] for name, f in declared.fields.items()}
    said = {
        "event_id": event_id, "event_type": declared.name, "game_id": "chess-2", "player_id": "player-7",
        "event_ts": "2026-11-22T11:59:30+00:00", "session_id": "s-1", "platform": " iOS ", "app_version": "2.10.1",
        "country": "at", **own, **fields,
    }  # fmt: skip
    return {name: value for name, value in said.items() if value is not ...}


def line(declared: EventType, event_id: str = "e-1", **fields: Any) -> bytes:
    """The same as JSON."""
    return json.dumps(event(declared, event_id, **fields)).encode()

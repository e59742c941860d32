"""Simulated games: seeded events of every declared type. `game_servers` posts them."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from engagement_platform.pipelines.games.event_type import EventField, EventType
from engagement_platform.pipelines.games.registry import Registry, registry
from engagement_platform.settings import Settings

GAMES = ("chess-2", "dungeon-dash", "farm-days", "star-racers")
_PLATFORMS = ("ios", "android", "android", "web", "windows")
_COUNTRIES = ("AT", "BR", "DE", "FR", "IN", "JP", "US", "US")
_WORDS: dict[str, Sequence[str]] = {
    "product_id": ("gem-pack-s", "gem-pack-l", "season-pass", "sword", "skin-fox"),
    "currency": ("USD", "EUR", "JPY", "BRL"),
    "store": ("appstore", "play", "steam"),
    "level_id": tuple(f"level-{n}" for n in range(1, 41)),
    "offer_id": ("welcome", "weekend", "comeback"),
    "placement": ("main_menu", "level_end", "shop"),
    "method": ("email", "apple", "google", "guest"),
}
# How often, against 1 for any other type: what a game says all the time, and what happens once.
_WEIGHTS = {
    "heartbeat": 30, "level_start": 10, "level_complete": 6, "level_fail": 4, "session_start": 5, "session_end": 5,
    "virtual_currency": 8, "item_used": 4, "ad_impression": 6, "offer_shown": 3, "match_start": 3, "match_end": 3,
}  # fmt: skip
_DOUBLED, _LATE, _BAD = 0.01, 0.02, 0.002


class GameTraffic:
    """Lines of events, the same for the same seed and times: a few come twice, are late, or are broken.

    personal: with what is declared as personal data, for the ingest server to take out; made-up, and no real person's.
    """

    def __init__(self, seed: int, types: Registry | None = None, players: int = 500, *, personal: bool = False) -> None:
        self._rng, self._personal = random.Random(seed), personal
        self._types = list((types or registry()).values())
        self._weights = [_WEIGHTS.get(declared.name, 1) for declared in self._types]
        self._players = players
        self._token = f"{self._rng.getrandbits(32):08x}"
        self._made = 0
        self._last = b""

    def line(self, now: datetime) -> bytes:
        """The next line; its event happened at `now`, or, if it is a late one, up to two days before."""
        choose = self._rng.random()
        if choose < _DOUBLED and self._last:
            return self._last
        if choose < _DOUBLED + _BAD:
            return b'{"event_type": "purchase", "price": '
        (declared,) = self._rng.choices(self._types, self._weights)
        late = choose > 1 - _LATE
        at = now - timedelta(minutes=self._rng.randrange(1, 2880)) if late else now
        self._last = json.dumps(self._event(declared, at), separators=(",", ":")).encode()
        return self._last

    def _event(self, declared: EventType, at: datetime) -> dict[str, Any]:
        pick = self._rng.choice
        self._made += 1
        player = self._rng.randrange(self._players)
        event: dict[str, Any] = {
            "event_id": f"{self._token}-{self._made:09d}",
            "event_type": declared.name,
            "event_ts": at.astimezone(UTC).isoformat(),
            "game_id": GAMES[player % len(GAMES)],
            "platform": _PLATFORMS[player % len(_PLATFORMS)],
            "app_version": pick(("2.9.4", "2.10.0", "2.10.1")),
            "country": _COUNTRIES[player % len(_COUNTRIES)],
        }
        if declared.player == "required":
            event |= {"player_id": f"player-{player:06d}", "session_id": f"session-{player:06d}-{self._made // 5000}"}
        for name, field in declared.fields.items():
            if field.required or self._rng.random() < 0.8:
                event[name] = self._value(name, field, at)
        if self._personal and "player_id" in event:
            for pointer in declared.pii:
                _set_personal(event, pointer, player)
        return event

    def _value(self, name: str, field: EventField, at: datetime) -> object:
        least = 0.0 if field.at_least is None else field.at_least
        most = least + 100 if field.at_most is None else field.at_most
        if field.type == "string":
            return self._rng.choice(field.one_of or _WORDS.get(name) or tuple(f"{name}-{n}" for n in range(1, 9)))
        if field.type == "array<string>":
            return [self._rng.choice(("new_shop", "fast_start", "night_mode"))]
        if field.type == "long":
            return self._rng.randint(int(least), int(most))
        if field.type == "double":
            return round(self._rng.uniform(least, most), 2)
        if field.type == "boolean":
            return self._rng.random() < 0.5
        return at.date().isoformat() if field.type == "date" else (at + timedelta(days=30)).isoformat()


def _set_personal(event: dict[str, Any], pointer: str, player: int) -> None:
    """Put a player's made-up value where a pointer leads; one through a list leads nowhere."""
    *above, last = pointer.split("/")[1:]
    if "*" in pointer:
        return
    for step in above:
        event = event.setdefault(step, {})
    values = {"email": f"player-{player}@example.com", "ip": f"203.0.113.{player % 256}"}
    event[last] = values.get(last, f"{last.replace('_', ' ')} of player {player}")


def simulated(settings: Settings, *, endless: bool, personal: bool = False) -> GameTraffic:
    """Of every declared type. A sample is the same for the same seed, endless traffic says something new each time."""
    seed = time.time_ns() if endless else settings.traffic.seed
    return GameTraffic(seed, registry(settings.games.declarations), personal=personal)

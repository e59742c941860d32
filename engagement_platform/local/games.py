"""Simulated games: seeded events of every declared type, which servers post to the ingest server until it takes them.

Where the server is, and with which keys, is `ingest`.
"""

from __future__ import annotations

import gzip
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from typing import Any

from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.games.event_type import EventField, EventType
from engagement_platform.pipelines.games.registry import Registry, registry

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
_PLAYERS = 500
_DOUBLED, _LATE, _BAD = 0.01, 0.02, 0.002

_TIMEOUT_S = 10.0
# Answers of a server that will take events later; the same when it is not there.
_LATER = frozenset({408, 429, 503})
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


class GameTraffic:
    """Lines of events, the same for the same seed and times: a few come twice, are late, or are broken.

    personal: with what is declared as personal data, for the ingest server to take out; made-up, and no real person's.
    """

    def __init__(self, seed: int, types: Registry | None = None, *, personal: bool = False) -> None:
        self._rng, self._personal = random.Random(seed), personal
        self._types = list((types or registry()).values())
        self._weights = [_WEIGHTS.get(declared.name, 1) for declared in self._types]
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
        player = self._rng.randrange(_PLAYERS)
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


@dataclass
class Posted:
    """What became of the events."""

    requests: int = 0
    accepted: int = 0
    refused: int = 0
    given_up: int = 0
    """Events that were not taken when it was time to stop."""

    def __str__(self) -> str:
        given_up = f", {self.given_up:,} given up" if self.given_up else ""
        return (
            f"Posted {self.accepted + self.refused:,} events in {self.requests:,} requests: "
            f"{self.accepted:,} accepted, {self.refused:,} refused{given_up}."
        )


def post_events(
    traffic: GameTraffic,
    url: str,
    keys: Mapping[str, str],
    *,
    events: int | None,
    rate: float,
    stop: threading.Event | None = None,
) -> Posted:
    """Post events until there are so many, or `stop`; each game with its own key.

    events: None goes on. rate: events a second of all games, 0 as fast as it goes. A server that is away, or busy, is
    asked again with the same events. Raises PlatformError when it refuses for good.
    """
    stop, posted, sent, began = stop or threading.Event(), Posted(), 0, time.monotonic()
    # A round waits at most two seconds to be full.
    each = max(1, min(100, int(rate * 2))) if rate else 100
    while (events is None or sent < events) and not stop.is_set():
        count = each if events is None else min(each, events - sent)
        now, by_game = datetime.now(UTC), defaultdict[str, list[bytes]](list)
        for line in (traffic.line(now) for _ in range(count)):
            by_game[_game_of(line, keys)].append(line)
        for game, lines in by_game.items():
            _post(posted, url, keys[game], lines, stop)
        sent += count
        stop.wait(max(0.0, began + sent / rate - time.monotonic()) if rate else 0.0)
    return posted


def _game_of(line: bytes, keys: Mapping[str, str]) -> str:
    """The game of a line; of one that cannot be read, any."""
    try:
        game = str(json.loads(line)["game_id"])
    except (ValueError, KeyError):
        return min(keys)
    return game if game in keys else min(keys)


def _post(posted: Posted, url: str, key: str, lines: Sequence[bytes], stop: threading.Event) -> None:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
    body, pause, answered = gzip.compress(b"\n".join(lines)), _PAUSE_S, None
    while answered is None:
        posted.requests += 1
        request = urllib.request.Request(f"{url}/v1/events", body, headers, method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                answered = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
            if error.code == 422:
                # None was accepted; each is kept, with its reason.
                answered = text
            elif error.code not in _LATER:
                raise PlatformError(
                    f"The ingest server at {url} answered {error.code}: {text.decode(errors='replace')[:300]}. What it "
                    "had accepted before is kept. With 401 or 403 the key is none of its own: start "
                    "`engagement-platform up` or `services` once more, which makes new sample keys."
                ) from None
            pause = max(pause, float(error.headers.get("Retry-After") or 0))
        except (OSError, HTTPException):
            pass
        if answered is None:
            if stop.wait(pause):
                posted.given_up += len(lines)
                return
            pause = min(pause * 2, _LONGEST_PAUSE_S)
    counts = json.loads(answered)
    posted.accepted += counts.get("accepted", 0)
    posted.refused += len(counts.get("refused", ()))

"""Simulated games: seeded events of every declared type, and objects of them in the bucket.

The bucket is `aws`, or a real one; events that are posted are sent by `game_servers`, what is put on Kafka is
`traffic`.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from engagement_platform.pipelines.games.event_type import EventField, EventType
from engagement_platform.pipelines.games.objects import options_of
from engagement_platform.pipelines.games.registry import Registry, registry
from engagement_platform.pipelines.games.replay import NoGameBucket
from engagement_platform.settings import Settings
from engagement_platform.sources.s3_sqs_aws import client

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
        said: dict[str, Any] = {
            "event_id": f"{self._token}-{self._made:09d}",
            "event_type": declared.name,
            "event_ts": at.astimezone(UTC).isoformat(),
            "game_id": GAMES[player % len(GAMES)],
            "platform": _PLATFORMS[player % len(_PLATFORMS)],
            "app_version": pick(("2.9.4", "2.10.0", "2.10.1")),
            "country": _COUNTRIES[player % len(_COUNTRIES)],
        }
        if declared.player == "required":
            said |= {"player_id": f"player-{player:06d}", "session_id": f"session-{player:06d}-{self._made // 5000}"}
        for name, field in declared.fields.items():
            if field.required or self._rng.random() < 0.8:
                said[name] = self._value(name, field, at)
        if self._personal and "player_id" in said:
            for pointer in declared.pii:
                _set(said, pointer.split("/")[1:], player)
        return said

    def _value(self, name: str, field: EventField, at: datetime) -> object:
        pick = self._rng.choice
        least = 0.0 if field.at_least is None else field.at_least
        most = least + 100 if field.at_most is None else field.at_most
        words = field.one_of or _WORDS.get(name) or tuple(f"{name}-{n}" for n in range(1, 9))
        makes: dict[str, Callable[[], object]] = {
            "string": lambda: pick(words),
            "array<string>": lambda: [pick(("new_shop", "fast_start", "night_mode"))],
            "long": lambda: self._rng.randint(int(least), int(most)),
            "double": lambda: round(self._rng.uniform(least, most), 2),
            "boolean": lambda: self._rng.random() < 0.5,
            "date": lambda: at.date().isoformat(),
            "timestamp": (at + timedelta(days=30)).isoformat,
        }
        return makes[field.type]()


def _set(said: dict[str, Any], steps: Sequence[str], player: int) -> None:
    """Put a player's made-up word where the steps of a pointer lead; one through a list leads nowhere."""
    *above, last = steps
    if "*" in steps:
        return
    for step in above:
        said = said.setdefault(step, {})
    words = {"email": f"player-{player}@example.com", "ip": f"203.0.113.{player % 256}"}
    said[last] = words.get(last, f"{last.replace('_', ' ')} of player {player}")


@dataclass(frozen=True)
class Put:
    """What was written into the bucket."""

    objects: int
    events: int

    def __str__(self) -> str:
        return f"Put {self.events:,} lines of events into {self.objects:,} objects."


def simulated(settings: Settings, *, endless: bool, personal: bool = False) -> GameTraffic:
    """Of every declared type. A sample is the same for the same seed, endless traffic says something new each time."""
    seed = time.time_ns() if endless else settings.traffic.seed
    return GameTraffic(seed, registry(settings.games.declarations), personal=personal)


def put_events(
    settings: Settings, *, events: int | None, rate: float, object_events: int, stop: threading.Event | None = None
) -> Put:
    """Write objects of simulated events as a collector does, until there are so many, or `stop`.

    events: None goes on. rate: events a second, 0 as fast as it goes. object_events: lines in an object.
    Raises NoGameQueue, NoGameBucket.
    """
    if settings.games.bucket is None:
        raise NoGameBucket
    stop = stop or threading.Event()
    s3 = client("s3", options_of(settings))
    traffic = simulated(settings, endless=events is None)
    began, written, objects = time.monotonic(), 0, 0
    for count in _sizes(events, object_events):
        now = datetime.now(UTC)
        body = gzip.compress(b"\n".join(traffic.line(now) for _ in range(count)) + b"\n")
        key = f"{settings.games.prefix}{now:%Y/%m/%d/%H}/{now:%Y%m%dT%H%M%S%f}-{os.getpid()}-{objects:06d}.json.gz"
        s3.put_object(Bucket=settings.games.bucket, Key=key, Body=body)
        written, objects = written + count, objects + 1
        ahead = began + written / rate - time.monotonic() if rate else 0.0
        if (ahead > 0 and stop.wait(ahead)) or stop.is_set():
            break
    return Put(objects, written)


def _sizes(events: int | None, most: int) -> Iterator[int]:
    """Lines in each object."""
    while events is None:
        yield most
    yield from [most] * (events // most)
    if events % most:
        yield events % most

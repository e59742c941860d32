"""Simulated game servers: each posts the events of its game to the ingest server, and again until it is taken.

What they say is `game_traffic`; where the server is, and with which keys, is `ingest`.
"""

from __future__ import annotations

import gzip
import itertools
import json
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException

from engagement_platform.embedded.game_traffic import GameTraffic
from engagement_platform.errors import PlatformError

_TIMEOUT_S = 10.0
# What a server says that will not take events now, and will later; the same when it is not there.
_LATER = frozenset({429, 503})
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


class EventsNotTaken(PlatformError):
    """The ingest server turned a request away for good."""

    def __init__(self, url: str, status: int, said: str) -> None:
        super().__init__(
            f"The ingest server at {url} answered {status}: {said[:300]}. What it had accepted before is kept. With "
            "401 or 403 the key is none of its own: start `engagement-platform up` or `services` once more, which "
            "makes new sample keys."
        )


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
    request_events: int = 100,
    stop: threading.Event | None = None,
) -> Posted:
    """Post events until there are so many, or `stop`; each game with its own key.

    events: None goes on. rate: events a second of all games, 0 as fast as it goes. request_events: most in a round of
    one request for each game; a round waits at most two seconds to be full.
    A server that is away, or busy, is asked again with the same events. Raises EventsNotTaken.
    """
    stop = stop or threading.Event()
    games = itertools.cycle(sorted(keys))
    each = max(1, min(request_events, int(rate * 2))) if rate else request_events
    posted, written, began = Posted(), 0, time.monotonic()
    while events is None or written < events:
        count = each if events is None else min(each, events - written)
        now = datetime.now(UTC)
        for game, lines in _by_game([traffic.line(now) for _ in range(count)], keys, next(games)).items():
            _post(posted, url, keys[game], lines, stop)
        written += count
        ahead = began + written / rate - time.monotonic() if rate else 0.0
        if (ahead > 0 and stop.wait(ahead)) or stop.is_set():
            break
    return posted


def _by_game(lines: Sequence[bytes], games: Collection[str], anybody: str) -> Mapping[str, list[bytes]]:
    """The lines of each game. anybody: whose are those that cannot be read."""
    found = defaultdict[str, list[bytes]](list)
    for line in lines:
        try:
            game = str(json.loads(line)["game_id"])
        except (ValueError, KeyError):
            game = anybody
        found[game if game in games else anybody].append(line)
    return found


def _post(posted: Posted, url: str, key: str, lines: Sequence[bytes], stop: threading.Event) -> None:
    headers = {
        "Authorization": f"Bearer {key}", "Content-Type": "application/x-ndjson", "Content-Encoding": "gzip",
    }  # fmt: skip
    body = gzip.compress(b"\n".join(lines))
    pause = _PAUSE_S
    while True:
        posted.requests += 1
        request = urllib.request.Request(f"{url}/v1/events", body, headers, method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                return _count(posted, answer.read())
        except urllib.error.HTTPError as error:
            said = error.read()
            # None was accepted; each is kept, with its reason.
            if error.code == 422:
                return _count(posted, said)
            if error.code not in _LATER:
                raise EventsNotTaken(url, error.code, said.decode(errors="replace")) from None
            pause = max(pause, float(error.headers.get("Retry-After") or 0))
        except (OSError, HTTPException):
            pass
        if stop.wait(pause):
            posted.given_up += len(lines)
            return None
        pause = min(pause * 2, _LONGEST_PAUSE_S)


def _count(posted: Posted, said: bytes) -> None:
    answer = json.loads(said)
    posted.accepted += answer.get("accepted", 0)
    posted.refused += len(answer.get("refused", ()))

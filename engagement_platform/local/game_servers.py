"""Simulated game servers: each posts the events of its game to the ingest server, and again until it is taken.

What events there are is `game_traffic`; where the server is, and with which keys, is `ingest`.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException

from engagement_platform.errors import PlatformError
from engagement_platform.local.game_traffic import GameTraffic

_TIMEOUT_S = 10.0
# Answers of a server that will take events later; the same when it is not there.
_LATER = frozenset({408, 429, 503})
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


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

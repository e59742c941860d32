"""Sample page views: a seeded, endless stream of users who come, look at some pages and leave.

Beside `traffic`, which mixes them among its messages; nothing is sent here.
"""

from __future__ import annotations

from datetime import datetime
from random import Random

from engagement_platform.local.content import compact

_PAGES = ("/", "/pricing", "/docs", "/docs/start", "/blog", "/signup", "/account")
_AT_ONCE = 20
"""Users who are there at a time."""
_LEAVES = 0.1


class PageViews:
    """The views of one producer. The same seed, token and times make the same ones.

    token: part of each id, so that a producer that starts anew never meets the ids of an earlier one.
    """

    def __init__(self, seed: int, token: str) -> None:
        self._rng, self._token = Random(f"{seed}/{token}/page-views"), token
        self._users = self._views = 0
        self._here: list[str] = []

    def next(self, now: datetime) -> tuple[bytes, bytes]:
        """Key and value of the next message."""
        if len(self._here) < _AT_ONCE:
            self._users += 1
            self._here.append(f"user-{self._token}-{self._users:05d}")
        self._views += 1
        place = self._rng.randrange(len(self._here))
        user = self._here.pop(place) if self._rng.random() < _LEAVES else self._here[place]
        view = {"view_id": f"view-{self._token}-{self._views:07d}", "user_id": user, "page": self._rng.choice(_PAGES)}
        return user.encode(), compact({**view, "viewed_at": now.isoformat()}).encode()

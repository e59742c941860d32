"""Sample changes of profiles: a seeded, endless stream of partial updates as a real producer would send them.

Beside `traffic`, which mixes them among its messages; nothing is sent here.
"""

from __future__ import annotations

from random import Random

from engagement_platform.local.content import compact, full_name

_CITIES = ("Berlin", "Lyon", "Oslo", "Porto", "Kraków", "Austin", "Osaka")
_COMPANIES = ("Acme", "Globex", "Initech", "Umbrella", "Hooli", "Vandelay")
_TITLES = ("Analyst", "Buyer", "Director", "Engineer", "Partner")
_PLANS = ("free", "team", "business")

# Shares of all changes. Mostly updates, as the source met them; a profile that is deleted makes room for a new one.
_DELETES, _LATE, _CLEARS = 0.02, 0.02, 0.05


class ProfileChanges:
    """The changes of one producer. The same seed and token make the same ones.

    token: part of each id, so that a producer that starts anew never meets the versions of an earlier one.
    """

    def __init__(self, seed: int, token: str, profiles: int) -> None:
        self._rng, self._token, self._most = Random(f"{seed}/{token}/profiles"), token, profiles
        self._versions: dict[str, int] = {}
        self._living: list[str] = []
        self._held: list[tuple[bytes, bytes]] = []
        self._made = 0

    def next(self) -> tuple[bytes, bytes]:
        """Key and value of the next message. Some are held back, and come after later versions of their profile."""
        if self._held and self._rng.random() < _LATE:
            return self._held.pop(0)
        message = self._change()
        if self._rng.random() < _LATE:
            self._held.append(message)
            message = self._change()
        return message

    def _change(self) -> tuple[bytes, bytes]:
        """An INSERT while there are few, else mostly an UPDATE of any profile."""
        random = self._rng.random
        if not self._living or (len(self._living) < self._most and random() < 0.5):
            self._made += 1
            profile_id = f"profile-{self._token}-{self._made:07d}"
            self._living.append(profile_id)
            person = {"name": full_name(self._made), "email": f"{self._made}@example.org", "plan": "free"}
            return self._message(profile_id, "INSERT", person | self._values())
        place = int(random() * len(self._living))
        profile_id = self._living[place]
        if random() < _DELETES:
            self._living[place] = self._living[-1]
            self._living.pop()
            return self._message(profile_id, "DELETE", {})
        cleared = {"set_null": [self._rng.choice(("title", "city"))]} if random() < _CLEARS else {}
        return self._message(profile_id, "UPDATE", self._values(), **cleared)

    def _values(self) -> dict[str, object]:
        choice = self._rng.choice
        every: tuple[tuple[str, object], ...] = (
            ("title", choice(_TITLES)),
            ("company", choice(_COMPANIES)),
            ("city", choice(_CITIES)),
            ("plan", choice(_PLANS)),
            ("score", self._rng.randrange(101)),
        )
        return dict(self._rng.sample(every, choice((1, 1, 2))))

    def _message(self, profile_id: str, op: str, changes: dict[str, object], **more: object) -> tuple[bytes, bytes]:
        version = self._versions[profile_id] = self._versions.get(profile_id, 0) + 1
        if op == "DELETE":
            del self._versions[profile_id]
        change = {"profile_id": profile_id, "version": version, "op": op, "changes": changes, **more}
        return profile_id.encode(), compact(change).encode()

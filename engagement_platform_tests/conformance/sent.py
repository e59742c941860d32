"""What a storm of faults sends: slices of messages and objects, and what each of them has to become."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from engagement_platform.pipelines.games.event_type import EventField, EventType
from engagement_platform.pipelines.games.registry import registry
from engagement_platform_tests.ingestion.oracle import Key, Oracle, as_bytes, engagement
from engagement_platform_tests.ingestion.test_crashes import everything
from engagement_platform_tests.pipelines.games.events import event

Slice = Sequence[dict[str, Any] | None]
ORGANIZATIONS, LINES = 40, 6
TYPES, CHANNELS = ("email", "call", "chat"), ("web", "phone", None, "app", "shop")
FIRST = datetime(2026, 11, 19, tzinfo=UTC)
"""When the first engagement in bulk was; each after it a second later."""
NO_EVENT = b"no event"
_CLEANED: Mapping[str, Callable[[str], str]] = {"trim": str.strip, "lower": str.lower, "upper": str.upper}


@dataclass
class Messages:
    """Engagements: new ones, newer versions, copies, broken ones, and in each slice one of every kind there is."""

    rng: random.Random
    oracle: Oracle = field(default_factory=Oracle)
    sent: int = 0
    refused: dict[int, bytes] = field(default_factory=dict)
    """Offset -> content of each message that has to be refused."""
    _slices: int = 0
    _newest: list[dict[str, Any]] = field(default_factory=list)
    """The newest version of each engagement in bulk."""

    def slice(self, count: int) -> tuple[Slice, dict[Key, int]]:
        """The next messages, about as many, and the versions that they land."""
        number, before = self._slices, f"org-{self._slices - 1}" if self._slices else None
        messages = [*everything(f"org-{number}", before)]
        while len(messages) < count:
            messages.append(self._one(number))
        self.oracle.batch(number, list(enumerate(messages, self.sent)))
        at_offset = enumerate(messages, self.sent)
        self.refused |= {offset: as_bytes(each) for offset, each in at_offset if offset in self.oracle.quarantined}
        self.sent, self._slices = self.sent + len(messages), number + 1
        landed = {key: row["version"] for key, row in self.oracle.data.items() if row["batch_id"] == number}
        return messages, landed

    def _one(self, number: int) -> dict[str, Any] | None:
        kind = self.rng.random()
        if kind < 0.01:
            return None
        if kind < 0.2 and self._newest:
            at = self.rng.randrange(len(self._newest))
            if kind > 0.04:
                newer = {**self._newest[at], "subject": f"of {number}"}
                self._newest[at] = {**newer, "version": newer["version"] + 1}
            return self._newest[at]
        which, person = len(self._newest), f"person-{self.rng.randrange(50)}"
        # Each differs from the next, so that a value in another's row is seen.
        own = {
            "type": TYPES[which % len(TYPES)],
            "channel": CHANNELS[which % len(CHANNELS)],
            "attributes": {"number": str(which)},
            "engagement_ts": (FIRST + timedelta(seconds=which)).isoformat(),
        }
        if kind > 0.9:
            own["person_name"] = f"{person} {number}"
        organization = f"bulk-{self.rng.randrange(ORGANIZATIONS)}"
        self._newest.append(engagement(organization, f"e-{which}", version=1, person_id=person, **own))
        return self._newest[-1]


@dataclass
class Objects:
    """Objects with lines of these types, and a line that is no event in every tenth."""

    types: Sequence[str]
    rng: random.Random
    rows: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    """Type or `quarantine` -> id of the event, object and line of each row that there has to be."""
    columns: dict[str, dict[str, object]] = field(default_factory=dict)
    """Id of the event -> what else its row has to say of it."""
    sent: int = 0

    def slice(self, count: int) -> dict[str, bytes]:
        """The next objects: key -> content."""
        return dict(self._one() for _ in range(count))

    def of_objects(self, kind: str) -> Counter[str]:
        """Object -> how many rows of a type it has."""
        return Counter(name for _, name, _ in self.rows.get(kind, ()))

    def _one(self) -> tuple[str, bytes]:
        number, self.sent = self.sent, self.sent + 1
        key, lines, declared = f"events/{number // 100:03}/{number:05}.json.gz", list[bytes](), registry()
        # However the clock jumps, they are neither late nor ahead of it.
        when = datetime.now(UTC) - timedelta(days=1)
        for at in range(1, LINES + 1):
            kind, event_id = self.rng.choice(self.types), f"{number}-{at}"
            if broken := number % 10 == 0 and at == LINES:
                kind, event_id = "quarantine", ""
            if broken:
                lines.append(NO_EVENT)
            else:
                fields = event(
                    declared[kind], event_id, event_ts=when.isoformat(), **_own(declared[kind], number * LINES + at)
                )
                lines.append(json.dumps(fields).encode())
                own = {name: _cleaned(each, fields[name]) for name, each in declared[kind].fields.items()}
                self.columns[event_id] = {"event_ts": when, "player_id": fields["player_id"], **own}
            self.rows.setdefault(kind, []).append((event_id, key, at))
        return key, gzip.compress(b"\n".join(lines) + b"\n", mtime=0)


def _own(declared: EventType, number: int) -> dict[str, object]:
    """Numbers that differ from one event to the next, so that a value in another's row is seen."""
    made: dict[str, object] = {"long": 1 + number, "double": number % 1000 + 0.5, "boolean": number % 2 == 0}
    return {name: made[each.type] for name, each in declared.fields.items() if each.type in made}


def _cleaned(of: EventField, value: object) -> object:
    """A value as its row has it."""
    if not isinstance(value, str):
        return value
    for step in of.clean:
        value = _CLEANED.get(step, str)(value)
    return value

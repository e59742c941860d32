"""Events with personal data planted in them: declared, nested, unknown, in ids, refused; and a search.

What is planted stands nowhere else, so one byte of it somewhere is a leak. Looking for it is a loop over bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from engagement_platform.pii.cards import luhn
from engagement_platform.pii.declared import SHIPPED
from engagement_platform.pipelines.games.event_type import EventType
from engagement_platform_tests.pipelines.games.events import event

GAME = "planted-game"
NEEDLES = (b"canaryq", b"198.51.100.", b"2001:db8:cafe:", b"+49 30 5550", b"49305550", b"4929 0000", b"49290000")
"""How all that is planted begins, in small letters."""


@dataclass
class Planted:
    """Draws canaries, and keeps what was planted in declared fields."""

    values: list[tuple[str, object]] = field(default_factory=list)
    """Id of an event and a value in one of its declared fields, for each."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def text(self) -> str:
        """A name that looks like nothing."""
        return f"CanaryQ{next(self._numbers):05} Grünwald"

    def plain(self, declared: EventType, event_id: str, **fields: Any) -> dict[str, Any]:
        """A good event of the type without anything to hide."""
        return event(declared, event_id, **{"game_id": GAME, "player_id": f"player-{declared.name}", **fields})

    def with_declared(self, declared: EventType, event_id: str, **fields: Any) -> dict[str, Any]:
        """With a value in every field that is declared personal data: texts, objects, lists, in turn.

        Of an event_type that nobody declared these are the fields of all types.
        """
        made = self.plain(declared, event_id, **fields)
        for number, pointer in enumerate(SHIPPED["*"] if "event_type" in fields else pointers(declared)):
            kinds: tuple[object, ...] = (self.text(), {"a": [{"b": self.text()}, self.text()]}, [[self.text()], 7])
            self._put(made, pointer[1:].split("/"), kinds[number % 3], event_id)
        return made

    def with_looks(self, declared: EventType, event_id: str, **fields: Any) -> dict[str, Any]:
        """With what nobody declared and what looks like personal data, and a declared value once more."""
        made, number = self.with_declared(declared, event_id, **fields), next(self._numbers) % 200 + 1
        mail, copied = f"CanaryQ{next(self._numbers):05}@Example.org", str(made["email"])
        made |= {
            "x_note": f"write to {mail}, please",
            "x_list": [mail, "fine", {"deep": [{"deeper": mail}]}],
            "x_friends": {mail: {"since": 3}, "p-2": {"since": 4}},
            "x_host": f"198.51.100.{number}",
            "x_host6": f"2001:db8:cafe::{number:x}",
            "x_callback": f"+49 30 5550 {number:04}",
            "x_whatsapp": int(f"49305550{number:04}"),
            "x_memo": f"paid with {card(number, ' ')}",
            "x_card": int(card(number, "")),
            "x_title": f"All hail {copied.upper()}!",
        }
        return made

    def _put(self, into: Any, steps: list[str], value: object, event_id: str) -> None:
        step, *rest = steps
        if step == "*":
            for each in into:
                self._put(each, rest, value, event_id)
        elif rest:
            self._put(into.setdefault(step, [{}, {}] if rest[0] == "*" else {}), rest, value, event_id)
        else:
            into[step] = value
            self.values.append((event_id, value))


def pointers(declared: EventType) -> list[str]:
    """Where events of a type have personal data: as it ships for all types and for this one, and as the type says."""
    return list(dict.fromkeys((*SHIPPED["*"], *SHIPPED.get(declared.name, ()), *declared.pii)))


def card(number: int, between: str) -> str:
    """A number with an issuer's digits and a check digit."""
    fifteen = f"49290000{number:07}"
    digits = next(whole for whole in (f"{fifteen}{last}" for last in range(10)) if luhn(whole))
    return between.join(digits[begin : begin + 4] for begin in range(0, 16, 4))


def leaks(folder: Path) -> list[str]:
    """Files below a folder in which anything planted stands: in their names, as they are, unzipped, or as a value."""
    paths = sorted(folder.rglob("*"))
    return [str(path.relative_to(folder)) for path in paths if any(map(leaks_in, _readings(path)))]


def leaks_in(content: bytes) -> bool:
    """Whether anything planted stands in some bytes, in small or capital letters."""
    small = content.lower()
    return any(needle in small for needle in NEEDLES)


def _readings(path: Path) -> Iterator[bytes]:
    yield path.name.encode()
    if path.is_file():
        content = path.read_bytes()
        yield content
        if content.startswith(b"\x1f\x8b"):
            yield gzip.decompress(content)
        if content.startswith(b"PAR1"):
            # Texts and the readable part of binaries; what is not ASCII is escaped, and no needle has any of that.
            yield repr(pq.read_table(path).to_pylist()).encode()


def lines(objects: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The events in some objects, zipped or not, in the order of their names."""
    contents = (body for _key, body in sorted(objects.items()))
    plain = (gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body for body in contents)
    return [json.loads(each) for content in plain for each in content.splitlines()]

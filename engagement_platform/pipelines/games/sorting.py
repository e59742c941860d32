"""What becomes of the lines of a batch: rows by type, refused ones, and those that have come before.

Pure functions over values; every line ends as exactly one of the three. Rows to tables is `batch`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from engagement_platform.pipelines.games.decoding import Decoder, Event
from engagement_platform.pipelines.games.reasons import Refusal

Known = Mapping[str, Sequence[datetime]]
"""Id -> times of the events with it that have landed before."""
Lookup = Callable[[str, Sequence["Row"]], Known]
"""From a type and rows of it to what is known of their ids."""


class Line(NamedTuple):
    """One line of an object; blank ones are none."""

    object: str
    number: int
    arrived: datetime
    content: bytes


class Row(NamedTuple):
    """An event and where it stood."""

    event: Event
    object: str
    line: int


class Refused(NamedTuple):
    """A line that is no event, and why."""

    line: Line
    refusal: Refusal


@dataclass
class Decoded:
    """The lines of a batch, each decoded."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    refused: list[Refused] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0

    @property
    def unknown_fields(self) -> int:
        """Fields that nobody declared, over all events."""
        return sum(row.event.unknown_fields for rows in self.rows.values() for row in rows)


@dataclass(frozen=True)
class Kept:
    """What lands of one type, and how many were dropped."""

    rows: Sequence[Row]
    duplicates: int


def decoded(lines: Iterable[Line], decode: Decoder) -> Decoded:
    """Each line as an event of its type, or as refused; in their order."""
    found = Decoded()
    for line in lines:
        found.lines += 1
        found.bytes += len(line.content)
        event = decode(line.content, line.arrived)
        if isinstance(event, Refusal):
            found.refused.append(Refused(line, event))
        else:
            found.rows[event.event_type].append(Row(event, line.object, line.number))
    return found


def without_duplicates(rows: Sequence[Row], known: Known, window: timedelta) -> Kept:
    """The rows of one type whose id has not landed within the window; the first of them stays, in their order.

    Two events with one id are the same when their times are at most `window` apart, exactly that included.
    """
    landed: dict[str, list[datetime]] = {event_id: list(times) for event_id, times in known.items()}
    kept = []
    for row in rows:
        times = landed.setdefault(row.event.event_id, [])
        if not any(abs(row.event.event_ts - time) <= window for time in times):
            times.append(row.event.event_ts)
            kept.append(row)
    return Kept(kept, len(rows) - len(kept))


def sorted_out(found: Decoded, known: Lookup, window: timedelta) -> dict[str, Kept]:
    """What lands of each type, by name."""
    return {name: without_duplicates(rows, known(name, rows), window) for name, rows in sorted(found.rows.items())}

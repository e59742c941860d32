"""What a reader sees while faults happen, and what it must never see: torn batches, rows twice, versions going back.

Reads without Spark, as consumers do. The checks are pure functions.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from engagement_platform.consumers import Changes
from engagement_platform.consumers.current_rows import CurrentRows
from engagement_platform.lake import log
from engagement_platform.lake.engagement import NOTIFICATION

Key = tuple[str, str]
Line = tuple[str, int]
"""Object and line."""
COLUMNS = ("organization_id", "engagement_id", "version")


def torn(state: Mapping[Key, int], landed: Mapping[int, Mapping[Key, int]]) -> list[str]:
    """The batches of which a state has some rows and not all. landed: batch -> the version of each row it lands."""
    found = []
    for batch, rows in landed.items():
        there = sum(state.get(key, 0) >= version for key, version in rows.items())
        if 0 < there < len(rows):
            found.append(f"batch {batch} is torn: {there:,} of {len(rows):,} rows")
    return found


def doubled(keys: Iterable[object], what: str) -> list[str]:
    """What is there more than once."""
    return [f"{what} {key} is there {count} times" for key, count in Counter(keys).items() if count > 1]


def gone_back(before: Mapping[Key, int], now: Mapping[Key, int]) -> list[str]:
    """Rows that were there in a newer version, or are no longer there."""
    return [
        f"{key} went back from version {version} to {now.get(key)}"
        for key, version in before.items()
        if now.get(key, 0) < version
    ]


def torn_objects(lines: Collection[Line], of_objects: Mapping[str, int]) -> list[str]:
    """Objects of which a table has some lines and not all. of_objects: how many lines each has for that table."""
    there = Counter(name for name, _ in lines)
    return [
        f"{name} is torn: {count} of {of_objects[name]} lines"
        for name, count in there.items()
        if count != of_objects[name]
    ]


def torn_across(lines: Mapping[str, Iterable[Line]], of_objects: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Objects that some tables have, and others lack or have a part of. Each by the names of the tables."""
    there, wanted = Counter[str](), Counter[str]()
    for name, of in of_objects.items():
        there.update(object_ for object_, _ in lines.get(name, ()))
        wanted.update(of)
    return [
        f"{name} is torn across tables: {count} of {wanted[name]} lines"
        for name, count in there.items()
        if count != wanted[name]
    ]


class Watcher:
    """Polls engagements, the changes that are announced, and tables of events in a thread until `stop`.

    root: of the lake. folder: for the cursor of its own, which no fault touches. tables: of events, by type.
    """

    def __init__(self, root: str, folder: Path, tables: Mapping[str, str]) -> None:
        self.root, self._tables = root, tables
        self.landed: dict[int, Mapping[Key, int]] = {}
        """What each batch lands; told before it is produced."""
        self.lines: dict[str, dict[str, int]] = {name: {} for name in tables}
        """Type -> object -> its lines of that type; told before they are put."""
        self.seen: list[str] = []
        """What must never be seen, and was."""
        self.polls = 0
        self.mirror: dict[Key, int] = {}
        """What a consumer has that follows the announcements."""
        self._changes = Changes(
            root, name="watcher", columns=COLUMNS, store_url=f"sqlite:///{folder}/watcher.db", start="beginning"
        )
        self._state: dict[Key, int] = {}
        self._lines: dict[str, frozenset[Line]] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Look once more, and end."""
        self._ends.set()
        self._thread.join()
        self.poll()

    def _watch(self) -> None:
        while not self._ends.is_set():
            began = time.monotonic()
            self.poll()
            # It shares the machine with what it watches.
            self._ends.wait(max(2.0, 3 * (time.monotonic() - began)))

    def poll(self) -> None:
        """Look once at everything. An error of a reader is among what must never be seen."""
        for look in (self._engagements, self._follow, self._events):
            try:
                self.seen += look()
            except Exception as error:
                self.seen.append(f"{look.__name__.strip('_')}: {type(error).__name__}: {error}")
        self.polls += 1

    def _engagements(self) -> Iterator[str]:
        if (rows := CurrentRows.of(self.root)) is None:
            yield from ["the engagements are gone"] * bool(self._state)
            return
        found = [row for some in rows.rows(COLUMNS) for row in _tuples(some, COLUMNS)]
        state = {(organization, key): version for organization, key, version in found}
        yield from doubled(((organization, key) for organization, key, _ in found), "engagement")
        yield from torn(state, dict(self.landed))
        yield from gone_back(self._state, state)
        self._state = state

    def _follow(self) -> Iterator[str]:
        """As a consumer that puts changed rows over those it has."""
        if self.mirror and log.version(NOTIFICATION.uri(self.root)) is None:
            yield f"{NOTIFICATION.name} is gone"
        for batch in self._changes:
            changed = [row for rows in (batch.inserts, batch.updates) for row in _tuples(rows, COLUMNS)]
            keys = [(organization, key) for organization, key, _ in changed]
            yield from doubled(keys, "changed engagement")
            now = {(organization, key): version for organization, key, version in changed}
            yield from gone_back({key: self.mirror.get(key, 0) for key in now}, now)
            self.mirror |= now
            self._changes.commit()

    def across(self) -> list[str]:
        """What is torn across the tables of events. In the middle of a batch some have it before others."""
        return torn_across({name: _lines(uri) or () for name, uri in self._tables.items()}, self.lines)

    def _events(self) -> Iterator[str]:
        for name, uri in self._tables.items():
            if (lines := _lines(uri)) is None:
                yield from [f"{name} is gone"] * (name in self._lines)
                continue
            yield from doubled(lines, name)
            yield from torn_objects(lines, self.lines[name])
            yield from (f"{name} lost {line}" for line in self._lines.get(name, frozenset()) - set(lines))
            self._lines[name] = frozenset(lines)


def _lines(uri: str) -> list[Line] | None:
    """The lines of a table of events; None where there is none."""
    try:
        rows = DeltaTable(uri).to_pyarrow_table(columns=["source_object", "source_line"])
    except TableNotFoundError:
        return None
    return _tuples(rows, ("source_object", "source_line"))


def _tuples(rows: pa.Table, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[column].to_pylist() for column in columns), strict=True))

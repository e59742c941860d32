"""Where in a table a consumer is, its durable cursor, and where a new one begins. Reading on from there is
`notified`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from engagement_platform.engine.cursors import CursorStore
from engagement_platform.engine.database import open_engine
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.added_rows import BEFORE_ALL
from engagement_platform.settings import Settings

Start = str | datetime | int
"""`beginning`, `now`, a time with a zone, a batch as `JOB#ID`, or the number of a batch of ingest-engagements."""

_BATCH = re.compile(r"(?P<job>.+)#(?P<id>\d+)")
# What `Transaction.marker` says of a commit: job@generation.token/process/commit#batch.
_MARKER = re.compile(r"(?P<app>(?P<job>.+)@\d+\.[^/@]+)/[^/]+/[^/]+#(?P<id>\d+)")
_INGESTION = "ingest-engagements"


class UnknownStart(PlatformError):
    """A starting point that is none, or that the log no longer knows."""

    def __init__(self, start: object, why: str) -> None:
        super().__init__(
            f"A consumer cannot start at {start!r}: {why}. Nothing was read and no cursor was made. Start at "
            "`beginning`, `now`, a time with a zone such as 2026-11-21T09:30:00+00:00, or a batch such as "
            f"{_INGESTION}#17."
        )


@dataclass(frozen=True, order=True)
class Position:
    """All commits of the notification table up to `version` were read, and of the next one the first `rows` rows."""

    version: int = BEFORE_ALL
    rows: int = 0

    def as_json(self) -> dict[str, int]:
        """As the store keeps it."""
        return {"version": self.version, "rows": self.rows}

    @classmethod
    def of(cls, stored: Mapping[str, int]) -> Position:
        """From what the store keeps."""
        return cls(stored["version"], stored["rows"])


class CursorReader:
    """A reader of one table with a durable cursor: after a crash all since the last `commit()` comes again.

    lake: under which the cursors of the consumers of what is read are kept. store_url: database of the cursor; None:
    that of the settings, so that the platform sees the consumer, and keeps what it has yet to read.
    Raises UnknownStart, StoresUnavailable.
    """

    def __init__(self, lake: str, uri: str, *, name: str, start: Start, max_rows: int, store_url: str | None) -> None:
        if max_rows < 1:
            raise ValueError("max_rows is at least 1")
        self.name, self.max_rows = name, max_rows
        self._lake, self._uri = lake, uri
        self._cursors = CursorStore(open_engine(store_url or Settings().store_url))
        self._cursor = self._cursors.get(lake, name) or self._cursors.begin(
            lake, name, first_position(uri, start).as_json()
        )
        self._position, self._rows_read = self.committed, 0

    @property
    def committed(self) -> Position:
        """Where a crash now would lead back to."""
        return Position.of(self._cursor.position)

    def commit(self) -> None:
        """Go on from the end of what was read last from now on. Raises CursorMoved, StoresUnavailable."""
        if self._position != self.committed:
            self._cursor = self._cursors.move(self._cursor, self._position.as_json(), self._rows_read)
        self._rows_read = 0

    def forget(self) -> None:
        """Give up the cursor: nothing is kept for this consumer any more."""
        self._cursors.forget(self._lake, self.name)


def first_position(uri: str, start: Start) -> Position:
    """Where a new consumer of the notification table at `uri` begins. Raises UnknownStart.

    Cost: nothing for `beginning` and `now`; a few entries of the log for a time; all newer ones for a batch.
    """
    if start == "beginning":
        return Position()
    newest = log.version(uri)
    if newest is None:
        # Whatever was asked for is still to come.
        return Position()
    if start == "now":
        return Position(newest)
    if isinstance(start, str) and (said := _BATCH.fullmatch(start)):
        return _before_batch(uri, said["job"], int(said["id"]), start)
    if isinstance(start, int):
        return _before_batch(uri, _INGESTION, start, start)
    return _before_time(uri, _moment(start), newest)


def _moment(start: str | datetime) -> datetime:
    try:
        moment = datetime.fromisoformat(start) if isinstance(start, str) else start
    except ValueError:
        raise UnknownStart(start, "it is no starting point") from None
    if moment.tzinfo is None:
        raise UnknownStart(str(start), "it has no zone, and a guess could skip hours")
    return moment.astimezone(UTC)


def _before_time(uri: str, moment: datetime, newest: int) -> Position:
    """Before the first commit at or after a moment; by halving, since commits come in the order of time."""
    oldest = log.next_entry(uri, BEFORE_ALL)
    low, high = newest + 1 if oldest is None else oldest, newest + 1
    while low < high:
        middle = (low + high) // 2
        at = log.committed(uri, middle)
        if at is not None and at >= moment:
            high = middle
        else:
            low = middle + 1
    # When it is older than the oldest entry, what was before that is needed, and reading it says what is gone.
    return Position(BEFORE_ALL if low == oldest and low > 0 else low - 1)


def _before_batch(uri: str, job: str, batch_id: int, start: Start) -> Position:
    """Before the first commit of this batch or a later one of the job, in the job's newest generation."""
    app, found = None, None
    for version, marker in log.markers(uri):
        said = _MARKER.fullmatch(marker or "")
        if said is None or said["job"] != job:
            continue
        app = app or said["app"]
        if said["app"] != app or int(said["id"]) < batch_id:
            break
        found = version
    if found is None:
        raise UnknownStart(start, f"no batch {batch_id} or later of {job} announced anything that the log still knows")
    return Position(found - 1)


def batch_of(uri: str, version: int) -> tuple[str | None, datetime | None]:
    """(the batch that announced this version of the notification table, as JOB#ID; when); None where nobody knows."""
    actions = log.entry(uri, version) or []
    said = _MARKER.fullmatch(log.marker_in(actions) or "")
    return (None if said is None else f"{said['job']}#{said['id']}"), log.time_of(actions)

"""How far consumers are behind, from their cursors and the logs of the tables that they follow. Reads no rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Engine

from engagement_platform.consumers.reader import Position, lake_root, made_anew, remedy
from engagement_platform.consumers.streams import Followed, followed
from engagement_platform.engine.cursors import CursorStore, StreamCheckpoints
from engagement_platform.lake import added_rows, log
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.settings import Settings

MOST_COMMITS = 1_000
"""What waits beyond them is not counted: each commit is a small file to read, and this is asked often."""


@dataclass(frozen=True)
class Behind:
    """What waits in a table after a position."""

    rows: int
    """Of the first MOST_COMMITS commits."""
    commits: int
    oldest: datetime | None
    """When the first of them was made; None: nothing waits, or its log entry is gone."""
    lost: str | None
    """Why part of it is gone, so that the consumer has to take a snapshot, or to begin anew; None: nothing is."""


@dataclass(frozen=True)
class Lag:
    """What one consumer has not committed yet."""

    name: str
    table: str
    """What it follows: notifications, or the rows of another append-only table."""
    position: Position
    behind: Behind
    committed_ts: datetime
    rows_read: int | None
    """None of a Spark stream, whose place is in a checkpoint folder."""

    @property
    def stream(self) -> bool:
        """Whether it is a Spark stream."""
        return self.rows_read is None

    def age_s(self, now: datetime) -> float:
        """How long the oldest change has waited."""
        oldest = self.behind.oldest
        return max(0.0, round((now - oldest).total_seconds(), 1)) if oldest else 0.0

    def as_json(self, now: datetime) -> dict[str, object]:
        """All of it by name; times in ISO 8601."""
        return {
            "name": self.name,
            "table": self.table,
            "stream": self.stream,
            "version": self.position.version,
            "rows": self.position.rows,
            "waiting": self.behind.rows,
            "waiting_commits": self.behind.commits,
            "oldest_waiting_s": self.age_s(now),
            "rows_read": self.rows_read or 0,
            "committed_ts": self.committed_ts.isoformat(),
            "lost": self.behind.lost is not None,
        }


def lags(settings: Settings, engine: Engine) -> list[Lag]:
    """Every consumer of the lake: of what changed, of the rows of append-only tables, and Spark streams that have
    finished a batch and whose folder can be read from here. Of a commit of which a stream has read a part, all waits.
    """
    cursors, root, found = CursorStore(engine), lake_root(settings.lake), list[Lag]()
    for cursor in (*cursors.all(root), *cursors.below(root)):
        table = NOTIFICATION.name if cursor.lake == root else cursor.lake.removeprefix(f"{root}/")
        position = Position(**cursor.position)
        waits = behind(f"{root}/{table}", position, of_rows=table != NOTIFICATION.name)
        found.append(Lag(cursor.name, table, position, waits, cursor.committed_ts, cursor.rows_read))
    uri = NOTIFICATION.uri(settings.lake)
    if (notification := log.open_log(uri)) is None:
        return found
    for name, folder in StreamCheckpoints(engine).all().items():
        at = followed(folder, str(notification.metadata().id))
        if isinstance(at, Followed):
            position = Position(at.version)
            found.append(Lag(name, NOTIFICATION.name, position, behind(uri, position), at.committed_ts, None))
    return found


def behind(uri: str, position: Position, *, of_rows: bool = False) -> Behind:
    """What waits in the table at `uri` after a position. of_rows: its rows are handed out as they were written, and so
    none from before an erasure."""
    newest = log.version(uri)
    last = added_rows.BEFORE_ALL if newest is None else newest
    rows, oldest, gone = -position.rows, None, made_anew(position, newest, log.table_id(uri))
    try:
        for version in range(position.version + 1, min(last, position.version + MOST_COMMITS) + 1):
            files = added_rows.added(uri, version)
            if of_rows and not files and added_rows.erases(uri, version):
                gone = f"an erasure took rows away in version {version}"
            # What makes a table, or moves rows to other files, is nothing to read.
            if files and oldest is None:
                oldest = log.committed(uri, version)
                # What was removed longest ago is what follows at once.
                added_rows.refuse_vacuumed(uri, files)
            rows += sum(added_rows.rows_in(uri, file) for file in files)
    except added_rows.AddedRowsUnknown as error:
        gone = error.why
    return Behind(max(0, rows), max(0, last - position.version), oldest, gone)


def late(found: Sequence[Lag], now: datetime, max_lag: timedelta) -> list[str]:
    """A sentence for each consumer that is lost or too far behind; exactly max_lag is fine."""
    sentences = []
    for lag in found:
        of_rows = lag.table != NOTIFICATION.name
        named = f"stream {lag.name}" if lag.stream else lag.name
        who, waits = (f"{named} of {lag.table}", "rows") if of_rows else (named, "changes")
        if lag.behind.lost is not None:
            way_on = remedy(lag.name, lag.table, stream=lag.stream)
            sentences.append(f"{who} has been away longer than {waits} are kept. {way_on}")
        elif lag.age_s(now) > max_lag.total_seconds():
            sentences.append(
                f"{who} has {lag.behind.rows:,} {waits} to read, the oldest for {lag.age_s(now):.0f} s "
                f"(limit {max_lag.total_seconds():.0f} s); it last committed {lag.committed_ts:%Y-%m-%d %H:%M:%S} UTC"
            )
    return sentences

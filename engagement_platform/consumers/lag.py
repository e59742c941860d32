"""How far consumers are behind, from their cursors and the logs of the tables that they follow. Reads no rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Engine

from engagement_platform.consumers.notified import commits
from engagement_platform.consumers.position import Position
from engagement_platform.engine.cursors import Cursor, CursorStore, StreamCheckpoints
from engagement_platform.errors import PlatformError
from engagement_platform.lake import added_rows, log
from engagement_platform.lake.engagement import NOTIFICATION
from engagement_platform.layout.streams import Followed, followed
from engagement_platform.settings import Settings

MOST_COMMITS = 1_000
"""A consumer further behind is only said to be so: each commit is one small file to read, and this is asked often."""


@dataclass(frozen=True)
class Lag:
    """What one consumer has not committed yet."""

    name: str
    position: Position
    rows: int
    """Notifications that wait, of all organizations, or rows of the table; of the first MOST_COMMITS commits."""
    commits: int
    """Commits that wait."""
    oldest: datetime | None
    """When the first of them was made; None: nothing waits, or its log entry is gone."""
    committed_ts: datetime
    rows_read: int
    lost: bool
    """Whether part of what waits is gone: the consumer has to take a snapshot, or to begin anew."""
    table: str = NOTIFICATION.name
    """What it follows: notifications, or the rows of another append-only table."""
    stream: bool = False
    """A Spark stream: its place is in a checkpoint folder, and how much it has read nobody counts."""

    def age(self, now: datetime) -> timedelta:
        """How long the oldest change has waited."""
        return max(timedelta(0), now - self.oldest) if self.oldest else timedelta(0)

    def as_json(self, now: datetime) -> dict[str, object]:
        """All of it by name; times in ISO 8601."""
        return {
            "name": self.name,
            "table": self.table,
            "stream": self.stream,
            **self.position.as_json(),
            "waiting": self.rows,
            "waiting_commits": self.commits,
            "oldest_waiting_s": round(self.age(now).total_seconds(), 1),
            "rows_read": self.rows_read,
            "committed_ts": self.committed_ts.isoformat(),
            "lost": self.lost,
        }


def lags(settings: Settings, engine: Engine) -> list[Lag]:
    """Every consumer of the lake: of what changed, of the rows of append-only tables, and Spark streams that have
    finished a batch and whose folder can be read from here. Of a commit of which a stream has read a part, all waits.
    """
    cursors, root = CursorStore(engine), log.storage_uri(settings.lake)
    found = [_lag(root, NOTIFICATION.name, cursor) for cursor in cursors.all(root)]
    found += [_lag(root, cursor.lake.removeprefix(f"{root}/"), cursor) for cursor in cursors.below(root)]
    uri = NOTIFICATION.uri(settings.lake)
    table = log.open_log(uri)
    for name, folder in StreamCheckpoints(engine).all().items() if table else ():
        at = followed(folder, str(table.metadata().id)) if table else None
        if isinstance(at, Followed):
            rows, waiting, oldest, lost = _behind(uri, Position(at.version))
            found.append(Lag(name, Position(at.version), rows, waiting, oldest, at.committed_ts, 0, lost, stream=True))
    return found


def _lag(root: str, table: str, cursor: Cursor) -> Lag:
    position = Position.of(cursor.position)
    rows, waiting, oldest, lost = _behind(f"{root}/{table}", position)
    return Lag(cursor.name, position, rows, waiting, oldest, cursor.committed_ts, cursor.rows_read, lost, table)


def _behind(uri: str, position: Position) -> tuple[int, int, datetime | None, bool]:
    """What waits after a position: rows, commits, when the first was made, and whether part of it is gone."""
    newest = log.version(uri)
    last = added_rows.BEFORE_ALL if newest is None else newest
    waiting = max(0, last - position.version)
    rows, oldest, lost = -position.rows, None, position.version > last
    try:
        for version, files in commits(uri, position.version, min(last, position.version + MOST_COMMITS)):
            # What makes a table, or moves rows to other files, is nothing to read.
            if files and oldest is None:
                oldest = log.committed(uri, version)
                added_rows.refuse_vacuumed(uri, files)
            rows += sum(added_rows.rows_in(uri, file) for file in files)
    except PlatformError:
        lost = True
    return max(0, rows), waiting, oldest, lost


def told(found: Sequence[Lag], now: datetime, max_lag: timedelta) -> list[str]:
    """A sentence for each consumer that is lost or too far behind; exactly max_lag is fine."""
    sentences = []
    for lag in found:
        of_rows = lag.table != NOTIFICATION.name
        named = f"stream {lag.name}" if lag.stream else lag.name
        who, waits = (f"{named} of {lag.table}", "rows") if of_rows else (named, "changes")
        if lag.lost:
            sentences.append(f"{who} has been away longer than {waits} are kept; {_how_to_go_on(lag)}")
        elif lag.age(now) > max_lag:
            sentences.append(
                f"{who} has {lag.rows:,} {waits} to read, the oldest for {lag.age(now).total_seconds():.0f} s "
                f"(limit {max_lag.total_seconds():.0f} s); it last committed {lag.committed_ts:%Y-%m-%d %H:%M:%S} UTC"
            )
    return sentences


def _how_to_go_on(lag: Lag) -> str:
    if lag.stream:
        return (
            "replace what it has by all rows that stand, then start it with a new checkpoint folder "
            f"(`engagement-platform consumers --forget-stream {lag.name}`)"
        )
    if lag.table == NOTIFICATION.name:
        return f"it has to take a snapshot (`engagement-platform consume --name {lag.name} --resnapshot`)"
    return (
        "it has to begin anew, from the rows that stand "
        f"(`engagement-platform consumers --forget {lag.name} --table {lag.table}`)"
    )

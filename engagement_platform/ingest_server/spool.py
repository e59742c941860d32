"""The spool: acknowledged events in one SQLite file until they are delivered, segment by segment.

SQLite's write-ahead log makes a commit durable and a crash harmless; many requests share one commit. What a record
says is `intake`, delivering segments is `delivery`.
"""

from __future__ import annotations

import fcntl
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from zlib import crc32

from engagement_platform.engine.durable_files import private_file, private_folder
from engagement_platform.errors import Damaged, PlatformError
from engagement_platform.settings import Settings

_SCHEMA = """
CREATE TABLE IF NOT EXISTS spool (id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS segment (number INTEGER PRIMARY KEY AUTOINCREMENT, opened_ts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS record (
    place INTEGER PRIMARY KEY, segment INTEGER NOT NULL, kind TEXT NOT NULL, game TEXT NOT NULL, ref TEXT NOT NULL,
    hour INTEGER NOT NULL, open BLOB NOT NULL, sealed BLOB NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS record_segment ON record (segment);
"""
_OPEN = """
INSERT INTO segment (number, opened_ts)
SELECT max(?, 1 + coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'segment'), 0)), ?
"""
_COLUMNS = "kind, game, ref, hour, open, sealed, checksum"
_LOCKED_S = 30.0
_MAX_WAITING = 64 * 1024 * 1024
"""Bytes that may wait for the disk; with more it does not keep up, and requests are refused."""
_DISK_IS_FULL = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_BUSY")
"""After these the commit is undone and the next one may succeed; after any other nobody knows what is on the disk."""


class SpoolInUse(PlatformError):
    """Another server works on the spool."""


class SpoolDamaged(Damaged):
    """The spool's file cannot be read, or a record is not what was written."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"The spool {path} is damaged ({what}). It stays where it is, and nothing of it is delivered. Restore it, "
            "or move it away: what it acknowledged is then lost unless the games send it again."
        )


class SpoolFull(PlatformError):
    """The disk does not take what a request brings; nothing of it was acknowledged."""


class RecordKind(StrEnum):
    """What became of an event."""

    ACCEPTED = "E"
    REFUSED = "R"


class Record(NamedTuple):
    """One event in the spool."""

    kind: RecordKind
    game: str
    ref: str
    """Reference of its subject, 64 hexadecimal digits; empty when it has none."""
    hour: int
    """Hours since 1970 when it came, by which the key of `sealed` is found."""
    open: bytes
    """Accepted: the line for the object. Refused: JSON with reason_code, reason, received_ts. Erased: nothing."""
    sealed: bytes
    """Encrypted. Accepted: its personal data, or nothing. Refused: the event."""

    @property
    def size(self) -> int:
        """Bytes that count for the size of a segment."""
        return len(self.open) + len(self.sealed)

    @property
    def checksum(self) -> int:
        """By which a changed byte is noticed."""
        about = f"{self.kind}{self.ref}/{self.hour}/{len(self.open)}/{self.game}"
        return crc32(self.sealed, crc32(self.open, crc32(about.encode())))


@dataclass(frozen=True)
class Segment:
    """A closed part of the spool, which makes one object."""

    spool: str
    number: int
    """Never given twice to segments of one spool: milliseconds since 1970 when it was opened, or one more than the
    last. So what a spool that was restored from a copy takes in has other numbers than what came after that copy."""
    opened: datetime
    """UTC; says in which hour its object is."""


class Spool:
    """The file in one folder, which this server alone fills. Raises SpoolInUse, SpoolDamaged."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int,
        segment_age: timedelta,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        private_folder(folder)
        self._server = (folder / "lock").open("a")
        try:
            fcntl.flock(self._server, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._server.close()
            raise SpoolInUse(
                f"Another ingest server works on the spool in {folder}. Nothing was started. Stop it, or give this one "
                "its own folder with ENGAGEMENT_PLATFORM_INGEST_SERVER__SPOOL."
            ) from None
        self.path, self._clock = folder / "spool.db", clock
        self._segment_bytes, self._segment_age = segment_bytes, segment_age
        self._disk, self._queue = Lock(), Lock()
        self._waiting: list[tuple[Sequence[Record], Future[None]]] = []
        self._current: Segment | None = None
        self.broken: str | None = None
        """Why nothing can be appended until the server starts again."""
        self.commits = 0
        private_file(self.path)
        with readable(self.path):
            self._connection = connected(self.path)
            found = self._connection.execute("SELECT id FROM spool").fetchone()
            self.id = found[0] if found else secrets.token_hex(6)
            if not found:
                self._connection.execute("INSERT INTO spool VALUES (?)", (self.id,))
            sizes = "SELECT segment, sum(length(open) + length(sealed)) FROM record GROUP BY segment"
            self._sizes: dict[int, int] = dict(self._connection.execute(sizes))

    @property
    def size_bytes(self) -> int:
        """Bytes that wait for the sink."""
        return sum(list(self._sizes.values()))

    def append(self, records: Sequence[Record]) -> None:
        """Return when the records are on disk; the first to get the disk commits for all that wait. Raises SpoolFull.

        Blocks for a commit, so it is called from threads.
        """
        mine = Future[None]()
        with self._queue:
            if sum(record.size for waiting, _ in self._waiting for record in waiting) > _MAX_WAITING:
                raise _full("the disk is slower than the requests")
            self._waiting.append((records, mine))
        with self._disk:
            if not mine.done():
                with self._queue:
                    batch, self._waiting = self._waiting, []
                self._commit(batch)
        mine.result()

    def sealed(self) -> list[Segment]:
        """Segments that can be delivered, oldest first. Closes the current one when its time is over."""
        with self._disk, readable(self.path):
            self._close_when_due()
            current = self._current.number if self._current else -1
            rows = self._connection.execute(
                "SELECT number, opened_ts FROM segment WHERE number <> ? ORDER BY number", (current,)
            ).fetchall()
        return [Segment(self.id, number, datetime.fromisoformat(opened)) for number, opened in rows]

    def records(self, segment: Segment) -> list[Record]:
        """The records of a segment in the order they came. Raises SpoolDamaged."""
        with closing(connected(self.path)) as connection:
            return [record for _, record in stored(self.path, connection, segment.number)]

    def remove(self, segment: Segment) -> None:
        """Forget a segment that was delivered."""
        with self._disk, _transaction(self._connection):
            self._connection.execute("DELETE FROM record WHERE segment = ?", (segment.number,))
            self._connection.execute("DELETE FROM segment WHERE number = ?", (segment.number,))
        self._sizes.pop(segment.number, None)

    def finish(self) -> None:
        """Close the last segment; nothing can be appended any more."""
        with self._disk:
            self._current = None
            self.broken = self.broken or "the server is stopping"

    def close(self) -> None:
        """Finish, and let others have the folder."""
        self.finish()
        self._connection.close()
        self._server.close()

    def _commit(self, batch: list[tuple[Sequence[Record], Future[None]]]) -> None:
        """Write all in one transaction and answer all."""
        failed: SpoolFull | None = None
        try:
            if self.broken is not None:
                raise _full(self.broken)
            self._close_when_due()
            self._insert([record for records, _ in batch for record in records])
        except SpoolFull as full:
            failed = full
        except Exception as error:  # also without memory: a request without an answer would hold its thread for ever
            why = str(error) if isinstance(error, sqlite3.Error) else type(error).__name__
            if getattr(error, "sqlite_errorname", "") not in _DISK_IS_FULL:
                self.broken = f"{why}; the server has to be started again"
            failed = _full(why)
        for _, kept in batch:
            if failed is None:
                kept.set_result(None)
            else:
                kept.set_exception(failed)

    def _insert(self, records: Sequence[Record]) -> None:
        current, now = self._current, self._clock()
        with _transaction(self._connection):
            if current is None:
                made = self._connection.execute(_OPEN, (int(now.timestamp() * 1000), now.isoformat()))
                current = Segment(self.id, int(made.lastrowid or 0), now)
            self._connection.executemany(
                f"INSERT INTO record (segment, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(current.number, *record, record.checksum) for record in records],
            )
        self._current = current
        self._sizes[current.number] = self._sizes.get(current.number, 0) + sum(record.size for record in records)
        self.commits += 1

    def _close_when_due(self) -> None:
        if (current := self._current) is None:
            return
        now = self._clock()
        another_hour = now.replace(minute=0, second=0, microsecond=0) > current.opened
        is_large = self._sizes.get(current.number, 0) >= self._segment_bytes
        # A clock that was set back must not keep it open until it has caught up.
        if another_hour or is_large or not timedelta(0) <= now - current.opened < self._segment_age:
            self._current = None


def spool_folder(settings: Settings) -> Path:
    """Where the server of these settings keeps events until they are delivered."""
    return (settings.ingest_server.spool or settings.home / "ingest" / "spool").expanduser().absolute()


def connected(path: Path) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return, and whose removed rows are overwritten.

    Raises SpoolDamaged.
    """
    connection = sqlite3.connect(path, timeout=_LOCKED_S, isolation_level=None, check_same_thread=False)
    # By its checksum a record is known for changed; an error of decoding would hide all that come after it.
    connection.text_factory = lambda text: text.decode(errors="replace")
    with readable(path):
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
            connection.execute(f"PRAGMA {pragma}")
        # Also for an erasure: a server that was killed at its first start leaves an empty file.
        connection.executescript(_SCHEMA)
    return connection


def stored(path: Path, connection: sqlite3.Connection, segment: int | None = None) -> Iterator[tuple[int, Record]]:
    """(place, record) of one segment, or of all.

    Raises SpoolDamaged: after all others for one that is not what was written, at once where SQLite cannot read on.
    """
    where, values = ("", ()) if segment is None else ("WHERE segment = ?", (segment,))
    changed: int | None = None
    with readable(path):
        for place, kind, *rest, checksum in connection.execute(
            f"SELECT place, {_COLUMNS} FROM record {where} ORDER BY place", values
        ):
            record = Record(kind, *rest)
            if record.checksum == checksum:
                yield place, record._replace(kind=RecordKind(kind))
            else:
                changed = place if changed is None else changed
    if changed is not None:
        raise SpoolDamaged(path, f"record {changed} was changed")


def empty(connection: sqlite3.Connection, found: Iterable[tuple[int, Record]]) -> None:
    """Take everything out of records but their places, by which a sink counts how far it is."""
    emptied = [(record._replace(ref="", open=b"", sealed=b"").checksum, place) for place, record in found]
    with _transaction(connection):
        connection.executemany(
            "UPDATE record SET ref = '', open = x'', sealed = x'', checksum = ? WHERE place = ?", emptied
        )


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise SpoolDamaged where SQLite finds the file damaged."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise SpoolDamaged(path, str(error)) from error
        raise


def _full(cause: str) -> SpoolFull:
    return SpoolFull(
        f"The spool cannot take more: {cause}. The request was answered with 503 and nothing of it was kept. Make room "
        "on the disk, or see why the sink does not take events."
    )

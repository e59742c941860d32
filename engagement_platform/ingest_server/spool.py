"""The spool: acknowledged events in files on disk, many requests with one fsync, found again after a crash.

A segment is one file: written by one thread, sealed by size, age or hour, removed once it is delivered. What its
records say is `intake`; delivering them is `delivery`.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread

from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server.records import Record, decode

_LOG = logging.getLogger(__name__)

Done = Callable[[BaseException | None], None]
"""Called from the spool's thread once the bytes are on disk (None), or with the reason why they are not."""

_MAX_WAITING = 64 * 1024 * 1024
"""Bytes that may wait for the disk; more means that it does not keep up, and requests had better be refused."""


class SpoolInUse(PlatformError):
    """Another server works on the spool."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"Another ingest server works on the spool in {folder}. Nothing was started. Stop it, or give this one its "
            "own folder with ENGAGEMENT_PLATFORM_INGEST_SERVER__SPOOL."
        )


class SpoolDamaged(PlatformError):
    """A segment that was sealed, so written whole, cannot be read to its end."""

    def __init__(self, path: Path, whole: int, size: int) -> None:
        self.path = path
        super().__init__(
            f"The segment {path} can be read up to byte {whole} of {size}; the disk, or somebody, changed it. It stays "
            "where it is, and segments after it wait. Restore it, or move it away: what it acknowledged is then lost "
            "unless the games send it again."
        )


class SpoolFull(PlatformError):
    """The disk does not take what a request brings; nothing of it was acknowledged."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The spool cannot take more: {cause}. The request was answered with 503 and nothing of it was kept. Make "
            "room on the disk, or see why the sink does not take events."
        )


@dataclass(frozen=True)
class Segment:
    """A sealed file of the spool."""

    path: Path
    spool: str
    """Of the spool it belongs to; a spool that was made anew has another one."""
    number: int
    opened: datetime
    """UTC; says in which hour its object is."""
    first: int
    """Where records begin."""

    def records(self) -> Iterator[Record]:
        """Its records in the order they came. Raises SpoolDamaged at its end when it is not whole."""
        content = self.path.read_bytes()
        end = self.first
        for record, after in decode(content, self.first):
            yield record
            end = after
        if end != len(content):
            raise SpoolDamaged(self.path, end, len(content))


class Spool:
    """One folder of segments. Opening it finishes what a crash left; raises SpoolInUse."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int,
        segment_age: timedelta,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.folder, self._clock = folder, clock
        self._segment_bytes, self._segment_age = segment_bytes, segment_age
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (folder / "lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise SpoolInUse(folder) from None
        self.id = self._identity()
        for path in sorted(folder.glob("*.open")):
            finish_segment(path)
        self._last = max([self._counted(), *(_number(path) for path in folder.glob("*.sealed"))])
        self._sealed_bytes = sum(path.stat().st_size for path in folder.glob("*.sealed"))
        self._waiting: SimpleQueue[tuple[bytes, Done] | None] = SimpleQueue()
        self._waiting_bytes = 0
        self._file: FileIO | None = None
        self._size, self._opened = 0, self._clock()
        self.broken: str | None = None
        """Why nothing can be written any more; only a new start helps."""
        self.sealed_one = Event()
        """Set whenever a segment was sealed."""
        self.commits = 0
        """How many times the disk was asked to keep what was written."""
        self._thread = Thread(target=self._work, name="spool", daemon=True)
        self._thread.start()

    def append(self, content: bytes, done: Done) -> None:
        """Keep these records (encoded, one after the other, in one segment); done is called when they are on disk.

        Raises SpoolFull when too much waits for the disk, or when it failed before.
        """
        if self.broken is not None:
            raise SpoolFull(self.broken)
        if self._waiting_bytes > _MAX_WAITING:
            raise SpoolFull("the disk is slower than the requests")
        self._waiting_bytes += len(content)
        self._waiting.put((content, done))

    @property
    def size_bytes(self) -> int:
        """Bytes that wait for the sink, the segment that is being written included."""
        return self._sealed_bytes + self._size

    def sealed(self) -> list[Segment]:
        """Segments that can be delivered, oldest first."""
        return [segment_of(path) for path in sorted(self.folder.glob("*.sealed"))]

    def remove(self, segment: Segment) -> None:
        """Forget a segment that was delivered."""
        size = segment.path.stat().st_size
        segment.path.unlink()
        sync_folder(self.folder)
        self._sealed_bytes -= size

    def finish(self) -> None:
        """Write what waits and seal the last segment; nothing can be appended any more."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()
        self.broken = self.broken or "the server is stopping"

    def close(self) -> None:
        """Finish, and let others have the folder."""
        self.finish()
        self._lock.close()

    def _work(self) -> None:
        while True:
            try:
                batch = [self._waiting.get(timeout=self._until_due())]
            except Empty:
                self._seal()
                continue
            while batch[-1] is not None and not self._waiting.empty():
                batch.append(self._waiting.get())
            self._commit([waiting for waiting in batch if waiting is not None])
            if batch[-1] is None:
                self._seal()
                return
            if self._size >= self._segment_bytes or self._is_due():
                self._seal()

    def _commit(self, batch: list[tuple[bytes, Done]]) -> None:
        """Write all, ask the disk once, tell all."""
        if not batch:
            return
        failed: BaseException | None = None
        try:
            if self.broken is not None:
                raise SpoolFull(self.broken)
            self._write(b"".join(content for content, _ in batch))
        except SpoolFull as full:
            failed = full
        self._waiting_bytes -= sum(len(content) for content, _ in batch)
        for _, done in batch:
            done(failed)

    def _write(self, content: bytes) -> None:
        try:
            if self._file is not None and self._is_due():
                self._seal()
            file = self._file or self._begin()
            try:
                left = memoryview(content)
                while left:
                    left = left[file.write(left) :]
            except OSError as error:
                # Nothing of it was acknowledged: the next request continues where the last good one ended.
                file.truncate(self._size)
                file.seek(self._size)
                raise SpoolFull(error.strerror or str(error)) from error
            os.fdatasync(file.fileno())
        except OSError as error:
            # After a failed fsync nobody knows what is on the disk, and asking again would say that all is well.
            self.broken = f"{error.strerror or error}; the server has to be started again"
            raise SpoolFull(self.broken) from error
        self._size += len(content)
        self.commits += 1

    def _begin(self) -> FileIO:
        # Counted before it is used: a number is never given to two segments, also when all files are delivered.
        self._last += 1
        write_durably(self.folder / "counter", str(self._last).encode())
        self._opened = self._clock()
        said = {"spool": self.id, "segment": self._last, "opened_ts": self._opened.isoformat()}
        header = json.dumps(said).encode() + b"\n"
        # Unbuffered: what a failed write left in a buffer would come out later, in the middle of something else.
        file = (self.folder / f"{self._last:012d}.open").open("xb", buffering=0)
        file.write(header)
        sync_folder(self.folder)
        self._file, self._size = file, len(header)
        return file

    def _seal(self) -> None:
        if self._file is None:
            return
        path = Path(self._file.name)
        self._file.close()
        path.rename(path.with_suffix(".sealed"))
        sync_folder(self.folder)
        self._sealed_bytes += self._size
        self._file, self._size = None, 0
        self.sealed_one.set()

    def _is_due(self) -> bool:
        now = self._clock()
        another_hour = now.replace(minute=0, second=0, microsecond=0) > self._opened
        return self._file is not None and (another_hour or now - self._opened >= self._segment_age)

    def _until_due(self) -> float | None:
        if self._file is None:
            return None
        now = self._clock()
        next_hour = self._opened.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        due = min(self._opened + self._segment_age, next_hour)
        return max((due - now).total_seconds(), 0.001)

    def _identity(self) -> str:
        path = self.folder / "spool"
        if not path.exists():
            write_durably(path, secrets.token_hex(6).encode())
        return path.read_text()

    def _counted(self) -> int:
        path = self.folder / "counter"
        return int(path.read_text()) if path.exists() else 0


def finish_segment(path: Path) -> None:
    """Seal a segment that a crash left open, without the record that it was in the middle of. Under the spool's lock.

    That one was not acknowledged: an acknowledgement comes after the disk has all of it.
    """
    content = path.read_bytes()
    end = first = content.find(b"\n") + 1
    for _, after in decode(content, first):
        end = after
    if end == first:
        path.unlink()
    else:
        if end < len(content):
            _LOG.warning("the segment %s ends in %d bytes that were not acknowledged", path.name, len(content) - end)
        with path.open("r+b") as file:
            file.truncate(end)
            os.fsync(file.fileno())
        path.rename(path.with_suffix(".sealed"))
    sync_folder(path.parent)


def segment_of(path: Path) -> Segment:
    """A segment by what its first line says. Raises SpoolDamaged."""
    with path.open("rb") as file:
        header = file.readline()
    try:
        said = json.loads(header)
        opened = datetime.fromisoformat(said["opened_ts"])
        return Segment(path, said["spool"], int(said["segment"]), opened, len(header))
    except (ValueError, KeyError, TypeError):
        raise SpoolDamaged(path, 0, path.stat().st_size) from None


def _number(path: Path) -> int:
    return int(path.name.partition(".")[0])


def write_durably(path: Path, content: bytes) -> None:
    """Replace a small file; after a crash it has the old or the new content, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    with temporary.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Let a file that was made, renamed or removed stay so after the machine crashes."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""How far each consumer has read, and which checkpoint folder belongs to which stream. Kept beside the checkpoints.

What a position means is for those who read; here it moves only from where its reader found it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, Engine, Row, and_, select

from engagement_platform.engine.database import reading, utc_now, writing
from engagement_platform.engine.schema import CONSUMER, STREAM_BATCH, STREAM_CHECKPOINT
from engagement_platform.errors import PlatformError


class CursorMoved(PlatformError):
    """Another process moved, or removed, the cursor that a reader wants to move."""

    def __init__(self, name: str, found: Cursor | None) -> None:
        self.name = name
        now = "it was forgotten" if found is None else f"it stands at {dict(found.position)} since {found.committed_ts}"
        super().__init__(
            f"The cursor of consumer {name} was moved by somebody else meanwhile: {now}. It was not moved now. One "
            "process at a time reads under a name: end the other one, or give this one its own name, and start again; "
            "what was read since the last commit comes once more."
        )


class CheckpointTaken(PlatformError):
    """A stream was started on a checkpoint folder that belongs to another stream."""

    def __init__(self, stream: str, location: str, owner: str) -> None:
        self.stream, self.location, self.owner = stream, location, owner
        super().__init__(
            f"The checkpoint folder {location} belongs to the stream {owner}, so {stream} cannot use it: two streams "
            "overwrite each other's progress there. Nothing was started. Give every stream a folder of its own."
        )


class CheckpointChanged(PlatformError):
    """A stream was started again on another checkpoint folder than before."""

    def __init__(self, stream: str, location: str, before: str) -> None:
        self.stream, self.location, self.before = stream, location, before
        super().__init__(
            f"The stream {stream} has its checkpoint in {before} and was now started with {location}: it would begin "
            "again, and read everything twice or leave a gap. Nothing was started. Start it with the folder it had, "
            "or, to begin anew on purpose, `engagement-platform consumers --forget-stream "
            f"{stream}`."
        )


class CheckpointBehind(PlatformError):
    """A stream's checkpoint folder has finished fewer batches than the stores know of."""

    def __init__(self, stream: str, location: str, found: int | None, recorded: int) -> None:
        self.stream, self.location, self.found, self.recorded = stream, location, found, recorded
        stands = "has finished none" if found is None else f"stands at batch {found}"
        super().__init__(
            f"The stream {stream} has finished batch {recorded}, and its checkpoint folder {location} {stands}: an "
            "older copy was put in its place. Batches with the same numbers and other rows would be taken for those "
            "that the table has, and be lost. Nothing was started. Put the newest folder back; or, to begin anew, move "
            "the table and those after it away and run `engagement-platform consumers --forget-stream "
            f"{stream}` for each."
        )


@dataclass(frozen=True)
class Cursor:
    """Where one consumer of one lake is."""

    lake: str
    name: str
    position: Mapping[str, int]
    revision: int
    """Goes up with every move; a reader moves only what it has seen last."""
    rows_read: int
    started_ts: datetime
    committed_ts: datetime


class CursorStore:
    """One row a consumer and lake. Raises StoresUnavailable. clock: for times that are shown only."""

    def __init__(self, engine: Engine, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._engine, self._clock = engine, clock

    def get(self, lake: str, name: str) -> Cursor | None:
        """Where a consumer is; None for an unknown one."""
        with reading(self._engine) as connection:
            return _found(connection, lake, name)

    def all(self, lake: str) -> list[Cursor]:
        """Every consumer of a lake, by name."""
        query = select(CONSUMER).where(CONSUMER.c.lake == lake).order_by(CONSUMER.c.name)
        with reading(self._engine) as connection:
            return [_cursor(row) for row in connection.execute(query)]

    def below(self, lake: str) -> list[Cursor]:
        """Every consumer of one table of a lake, by table and name; theirs go by the table instead of the lake."""
        inside = CONSUMER.c.lake.startswith(f"{lake}/", autoescape=True)
        query = select(CONSUMER).where(inside).order_by(CONSUMER.c.lake, CONSUMER.c.name)
        with reading(self._engine) as connection:
            return [_cursor(row) for row in connection.execute(query)]

    def begin(self, lake: str, name: str, position: Mapping[str, int]) -> Cursor:
        """The consumer's cursor; a new consumer's is stored at `position`, durably."""
        with writing(self._engine, _lock(lake, name)) as connection:
            found = _found(connection, lake, name)
            if found is not None:
                return found
            now = self._clock()
            made = Cursor(lake, name, dict(position), 0, 0, now, now)
            connection.execute(CONSUMER.insert().values(**vars(made)))
            return made

    def move(self, seen: Cursor, position: Mapping[str, int], rows: int) -> Cursor:
        """The cursor at a new position, after `rows` more. seen: as it was read last. Raises CursorMoved."""
        with writing(self._engine, _lock(seen.lake, seen.name)) as connection:
            found = _found(connection, seen.lake, seen.name)
            if found is None or found.revision != seen.revision or found.started_ts != seen.started_ts:
                raise CursorMoved(seen.name, found)
            moved = Cursor(
                seen.lake, seen.name, dict(position), seen.revision + 1, found.rows_read + rows, found.started_ts,
                self._clock(),
            )  # fmt: skip
            connection.execute(CONSUMER.update().where(_key(seen.lake, seen.name)).values(**vars(moved)))
            return moved

    def forget(self, lake: str, name: str) -> bool:
        """Remove a consumer; whether there was one. Nothing is kept for it any more."""
        with writing(self._engine, _lock(lake, name)) as connection:
            return connection.execute(CONSUMER.delete().where(_key(lake, name))).rowcount > 0


def checkpoint_folder(location: str) -> str:
    """A checkpoint folder as it is known, however it was written; what is on this machine as an absolute path.

    >>> checkpoint_folder("file:///tmp/there/../here/")
    '/tmp/here'
    """
    plain = re.sub(r"^file:(//)?(?=/)", "", location.rstrip("/"))
    return plain if "://" in plain else str(Path(plain).resolve())


class StreamCheckpoints:
    """Which Structured Streaming query owns which checkpoint folder. Raises StoresUnavailable."""

    def __init__(self, engine: Engine, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._engine, self._clock = engine, clock

    def claim(self, stream: str, location: str) -> None:
        """Make a folder this stream's, for ever. Raises CheckpointTaken, CheckpointChanged."""
        location = checkpoint_folder(location)
        with writing(self._engine, "stream-checkpoints") as connection:
            folders = {row.stream: row.location for row in connection.execute(select(STREAM_CHECKPOINT))}
            if folders.get(stream) == location:
                return
            if owner := next((one for one, folder in folders.items() if folder == location), None):
                raise CheckpointTaken(stream, location, owner)
            if stream in folders:
                raise CheckpointChanged(stream, location, folders[stream])
            connection.execute(
                STREAM_CHECKPOINT.insert().values(location=location, stream=stream, claimed_ts=self._clock())
            )

    def all(self) -> dict[str, str]:
        """Checkpoint folder by stream."""
        query = select(STREAM_CHECKPOINT.c.stream, STREAM_CHECKPOINT.c.location).order_by(STREAM_CHECKPOINT.c.stream)
        with reading(self._engine) as connection:
            return {row.stream: row.location for row in connection.execute(query)}

    def record(self, stream: str, batch_id: int) -> None:
        """Keep the number of the last batch that a stream has finished, as Spark counts them."""
        of = STREAM_BATCH.c.stream == stream
        with writing(self._engine, "stream-checkpoints") as connection:
            connection.execute(STREAM_BATCH.delete().where(of))
            connection.execute(
                STREAM_BATCH.insert().values(stream=stream, batch_id=batch_id, recorded_ts=self._clock())
            )

    def recorded(self, stream: str) -> int | None:
        """The last batch that a stream has finished; None where none was kept."""
        query = select(STREAM_BATCH.c.batch_id).where(STREAM_BATCH.c.stream == stream)
        with reading(self._engine) as connection:
            found: int | None = connection.execute(query).scalar_one_or_none()
        return found

    def refuse_behind(self, stream: str, location: str, found: int | None) -> None:
        """Raise CheckpointBehind where the folder has finished less than is recorded. found: its last batch."""
        recorded = self.recorded(stream)
        if recorded is not None and (found is None or found < recorded):
            raise CheckpointBehind(stream, location, found, recorded)

    def forget(self, stream: str) -> bool:
        """Let a stream begin anew in another folder; whether it was known."""
        with writing(self._engine, "stream-checkpoints") as connection:
            connection.execute(STREAM_BATCH.delete().where(STREAM_BATCH.c.stream == stream))
            gone = connection.execute(STREAM_CHECKPOINT.delete().where(STREAM_CHECKPOINT.c.stream == stream))
            return gone.rowcount > 0


def _lock(lake: str, name: str) -> str:
    return f"consumer/{lake}/{name}"


def _key(lake: str, name: str) -> ColumnElement[bool]:
    return and_(CONSUMER.c.lake == lake, CONSUMER.c.name == name)


def _found(connection: Connection, lake: str, name: str) -> Cursor | None:
    row = connection.execute(select(CONSUMER).where(_key(lake, name))).one_or_none()
    return None if row is None else _cursor(row)


def _cursor(row: Row[tuple[object, ...]]) -> Cursor:
    return Cursor(**row._asdict())

"""How far each consumer has read, and which checkpoint folder belongs to which stream, in the stores' database."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, and_, select

from engagement_platform.engine.database import reading, upsert, utc_now, writing
from engagement_platform.engine.schema import CONSUMER, STREAM_BATCH, STREAM_CHECKPOINT
from engagement_platform.errors import PlatformError


class CursorMoved(PlatformError):
    """Another process moved, or removed, the cursor that a reader wants to move."""


class CheckpointRefused(PlatformError):
    """A checkpoint folder is another stream's or topic's, or not the one that this stream had, or an old copy of it."""


@dataclass(frozen=True)
class Cursor:
    """Where one consumer of one lake is."""

    lake: str
    name: str
    position: Mapping[str, Any]
    """A `consumers.reader.Position`, by field."""
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
        return self._where(CONSUMER.c.lake == lake)

    def below(self, lake: str) -> list[Cursor]:
        """Every consumer of one table of a lake, by table and name; theirs go by the table instead of the lake."""
        return self._where(CONSUMER.c.lake.startswith(f"{lake}/", autoescape=True))

    def _where(self, which: ColumnElement[bool]) -> list[Cursor]:
        query = select(CONSUMER).where(which).order_by(CONSUMER.c.lake, CONSUMER.c.name)
        with reading(self._engine) as connection:
            return [Cursor(**row._asdict()) for row in connection.execute(query)]

    def begin(self, lake: str, name: str, position: Mapping[str, Any]) -> Cursor:
        """The consumer's cursor; a new consumer's is stored at `position`, durably."""
        with writing(self._engine, f"consumer/{lake}/{name}") as connection:
            found = _found(connection, lake, name)
            if found is not None:
                return found
            now = self._clock()
            made = Cursor(lake, name, dict(position), 0, 0, now, now)
            connection.execute(CONSUMER.insert().values(**vars(made)))
            return made

    def move(self, seen: Cursor, position: Mapping[str, Any], rows: int) -> Cursor:
        """The cursor at a new position, after `rows` more. seen: as it was read last. Raises CursorMoved."""
        with writing(self._engine, f"consumer/{seen.lake}/{seen.name}") as connection:
            found = _found(connection, seen.lake, seen.name)
            if found is None or found.revision != seen.revision or found.started_ts != seen.started_ts:
                now = f"it is at {dict(found.position)} since {found.committed_ts}" if found else "it was forgotten"
                raise CursorMoved(
                    f"The cursor of consumer {seen.name} was moved by another process: {now}. It was not moved now. "
                    "Start again, one process at a time under a name: what was read since the last commit comes again."
                )
            moved = replace(
                found,
                position=dict(position),
                revision=seen.revision + 1,
                rows_read=found.rows_read + rows,
                committed_ts=self._clock(),
            )
            connection.execute(CONSUMER.update().where(_key(seen.lake, seen.name)).values(**vars(moved)))
            return moved

    def forget(self, lake: str, name: str) -> bool:
        """Remove a consumer; whether there was one. Nothing is kept for it any more."""
        with writing(self._engine, f"consumer/{lake}/{name}") as connection:
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

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def claim(self, stream: str, location: str) -> None:
        """Make a folder this stream's, for ever. Raises CheckpointRefused."""
        location = checkpoint_folder(location)
        with writing(self._engine, "stream-checkpoints") as connection:
            folders = {row.stream: row.location for row in connection.execute(select(STREAM_CHECKPOINT))}
            if folders.get(stream) == location:
                return
            if owner := next((one for one, folder in folders.items() if folder == location), None):
                raise CheckpointRefused(
                    f"The checkpoint folder {location} belongs to the stream {owner}, so {stream} cannot use it. "
                    "Nothing was started. Give every stream a folder of its own."
                )
            if stream in folders:
                raise CheckpointRefused(
                    f"The stream {stream} has its checkpoint in {folders[stream]} and was now started with {location}, "
                    "where it would begin again. Nothing was started. Start it with the folder it had, or forget it: "
                    f"`engagement-platform consumers --forget-stream {stream}`."
                )
            values = {"location": location, "stream": stream, "claimed_ts": utc_now()}
            connection.execute(STREAM_CHECKPOINT.insert().values(**values))

    def all(self) -> dict[str, str]:
        """Checkpoint folder by stream."""
        query = select(STREAM_CHECKPOINT.c.stream, STREAM_CHECKPOINT.c.location).order_by(STREAM_CHECKPOINT.c.stream)
        with reading(self._engine) as connection:
            return {row.stream: row.location for row in connection.execute(query)}

    def record(self, stream: str, batch_id: int) -> None:
        """Keep the number of the last batch that a stream has finished, as Spark counts them."""
        values = {"stream": stream, "batch_id": batch_id, "recorded_ts": utc_now()}
        with writing(self._engine, "stream-checkpoints") as connection:
            upsert(connection, STREAM_BATCH, values, "stream")

    def recorded(self, stream: str) -> int | None:
        """The last batch that a stream has finished; None where none was kept."""
        query = select(STREAM_BATCH.c.batch_id).where(STREAM_BATCH.c.stream == stream)
        with reading(self._engine) as connection:
            found: int | None = connection.execute(query).scalar_one_or_none()
        return found

    def is_behind(self, stream: str, found: int | None) -> bool:
        """Whether a folder whose last finished batch is `found` has finished less than is recorded of the stream."""
        recorded = self.recorded(stream)
        return recorded is not None and (found is None or found < recorded)

    def refuse_behind(self, stream: str, location: str, found: int | None) -> None:
        """Raise CheckpointRefused where `is_behind`: batches with the same numbers and other rows would be lost."""
        if self.is_behind(stream, found):
            last = "has finished none" if found is None else f"ends at batch {found}"
            raise CheckpointRefused(
                f"The stream {stream} has finished batch {self.recorded(stream)}, and its checkpoint folder {location} "
                f"{last}: an older copy was put in its place. Nothing was started. Put the newest folder back; or, to "
                "begin anew, move the table and those after it away and run "
                f"`engagement-platform consumers --forget-stream {stream}` for each."
            )

    def forget(self, stream: str) -> bool:
        """Let a stream begin anew in another folder; whether it was known."""
        with writing(self._engine, "stream-checkpoints") as connection:
            connection.execute(STREAM_BATCH.delete().where(STREAM_BATCH.c.stream == stream))
            gone = connection.execute(STREAM_CHECKPOINT.delete().where(STREAM_CHECKPOINT.c.stream == stream))
            return gone.rowcount > 0


def _key(lake: str, name: str) -> ColumnElement[bool]:
    return and_(CONSUMER.c.lake == lake, CONSUMER.c.name == name)


def _found(connection: Connection, lake: str, name: str) -> Cursor | None:
    row = connection.execute(select(CONSUMER).where(_key(lake, name))).one_or_none()
    return None if row is None else Cursor(**row._asdict())

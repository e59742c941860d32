"""What the source knows about its streams: files that wait, which batch each belongs to, whose messages may go.

A database, so that what an offset means is durable before Spark sees it. Asking SQS is `s3_sqs_queue`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

from sqlalchemy import ColumnElement, Engine, and_, delete, func, insert, or_, select, update

from engagement_platform.engine.database import ensure_tables, open_engine, reading, utc_now, writing
from engagement_platform.sources.s3_events import S3File
from engagement_platform.sources.s3_sqs_tables import FILE, MESSAGE, NAMED, REWRITTEN

METADATA = FILE.metadata

# SQLite takes at most 32,766 values in one statement.
_CHUNK = 500


@dataclass(frozen=True)
class Arrived:
    """A message with files, as SQS handed it out. sent_ms: SQS's clock, milliseconds since 1970."""

    message_id: str
    receipt: str
    sent_ms: int
    files: tuple[S3File, ...]


class S3SqsState:
    """The state of all streams in one database. Raises StoresUnavailable, StoresOfAnotherVersion."""

    def __init__(self, engine: Engine, *, allow_overwrites: bool, clock: Callable[[], datetime] = utc_now) -> None:
        self._engine, self._allow_overwrites, self._clock = engine, allow_overwrites, clock
        ensure_tables(engine, METADATA)

    @classmethod
    def open(cls, url: str, *, allow_overwrites: bool) -> S3SqsState:
        """The state at an SQLAlchemy URL, made on first use."""
        return cls(open_engine(url), allow_overwrites=allow_overwrites)

    @property
    def location(self) -> str:
        """For messages; without a password."""
        return self._engine.url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def arrive(self, stream: str, messages: Sequence[Arrived]) -> int:
        """Write down messages and the files in them that are new, in one transaction; how many files were new.

        Of a message that is known the newest receipt counts. A file that is known changes nothing, unless it waits and
        was written again since: what it was is not there any more, so it is read as what it is now.
        """
        if not messages:
            return 0
        named = [(m, self._identity(file), file) for m in messages for file in m.files]
        with writing(self._engine, _lock(stream)) as connection:
            identities = {identity for _message, identity, _file in named}
            known: dict[str, dict[str, Any]] = {}
            for chunk in _chunks(sorted(identities)):
                query = select(FILE).where(FILE.c.stream == stream, FILE.c.identity.in_(chunk))
                known |= {str(row["identity"]): dict(row) for row in connection.execute(query).mappings()}
            number = connection.execute(select(func.max(FILE.c.number)).where(FILE.c.stream == stream)).scalar() or 0
            rows: dict[str, dict[str, Any]] = {}
            for message, identity, file in named:
                if (before := known.get(identity)) is None:
                    number += 1
                    rows[identity] = known[identity] = self._row(stream, number, identity, message.sent_ms, file)
                elif _is_written_over(before, file):
                    content = {name: getattr(file, name) for name in _CONTENT}
                    known[identity] = {**before, **content}
                    if identity in rows:
                        rows[identity].update(content)
                    else:
                        ours = and_(FILE.c.stream == stream, FILE.c.identity == identity)
                        connection.execute(update(FILE).where(ours).values(**content))
            if rows:
                connection.execute(insert(FILE), list(rows.values()))
            for chunk in _chunks(sorted({m.message_id for m in messages})):
                for table in (MESSAGE, NAMED):
                    ours = and_(table.c.stream == stream, table.c.message_id.in_(chunk))
                    connection.execute(delete(table).where(ours))
            newest = {m.message_id: m.receipt for m in messages}
            connection.execute(
                insert(MESSAGE), [{"stream": stream, "message_id": m, "receipt": r} for m, r in newest.items()]
            )
            links = {(m.message_id, identity) for m, identity, _file in named}
            if links:
                connection.execute(
                    insert(NAMED), [{"stream": stream, "message_id": m, "identity": i} for m, i in sorted(links)]
                )
        return len(rows)

    def waiting(self, stream: str, sent_until_ms: int | None = None) -> int:
        """Files that no batch has yet; with sent_until_ms only those whose message was sent by then."""
        query = select(func.count()).select_from(FILE).where(_unplanned(stream, sent_until_ms))
        with reading(self._engine) as connection:
            return int(connection.execute(query).scalar_one())

    def planned(self, stream: str, after: int) -> int | None:
        """The batch that follows `after` if it was planned before; None if not."""
        query = select(func.min(FILE.c.batch)).where(FILE.c.stream == stream, FILE.c.batch > after)
        with reading(self._engine) as connection:
            return connection.execute(query).scalar()

    def plan(
        self,
        stream: str,
        after: int,
        max_files: int | None,
        sent_until_ms: int | None = None,
        *,
        max_bytes: int | None = None,
    ) -> int:
        """Put the files that wait longest into the batch that follows `after`, durably; `after` when none waits.

        max_files, max_bytes: None takes all; one file is taken however large it is. Only when nothing is `planned`
        after that batch.
        """
        waits = select(FILE.c.number).where(_unplanned(stream, sent_until_ms)).order_by(FILE.c.number).limit(max_files)
        with writing(self._engine, _lock(stream)) as connection:
            if max_bytes is not None:
                found = connection.execute(waits.add_columns(FILE.c.size)).all()
                total = list(accumulate(row.size or 0 for row in found))
                last = max(bisect_right(total, max_bytes), 1)
                waits = waits.limit(last if max_files is None else min(last, max_files))
            done = connection.execute(
                update(FILE).where(FILE.c.stream == stream, FILE.c.number.in_(waits)).values(batch=after + 1)
            )
            return after + 1 if done.rowcount else after

    def split(self, stream: str, batch: int) -> None:
        """Let the later half of a batch's files wait again. Only while nothing has been written of the batch."""
        ours = and_(FILE.c.stream == stream, FILE.c.batch == batch)
        with writing(self._engine, _lock(stream)) as connection:
            numbers = connection.execute(select(FILE.c.number).where(ours).order_by(FILE.c.number)).scalars().all()
            later = numbers[max(1, len(numbers) // 2) :]
            if later:
                connection.execute(update(FILE).where(ours, FILE.c.number >= later[0]).values(batch=None))

    def files(self, stream: str, after: int, upto: int) -> list[S3File]:
        """The files of the batches after one, up to and including another, in the order of their arrival."""
        columns = [FILE.c[name] for name in S3File.__dataclass_fields__]
        query = (
            select(*columns)
            .where(FILE.c.stream == stream, FILE.c.batch > after, FILE.c.batch <= upto)
            .order_by(FILE.c.number)
        )
        with reading(self._engine) as connection:
            return [S3File(**row._asdict()) for row in connection.execute(query)]

    def remembers_after(self, stream: str, batch: int) -> bool:
        """Whether every file of the batches after this one is still known.

        Files are numbered without a gap, in the order of batches, and forgotten in that order, but for those that were
        written anew, which are known for longer: what counts is what follows the last gap. What a stream forgot to the
        last one begins at number 1 again.
        """
        former = FILE.alias()
        has_former = select(former.c.number).where(former.c.stream == stream, former.c.number == FILE.c.number - 1)
        query = select(FILE.c.batch, FILE.c.number).where(FILE.c.stream == stream, ~has_former.exists())
        with reading(self._engine) as connection:
            first = connection.execute(query.order_by(FILE.c.number.desc()).limit(1)).first()
        if first is None or first.batch is None:
            return False
        return bool(first.batch <= batch or (first.batch == batch + 1 and first.number == 1))

    def planned_after(self, stream: str, batch: int) -> int:
        """How many files are in batches after this one."""
        query = select(func.count()).select_from(FILE).where(FILE.c.stream == stream, FILE.c.batch > batch)
        with reading(self._engine) as connection:
            return int(connection.execute(query).scalar_one())

    def renew(self, stream: str, files: Sequence[S3File]) -> None:
        """Make these all the files of a stream, waiting in their order; what it had before is forgotten.

        For streams whose files are given, without messages.
        """
        unique = {self._identity(file): file for file in files}
        rows = [self._row(stream, n, identity, 0, file) for n, (identity, file) in enumerate(unique.items(), 1)]
        with writing(self._engine, _lock(stream)) as connection:
            connection.execute(delete(FILE).where(FILE.c.stream == stream))
            if rows:
                connection.execute(insert(FILE), rows)

    def batch_of(self, stream: str, file: S3File) -> tuple[bool, int | None]:
        """(whether an object is known, the batch that it is in, None when it waits for one)."""
        query = select(FILE.c.batch).where(FILE.c.stream == stream, FILE.c.identity == self._identity(file))
        with reading(self._engine) as connection:
            found = connection.execute(query).first()
        return found is not None, None if found is None else found.batch

    def rewriting(self, stream: str, file: S3File, batch: int, *others: str) -> None:
        """An object that was read is about to be written anew: its next announcement is of something known.

        batch: the last one that is committed, for an object that is forgotten. Its content is not held against an ETag
        until it is `rewritten`, also in other streams that may have yet to read it. When it arrived, event_time as a
        listing has it, is kept from the first time on. It is as old as a new one: it is announced again.
        """
        identity = self._identity(file)
        ours = and_(FILE.c.stream == stream, FILE.c.identity == identity)
        with writing(self._engine, *map(_lock, (stream, *others))) as connection:
            if connection.execute(select(FILE.c.identity).where(ours)).first() is None:
                number = connection.execute(select(func.max(FILE.c.number)).where(FILE.c.stream == stream)).scalar()
                row = self._row(stream, (number or 0) + 1, identity, 0, file)
                connection.execute(insert(FILE).values(**{**row, "batch": batch}))
            every = and_(FILE.c.stream.in_((stream, *others)), FILE.c.identity == identity)
            connection.execute(update(FILE).where(every).values(etag=None, version_id=None, seen_s=self._now_s()))
            kept = connection.execute(select(REWRITTEN.c.identity).where(REWRITTEN.c.identity == identity)).first()
            if kept is None:
                connection.execute(insert(REWRITTEN).values(identity=identity, event_time=file.event_time))

    def rewritten(self, stream: str, file: S3File, *others: str) -> None:
        """The object is there anew, with this ETag, size and version."""
        every = and_(FILE.c.stream.in_((stream, *others)), FILE.c.identity == self._identity(file))
        now = {"etag": file.etag, "size": file.size, "version_id": file.version_id, "seen_s": self._now_s()}
        with writing(self._engine, *map(_lock, (stream, *others))) as connection:
            connection.execute(update(FILE).where(every).values(**now))

    def being_rewritten(self, stream: str) -> set[str]:
        """Keys of the objects whose rewriting has begun and is not recorded as done."""
        query = select(FILE.c.key).where(FILE.c.stream == stream, _is_begun())
        with reading(self._engine) as connection:
            return set(connection.execute(query).scalars())

    def arrived(self, files: Sequence[S3File]) -> list[S3File]:
        """The same objects; those that were written anew with the time at which they had arrived."""
        times: dict[str, str] = {}
        with reading(self._engine) as connection:
            for chunk in _chunks([self._identity(file) for file in files]):
                query = select(REWRITTEN).where(REWRITTEN.c.identity.in_(chunk))
                times.update({row.identity: row.event_time for row in connection.execute(query)})
        if not times:
            return list(files)
        return [replace(file, event_time=times.get(self._identity(file), file.event_time)) for file in files]

    def knows(self, stream: str, batch: int) -> bool:
        """Whether a batch was planned here; none (0) always was."""
        query = select(func.max(FILE.c.batch)).where(FILE.c.stream == stream)
        with reading(self._engine) as connection:
            return batch <= (connection.execute(query).scalar() or 0)

    def in_flight(self, stream: str) -> dict[str, str]:
        """Receipt of every message that is not deleted yet, by message id."""
        return self._receipts(MESSAGE.c.stream == stream)

    def finished(self, stream: str, upto: int) -> dict[str, str]:
        """Receipt of every message all of whose files are in batches up to this one, by message id."""
        open_file = and_(
            FILE.c.stream == NAMED.c.stream,
            FILE.c.identity == NAMED.c.identity,
            or_(FILE.c.batch.is_(None), FILE.c.batch > upto),
        )
        has_open = (
            select(NAMED.c.identity)
            .join(FILE, open_file)
            .where(NAMED.c.stream == MESSAGE.c.stream, NAMED.c.message_id == MESSAGE.c.message_id)
            .exists()
        )
        return self._receipts(MESSAGE.c.stream == stream, ~has_open)

    def _receipts(self, *where: ColumnElement[bool]) -> dict[str, str]:
        query = select(MESSAGE.c.message_id, MESSAGE.c.receipt).where(*where)
        with reading(self._engine) as connection:
            return {row.message_id: row.receipt for row in connection.execute(query)}

    def forget_messages(self, stream: str, message_ids: Iterable[str]) -> None:
        """These were deleted from the queue. Their files stay known."""
        with writing(self._engine, _lock(stream)) as connection:
            for chunk in _chunks(sorted(message_ids)):
                for table in (MESSAGE, NAMED):
                    connection.execute(delete(table).where(table.c.stream == stream, table.c.message_id.in_(chunk)))

    def forget_files(self, stream: str, before_batch: int, age: timedelta) -> int:
        """Drop files of batches before this one that came, or were written anew, longer than `age` ago; how many.

        An event about one of them that comes later still would be read again. What is being written anew stays.
        """
        until = int((self._clock() - age).timestamp())
        old = and_(FILE.c.stream == stream, FILE.c.batch < before_batch, FILE.c.seen_s < until)
        with writing(self._engine, _lock(stream)) as connection:
            return int(connection.execute(delete(FILE).where(old, ~_is_begun())).rowcount)

    def _identity(self, file: S3File) -> str:
        return file.identity(allow_overwrites=self._allow_overwrites)

    def _row(self, stream: str, number: int, identity: str, sent_ms: int, file: S3File) -> dict[str, Any]:
        mine = {"stream": stream, "identity": identity, "number": number, "sent_ms": sent_ms, "seen_s": self._now_s()}
        return {**vars(file), **mine}

    def _now_s(self) -> int:
        return int(self._clock().timestamp())


_CONTENT = ("version_id", "etag", "size", "event_time", "sequencer")
"""What an announcement says of the content of a key."""


def _is_written_over(before: Mapping[str, Any], file: S3File) -> bool:
    """Whether a file that no batch has yet was announced as what another announcement says is not there any more.

    A version stays readable, and so does what is being written anew, which has no ETag meanwhile.
    """
    waits = before.get("batch") is None and before["version_id"] is None and before["etag"] is not None
    if not waits or file.etag in (None, before["etag"]):
        return False
    former, later = str(before["sequencer"] or ""), file.sequencer or ""
    if former and later:
        # As S3 says that they are compared: the shorter one with zeros behind it. Announcements come in any order.
        length = max(len(former), len(later))
        return former.ljust(length, "0") < later.ljust(length, "0")
    return bool(before["event_time"] and file.event_time) and str(before["event_time"]) <= str(file.event_time)


def _unplanned(stream: str, sent_until_ms: int | None) -> ColumnElement[bool]:
    waits = and_(FILE.c.stream == stream, FILE.c.batch.is_(None))
    return waits if sent_until_ms is None else and_(waits, FILE.c.sent_ms <= sent_until_ms)


def _is_begun() -> ColumnElement[bool]:
    """Whether the rewriting of a file has begun and is not recorded as done."""
    return and_(FILE.c.etag.is_(None), FILE.c.identity.in_(select(REWRITTEN.c.identity)))


def _chunks(values: Sequence[str]) -> Iterable[Sequence[str]]:
    return (values[i : i + _CHUNK] for i in range(0, len(values), _CHUNK))


def _lock(stream: str) -> str:
    return f"s3-sqs/{stream}"

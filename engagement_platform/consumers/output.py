"""Batches of changes as lines or files, written whole before the cursor moves. What a batch holds is `changes`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from engagement_platform.consumers.appended import Appended, Appends
from engagement_platform.consumers.changes import Batch, Changes, Snapshot
from engagement_platform.consumers.position import Position
from engagement_platform.errors import PlatformError
from engagement_platform.lake.plain import plain_rows

FORMATS = ("jsonl", "parquet")


class CannotPut(PlatformError):
    """The place that was asked for cannot be written to."""

    def __init__(self, place: Path | None, why: str) -> None:
        what = "Changes" if place is None else str(place)
        super().__init__(f"{what} cannot be written: {why}. Nothing was read and no cursor was moved.")


class Output(Protocol):
    """Where changes go. What `put` returned from stays, also when the machine stops."""

    def put(self, rows: pa.Table, begin: Position) -> None:
        """One stretch of changes that begins after this position."""
        ...

    def replace(self, snapshot: Snapshot) -> int:
        """Everything that stands, instead of what was there; how many rows that are."""
        ...


def as_rows(batch: Batch) -> pa.Table:
    """All changes of a batch in one table: change_type first, previous_person_id last; null what a delete lacks."""
    parts = [_of(kind, rows) for kind, rows in _kinds(batch)]
    return pa.concat_tables(parts, promote_options="default")


def _kinds(batch: Batch) -> Iterator[tuple[str, pa.Table]]:
    # The updates have all columns, so that the others follow their order.
    yield "UPDATE", batch.updates
    yield "INSERT", batch.inserts
    yield "DELETE", batch.deletes


def _of(kind: str, rows: pa.Table) -> pa.Table:
    return rows.add_column(0, pa.field("change_type", pa.string()), pa.repeat(pa.scalar(kind), rows.num_rows))


class JsonLines:
    """One object a line, on a stream or appended to a file."""

    def __init__(self, place: Path | IO[str]) -> None:
        """Raises CannotPut."""
        self._path = place if isinstance(place, Path) else None
        if isinstance(place, Path) and (place.is_dir() or not place.absolute().parent.is_dir()):
            raise CannotPut(
                place, "it is a folder" if place.is_dir() else f"there is no folder {place.absolute().parent}"
            )
        self._stream = None if isinstance(place, Path) else place

    def put(self, rows: pa.Table, begin: Position) -> None:  # noqa: ARG002
        """The lines of one stretch. After a crash some may stand twice, since lines cannot be taken back."""
        self._write(rows, "a")

    def replace(self, snapshot: Snapshot) -> int:
        """A file is written anew; on a stream the rows follow."""
        count = 0
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        for rows in snapshot:
            self._write(_of("INSERT", rows), "a")
            count += rows.num_rows
        return count

    def _write(self, rows: pa.Table, mode: str) -> None:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in plain_rows(rows))
        if self._path is None:
            assert self._stream is not None
            self._stream.writelines(lines)
            self._stream.flush()
            return
        with self._path.open(mode, encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())


class ParquetFiles:
    """One file a batch in a folder, named after where it begins: one that comes again replaces itself."""

    def __init__(self, folder: Path) -> None:
        """The folder is made. Raises CannotPut."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotPut(folder, str(error)) from error
        self._folder = folder

    def put(self, rows: pa.Table, begin: Position) -> None:
        """One file, which appears when it is whole."""
        self._write(rows, f"changes-{begin.version + 1:012}-{begin.rows:09}.parquet")

    def replace(self, snapshot: Snapshot) -> int:
        """Files called snapshot-…, and all changes before them are removed."""
        written, count = set[str](), 0
        for number, rows in enumerate(snapshot):
            name = f"snapshot-{snapshot.position.version:012}-{number:06}.parquet"
            self._write(_of("INSERT", rows), name)
            written.add(name)
            count += rows.num_rows
        for path in self._folder.glob("*.parquet"):
            if path.name not in written:
                path.unlink()
        return count

    def _write(self, rows: pa.Table, name: str) -> None:
        path = self._folder / name
        partial = path.with_name(f".{name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                pq.write_table(rows, file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            with suppress(FileNotFoundError):
                partial.unlink()


def deliver_rows(appends: Appends, output: Output) -> Iterator[Appended]:
    """As `deliver`, for the rows of a table as they were written."""
    for batch in appends:
        output.put(batch.rows, appends.committed)
        appends.commit()
        yield batch


def deliver(changes: Changes, output: Output) -> Iterator[Batch]:
    """Put each batch, then commit it, then tell of it."""
    for batch in changes:
        # Where it would begin again after a crash, so that it then has the same name.
        output.put(as_rows(batch), changes.committed)
        changes.commit()
        yield batch

"""Batches of changes as lines or files, written whole before the cursor moves. What a batch holds is `changes`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from engagement_platform.consumers.changes import Snapshot, with_change_type
from engagement_platform.consumers.reader import B, ConsumerRefused, CursorReader, Position
from engagement_platform.engine.durable_files import replacing
from engagement_platform.errors import PlatformError, first_line
from engagement_platform.lake.arrow import plain_rows

_BLOCK_BYTES = 65_536
_OURS = re.compile(r"(?:changes-\d{12,}-\d{9,}|snapshot-\d{12,}-\d{6,})\.parquet")
"""What `ParquetFiles` calls its files; others in the folder are not touched."""


class OutputFailed(PlatformError):
    """The system refused to write what a consumer read: the disk is full, or the place is not for this user."""

    def __init__(self, place: Path, why: str) -> None:
        self.place, self.why = place, why
        super().__init__(
            f"{place} cannot be written: {why}. The cursor stays at the end of what was written whole. Make room there "
            "or give the right to write, then call again; or name another place by --out."
        )


def cannot_write(place: Path | None, why: str) -> ConsumerRefused:
    """The place that was asked for cannot be written to."""
    return ConsumerRefused(f"{place or 'Changes'} cannot be written: {why}.", "Name another place by --out.")


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Raise OutputFailed for what the system refuses."""
    try:
        yield
    except OSError as error:
        raise OutputFailed(place, first_line(error)) from error


class JsonLines:
    """One object a line, on a stream or appended to a file."""

    def __init__(self, place: Path | IO[str]) -> None:
        """Raises ConsumerRefused."""
        self._place = place
        if isinstance(place, Path):
            if place.is_dir():
                raise cannot_write(place, "it is a folder")
            if not (folder := place.absolute().parent).is_dir():
                raise cannot_write(place, f"there is no folder {folder}")

    def put(self, rows: pa.Table, begin: Position) -> None:  # noqa: ARG002
        """The lines of one stretch. After a crash some may stand twice, since whole lines cannot be taken back; the
        part of a line that a kill left goes, and nothing else. Raises OutputFailed."""
        if isinstance(self._place, Path):
            with _writing(self._place), self._place.open("ab+") as file:
                _end_last_line(file)
                file.writelines(_lines(rows))
                file.flush()
                os.fsync(file.fileno())
        else:
            self._place.writelines(line.decode() for line in _lines(rows))
            self._place.flush()

    def replace(self, snapshot: Snapshot) -> int:
        """Everything that stands, instead of what the file has until then; on a stream the rows follow. Returns how
        many. Raises OutputFailed."""
        tables = (with_change_type("INSERT", rows) for rows in snapshot)
        count = 0
        if not isinstance(self._place, Path):
            for rows in tables:
                self.put(rows, snapshot.position)
                count += rows.num_rows
            return count
        with ExitStack() as whole:
            with _writing(self._place):
                file = whole.enter_context(replacing(self._place))
            # Outside: what fails where the rows are read is no fault of the file.
            for rows in tables:
                with _writing(self._place):
                    file.writelines(_lines(rows))
                count += rows.num_rows
            with _writing(self._place):
                whole.close()
        return count


def _lines(rows: pa.Table) -> Iterator[bytes]:
    return ((json.dumps(row, ensure_ascii=False) + "\n").encode() for row in plain_rows(rows))


def _end_last_line(file: BinaryIO) -> None:
    """End a file with a newline: a whole object that lacks one gets it, and what is none is cut off."""
    end = _end_of_lines(file)
    file.seek(end)
    try:
        is_whole = isinstance(json.loads(file.read()), dict)
    except (ValueError, RecursionError):
        is_whole = False
    if is_whole:
        file.write(b"\n")
    else:
        file.truncate(end)


def _end_of_lines(file: BinaryIO) -> int:
    """Where the last whole line ends."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        if (newline := file.read(end - begin).rfind(b"\n")) >= 0:
            return begin + newline + 1
        end = begin
    return 0


class ParquetFiles:
    """One file a batch in a folder, named after where it begins: one that comes again replaces itself."""

    def __init__(self, folder: Path, owner: str) -> None:
        """The folder is made, and is the owner's, whose files have the names that others would give theirs.

        Raises ConsumerRefused, also where it is another's.
        """
        marker = folder / "_consumer"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not marker.exists():
                with suppress(FileExistsError), marker.open("x") as file:
                    file.write(owner)
            found = marker.read_text()
        except (OSError, UnicodeError) as error:
            raise cannot_write(folder, str(error)) from error
        if found != owner:
            whose = found or "another consumer"
            raise cannot_write(folder, f"its files are those of {whose}, as {marker} says, and not of {owner}")
        self._folder = folder

    def put(self, rows: pa.Table, begin: Position) -> None:
        """One file, which appears when it is whole and survives a stop of the machine. Raises OutputFailed."""
        self._write(rows, f"changes-{begin.version + 1:012}-{begin.rows:09}.parquet")

    def replace(self, snapshot: Snapshot) -> int:
        """Files called snapshot-…; what it wrote before them is removed. Returns how many rows. Raises OutputFailed."""
        written, count = set[str](), 0
        for number, rows in enumerate(snapshot):
            name = f"snapshot-{snapshot.position.version:012}-{number:06}.parquet"
            self._write(with_change_type("INSERT", rows), name)
            written.add(name)
            count += rows.num_rows
        with _writing(self._folder):
            for path in self._folder.glob("*.parquet"):
                if path.name not in written and _OURS.fullmatch(path.name):
                    path.unlink()
        return count

    def _write(self, rows: pa.Table, name: str) -> None:
        with _writing(self._folder), replacing(self._folder / name) as file:
            pq.write_table(rows, file, compression="zstd")


def deliver(reader: CursorReader[B], output: JsonLines | ParquetFiles) -> Iterator[B]:
    """Put each batch, commit it, then pass it on."""
    for batch in reader:
        # Where it would begin again after a crash, so that it then has the same name.
        output.put(batch.table(), reader.committed)
        reader.commit()
        yield batch

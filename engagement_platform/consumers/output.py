"""Batches of changes as lines or files, written whole before the cursor moves. What a batch holds is `changes`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from engagement_platform.consumers.changes import Snapshot, with_change_type
from engagement_platform.consumers.reader import B, ConsumerRefused, CursorReader, Position
from engagement_platform.engine.durable_files import replacing
from engagement_platform.lake.arrow import plain_rows


def cannot_write(place: Path | None, why: str) -> ConsumerRefused:
    """The place that was asked for cannot be written to."""
    return ConsumerRefused(f"{place or 'Changes'} cannot be written: {why}.", "Name another place by --out.")


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
        """The lines of one stretch. After a crash some may stand twice, since lines cannot be taken back."""
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in plain_rows(rows))
        if isinstance(self._place, Path):
            with self._place.open("a", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
        else:
            self._place.writelines(lines)
            self._place.flush()

    def replace(self, snapshot: Snapshot) -> int:
        """Everything that stands, instead of what the file had; on a stream the rows follow. Returns how many."""
        count = 0
        if isinstance(self._place, Path):
            self._place.unlink(missing_ok=True)
        for rows in snapshot:
            self.put(with_change_type("INSERT", rows), snapshot.position)
            count += rows.num_rows
        return count


class ParquetFiles:
    """One file a batch in a folder, named after where it begins: one that comes again replaces itself."""

    def __init__(self, folder: Path) -> None:
        """The folder is made. Raises ConsumerRefused."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, str(error)) from error
        self._folder = folder

    def put(self, rows: pa.Table, begin: Position) -> None:
        """One file, which appears when it is whole and survives a stop of the machine."""
        self._write(rows, f"changes-{begin.version + 1:012}-{begin.rows:09}.parquet")

    def replace(self, snapshot: Snapshot) -> int:
        """Files called snapshot-…; all changes before them are removed. Returns how many rows."""
        written, count = set[str](), 0
        for number, rows in enumerate(snapshot):
            name = f"snapshot-{snapshot.position.version:012}-{number:06}.parquet"
            self._write(with_change_type("INSERT", rows), name)
            written.add(name)
            count += rows.num_rows
        for path in self._folder.glob("*.parquet"):
            if path.name not in written:
                path.unlink()
        return count

    def _write(self, rows: pa.Table, name: str) -> None:
        with replacing(self._folder / name) as file:
            pq.write_table(rows, file, compression="zstd")


def deliver(reader: CursorReader[B], output: JsonLines | ParquetFiles) -> Iterator[B]:
    """Put each batch, commit it, then pass it on."""
    for batch in reader:
        # Where it would begin again after a crash, so that it then has the same name.
        output.put(batch.table(), reader.committed)
        reader.commit()
        yield batch

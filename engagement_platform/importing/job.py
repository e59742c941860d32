"""An import from its plan to its report: slice by slice, each committed once, verified, compacted.

The plan is durable before any work. A slice is three commits, each with a transaction id: its rows, its quarantine, its
outcome; after a crash only those that are missing are made, by parsing the slice again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.importing.at_hand import at_hand, changed_in, is_here
from engagement_platform.importing.files import SourceFile
from engagement_platform.importing.parse import BLOCK, Rejected, parsed
from engagement_platform.importing.schema import Schema
from engagement_platform.importing.types import plain, words
from engagement_platform.lake import imported, log
from engagement_platform.lake.checksums import ALGORITHM, Checksum, in_memory, of

SLICE_BYTES = 64 * 1024 * 1024
SLICE_FILES = 2_000
"""A slice ends at either; a larger file is one by itself. So much is done again after a crash (a guess)."""

Progress = Callable[[int], None]
"""Told how many bytes of files are done since last time."""


class SourceChanged(PlatformError):
    """A file that was planned is another one now, or gone."""

    def __init__(self, source: str, paths: Sequence[str]) -> None:
        super().__init__(
            f"{len(paths)} files of {source} were changed or removed since the import was planned, the first is "
            f"{paths[0]}. Slices that were committed stay, nothing more was imported. Put the files back, or import "
            "the source as it is now into a new table."
        )


class TableTaken(PlatformError):
    """The table is not one that an import made, or has other columns."""

    def __init__(self, table: str, why: str) -> None:
        super().__init__(
            f"Nothing can be imported into {table}: {why}. Nothing was written. Import into another table."
        )


class ImportDiffers(PlatformError):
    """What is in the table is not what was read."""

    def __init__(self, what: str, read: Checksum, there: Checksum) -> None:
        super().__init__(
            f"{what} has {there.rows:,} rows with the checksum {there.text}; {read.rows:,} rows with {read.text} were "
            "read. The source was not touched. Did somebody else write to the table? Otherwise this is a defect, "
            "please report it; import into another table meanwhile."
        )


@dataclass
class Slice:
    """One part of the plan, and what came of it so far."""

    number: int
    files: Sequence[SourceFile]
    read: Checksum = field(default_factory=Checksum)
    rejected: list[Rejected] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """Before and after."""

    source: str
    table: str
    slices: int
    slices_now: int
    """Of these, made by this call."""
    rows: int
    rejected: int
    checksum: str
    files_before: int
    bytes_before: int
    seconds_before: float
    """Reading, parsing and summing up all rows of the source."""
    files_after: int
    bytes_after: int
    seconds_after: float
    """Reading and summing up all rows of the table."""


@dataclass(frozen=True)
class Import:
    """One source and the table that it goes to. root: what the files' paths are relative to."""

    lake: str
    source: str
    root: str
    table: str
    slice_bytes: int = SLICE_BYTES

    @property
    def uri(self) -> str:
        """Where the table is."""
        return f"{self.lake}/{self.table}"

    def txn(self, what: str, number: int) -> Transaction:
        """Names one commit of this import."""
        told = hashlib.sha256(f"{self.source}\0{self.table}".encode()).hexdigest()[:16]
        return Transaction(f"import@1.{told}/{self.table.replace('/', '_')}/{what}", number)

    def planned(self, files: Sequence[SourceFile]) -> list[Slice]:
        """The slices of earlier calls, and those of files that are new. Raises SourceChanged."""
        where = {"source": self.source, "table_name": self.table}
        slices: dict[int, list[SourceFile]] = {}
        for row in imported.noted(self.lake, imported.PLAN, **where):
            values = {name: row[name] for name in ("path", "bytes", "modified_ns", "format", "codec")}
            slices.setdefault(row["slice"], []).append(SourceFile(**values))
        there = {file.path: file for file in files}
        known = [file for some in slices.values() for file in some]
        if changed := sorted(file.path for file in known if there.get(file.path) != file):
            raise SourceChanged(self.source, changed)
        seen = {file.path for file in known}
        new = list(cut([file for file in files if file.path not in seen], self.slice_bytes))
        first = max(slices, default=-1) + 1
        slices |= dict(enumerate(new, first))
        if new:
            rows = [{**where, "slice": number, **vars(file)} for number, some in enumerate(new, first) for file in some]
            imported.note(self.lake, imported.PLAN, rows, self.txn("plan", first))
        return [Slice(number, sorted(slices[number], key=lambda file: file.path)) for number in sorted(slices)]

    def run(self, files: Sequence[SourceFile], schema: Schema, progress: Progress) -> Report:
        """All that is left of it. Raises SourceChanged, TableTaken, ImportDiffers."""
        self.refuse_taken(schema)
        slices = self.planned(files)
        found = imported.make(self.uri, schema.columns, schema.partitioned_by, f"Imported from {self.source}.")
        where = {"source": self.source, "table_name": self.table}
        done = {row["slice"] for row in imported.noted(self.lake, imported.OUTCOME, **where)}
        for one in slices:
            if one.number in done:
                progress(sum(file.bytes for file in one.files))
            else:
                self._make(one, found, schema.columns, progress)
        made = sum(one.number not in done for one in slices)
        if made:
            imported.compact(found, self.table)
        return self._report(slices, made, found, schema.columns)

    def kept(self) -> Schema | None:
        """The columns of the table, when earlier imports made it: they stay, whatever newer files look like."""
        there = log.open_log(self.uri)
        if there is None or not imported.noted(self.lake, imported.PLAN, table_name=self.table):
            return None
        columns = [pa.field(field.name, plain(field.type)) for field in imported.columns_of(there)]
        return Schema(pa.schema(columns), tuple(there.metadata().partition_columns))

    def refuse_taken(self, schema: Schema) -> None:
        """Raise TableTaken when the table is somebody else's."""
        there = log.open_log(self.uri)
        if there is None:
            return
        if not imported.noted(self.lake, imported.PLAN, table_name=self.table):
            raise TableTaken(self.table, "there is such a table, and no import made it")
        if told(imported.columns_of(there)) != told(schema.columns):
            raise TableTaken(self.table, "it has other columns, or the same in another order or of other types")

    def _refuse_changed(self, files: Sequence[SourceFile]) -> None:
        """Raise SourceChanged when a file is not the one that was planned."""
        if changed := changed_in(self.root, files):
            raise SourceChanged(self.source, changed)

    def _make(self, one: Slice, found: DeltaTable, schema: pa.Schema, progress: Progress) -> None:
        txn = self.txn("append", one.number)
        found.update_incremental()
        with at_hand(self.root, one.files) as (places, copying):
            if not is_here(self.root):
                self._refuse_changed(one.files)
            if not imported.append(found, self._read(one, places, schema, progress), schema, txn):
                # Its rows are there, its books are not: it died between. Parsed again, it says the same.
                for _ in self._read(one, places, schema, progress):
                    pass
        one.seconds += copying
        there = imported.committed(self.uri, schema, txn)
        if there != one.read:
            raise ImportDiffers(f"Slice {one.number} of {self.table}", one.read, there)
        where = {"source": self.source, "table_name": self.table, "slice": one.number}
        if one.rejected:
            rows = [{**where, **vars(rejected)} for rejected in one.rejected]
            imported.note(self.lake, imported.REJECTED, rows, self.txn("quarantine", one.number))
        outcome = {
            **where, "rows": one.read.rows, "rejected": len(one.rejected), "checksum": one.read.text,
            "algorithm": ALGORITHM, "files": len(one.files), "bytes": sum(file.bytes for file in one.files),
            "seconds": one.seconds,
        }  # fmt: skip
        imported.note(self.lake, imported.OUTCOME, [outcome], self.txn("outcome", one.number))

    def _read(
        self, one: Slice, places: Sequence[str], schema: pa.Schema, progress: Progress
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, as they are parsed; what they come to is kept in it. places: where its files are read.

        Raises SourceChanged, before the last row is told, and so before anything is committed.
        """
        one.read, one.seconds = Checksum(), 0.0
        one.rejected.clear()
        with in_memory() as connection:
            for rows in gathered(self._parsed(one, places, schema, progress)):
                began = time.monotonic()
                one.read += of(connection, rows)
                one.seconds += time.monotonic() - began
                yield from rows.to_batches()
        if is_here(self.root):
            self._refuse_changed(one.files)

    def _parsed(self, one: Slice, places: Sequence[str], schema: pa.Schema, progress: Progress) -> Iterator[pa.Table]:
        for file, place in zip(one.files, places, strict=True):
            parts = parsed(place, file, schema)
            while True:
                began = time.monotonic()
                try:
                    part = next(parts, None)
                except FileNotFoundError:
                    raise SourceChanged(self.source, [file.path]) from None
                if part is None:
                    break
                one.rejected += part.rejected
                one.seconds += time.monotonic() - began
                yield part.rows
            progress(file.bytes)

    def _report(self, slices: Sequence[Slice], made: int, found: DeltaTable, schema: pa.Schema) -> Report:
        """The whole table, read once more and held against all outcomes of all sources that went into it."""
        outcomes = imported.noted(self.lake, imported.OUTCOME, table_name=self.table)
        found.update_incremental()
        there, seconds = imported.read(found, schema)
        expected = sum((_checksum(row) for row in outcomes), Checksum())
        if any(row["algorithm"] != ALGORITHM for row in outcomes):
            expected = replace(expected, sum=there.sum)
        if there != expected:
            raise ImportDiffers(self.table, expected, there)
        mine = [row for row in outcomes if row["source"] == self.source]
        files, size = imported.size_of(found)
        return Report(
            source=self.source, table=self.table, slices=len(slices), slices_now=made,
            rows=_sum(mine, "rows"), rejected=_sum(mine, "rejected"),
            checksum=sum((_checksum(row) for row in mine), Checksum()).text,
            files_before=_sum(mine, "files"), bytes_before=_sum(mine, "bytes"),
            seconds_before=sum(row["seconds"] for row in mine),
            files_after=files, bytes_after=size, seconds_after=seconds,
        )  # fmt: skip


def told(schema: pa.Schema) -> list[tuple[str, str]]:
    """Names and types of columns as people write them: Arrow has more than one spelling of each."""
    return [(field.name, words(plain(field.type))) for field in schema]


def _sum(rows: Sequence[dict[str, Any]], name: str) -> int:
    return sum(int(row[name]) for row in rows)


def _checksum(row: dict[str, Any]) -> Checksum:
    return Checksum(int(row["rows"]), int(row["checksum"], 16))


def gathered(parts: Iterable[pa.Table], least: int = BLOCK) -> Iterator[pa.Table]:
    """The same rows in tables of at least so many, but for the last: what is done with a table costs 6 ms however few
    rows it has, and small files have few (2 cores, DuckDB 2.0)."""
    waiting: list[pa.Table] = []
    rows = 0
    for part in parts:
        waiting.append(part)
        rows += part.num_rows
        if rows >= least:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def cut(files: Sequence[SourceFile], most_bytes: int, most_files: int = SLICE_FILES) -> Iterator[list[SourceFile]]:
    """Files in their order, in parts of at most so many bytes and files; a file that is larger is a part by itself."""
    part: list[SourceFile] = []
    size = 0
    for file in files:
        if part and (size + file.bytes > most_bytes or len(part) == most_files):
            yield part
            part, size = [], 0
        part.append(file)
        size += file.bytes
    if part:
        yield part

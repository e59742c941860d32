"""An import from its plan to its report: slice by slice, each committed once, verified, compacted.

The plan is durable before any work. A slice is three commits, each with a transaction id: its rows, its quarantine, its
outcome; after a crash only those that are missing are made, by reading the slice again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.importing.files import NothingToImport, SourceFile
from engagement_platform.importing.read import PATH, REASON, VALUE, look, read, strictly
from engagement_platform.importing.schema import Schema
from engagement_platform.lake import log, scan
from engagement_platform.lake.arrow import table_of
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.imported import OUTCOME, PLAN, REJECTED, convert_folder, merge_files
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.restore import Checksum, row_hash

SLICE_BYTES = 1024**3
SLICE_FILES = 10_000
"""A slice ends at either; a larger file is one by itself. So much is done again after a crash (a guess)."""

_BEFORE = ("files", "bytes", "seconds")

PLANNED, READ, APPENDED, REFUSED, COMPACTED = "planned", "read", "appended", "refused", "compacted"
"""Points at which a process may end; `observe` is called at each."""


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
            f"{what} has {there.rows:,} rows with the checksum {there.total}; {read.rows:,} rows with {read.total} "
            "were read. The source was not touched. Did somebody else write to the table? Otherwise this is a defect, "
            "please report it; import into another table meanwhile."
        )


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
    """Reading and parsing all rows of the source."""
    files_after: int
    bytes_after: int
    seconds_after: float
    """Reading and summing up all rows of the table."""


@dataclass(frozen=True)
class Import:
    """One source and the table that it goes to. root: what the files' paths are relative to."""

    lake: Lake
    source: str
    root: str
    table: str
    slice_bytes: int = SLICE_BYTES
    observe: Callable[[str], None] = lambda _point: None
    """Called at each of the points above."""

    @property
    def uri(self) -> str:
        """Where the table is."""
        return f"{self.lake.root}/{self.table}"

    @cached_property
    def _where(self) -> dict[str, str]:
        return {"source": self.source, "table_name": self.table}

    def txn(self, what: str, number: int) -> Transaction:
        """Names one commit of this import."""
        digest = hashlib.sha256(f"{self.source}\0{self.table}".encode()).hexdigest()[:16]
        return Transaction(f"import@2.{digest}/{self.table.replace('/', '_')}/{what}", number)

    def run(self, files: Sequence[SourceFile], schema: Schema) -> Report:
        """All that is left of it. Raises SourceChanged, TableTaken, ImportDiffers."""
        if log.open_log(self.uri) is not None:
            kept = self.kept()
            if kept is None:
                raise TableTaken(self.table, "there is such a table, and no import made it")
            if kept.as_json() != schema.as_json():
                raise TableTaken(self.table, "it has other columns, or the same in another order or of other types")
        slices = self._planned(files)
        table = _contract(self.table, self.source, schema)
        self.lake.ensure(table, OUTCOME, REJECTED)
        self.observe(PLANNED)
        done = {row["slice"] for row in self._noted(OUTCOME, **self._where)}
        left = [number for number in slices if number not in done]
        for number in left:
            self._make(number, slices[number], table, schema)
        if left:
            merge_files(self.lake, table)
            self.observe(COMPACTED)
        return self._report(len(slices), len(left), table)

    def kept(self) -> Schema | None:
        """The columns of the table, when earlier imports made it: they stay, whatever newer files look like."""
        there = log.open_log(self.uri)
        if there is None or not self._noted(PLAN, table_name=self.table):
            return None
        columns = self.lake.spark.read.format("delta").load(self.uri).schema
        return Schema(columns, tuple(there.metadata().partition_columns))

    def _planned(self, files: Sequence[SourceFile]) -> dict[int, list[SourceFile]]:
        """The slices of earlier calls, and those of files that are new. Raises SourceChanged."""
        slices: dict[int, list[SourceFile]] = {}
        for row in self._noted(PLAN, **self._where):
            values = {name: row[name] for name in ("path", "bytes", "modified_ns", "format", "codec")}
            slices.setdefault(row["slice"], []).append(SourceFile(**values))
        there = {file.path: file for file in files}
        known = {file.path: file for some in slices.values() for file in some}
        if changed := sorted(path for path, file in known.items() if there.get(path) != file):
            raise SourceChanged(self.source, changed)
        first = max(slices, default=-1) + 1
        new = dict(enumerate(cut([file for file in files if file.path not in known], self.slice_bytes), first))
        if new:
            rows = [{**self._where, "slice": n, **vars(file)} for n, some in new.items() for file in some]
            self.lake.ensure(PLAN)
            self._note(PLAN, rows, self.txn("plan", first))
        return {**slices, **new}

    def _make(self, number: int, files: Sequence[SourceFile], table: Table, schema: Schema) -> None:
        began = time.monotonic()
        with strictly(self.lake.spark):
            try:
                looked = look(self.root, files)
                rows = read(self.lake.spark, self.root, looked, schema.columns).localCheckpoint()
            except Exception:
                self._refuse_changed(files)
                raise
        self._refuse_changed(files)
        self.observe(READ)
        good, bad = (rows.where(F.col(REASON).isNull() == is_good) for is_good in (True, False))
        imported, rejected = summed(good.select(*table.column_names)), bad.count()
        seconds = time.monotonic() - began
        self.lake.append(good, table, self.txn("append", number), rows=imported.rows)
        self.observe(APPENDED)
        if rejected or looked.damaged:
            where = {name: F.lit(value) for name, value in self._where.items()}
            refused = bad.select(F.col(PATH).alias("path"), F.col(VALUE).alias("value"), F.col(REASON).alias("reason"))
            damaged = [{"path": path, "reason": reason} for path, reason in looked.damaged.items()]
            refused = refused.unionAll(self.lake.frame(table_of(damaged, REJECTED, *refused.columns)))
            refused = refused.withColumns({**where, "slice": F.lit(number).cast("long")})
            self.lake.append(refused, REJECTED, self.txn("quarantine", number), rows=rejected + len(damaged))
        self.observe(REFUSED)
        outcome = {
            **self._where, "slice": number, "rows": imported.rows, "rejected": rejected + len(looked.damaged),
            "checksum": imported.total, "algorithm": self._algorithm, "files": len(files),
            "bytes": sum(file.bytes for file in files), "seconds": seconds,
        }  # fmt: skip
        self._note(OUTCOME, [outcome], self.txn("outcome", number))

    def _refuse_changed(self, files: Sequence[SourceFile]) -> None:
        """Raise SourceChanged when a file is not the one that was planned."""
        filesystem, root = log.opened(self.root)
        now = filesystem.get_file_info([f"{root}/{file.path}" for file in files])
        pairs = zip(files, now, strict=True)
        if changed := [f.path for f, info in pairs if (info.size, info.mtime_ns or 0) != (f.bytes, f.modified_ns)]:
            raise SourceChanged(self.source, changed)

    def _report(self, slices: int, made: int, table: Table) -> Report:
        """The whole table, read once more and held against all outcomes of all sources that went into it."""
        outcomes = self._noted(OUTCOME, table_name=self.table)
        began = time.monotonic()
        there, expected = summed(self.lake.read(table)), _together(outcomes)
        seconds = time.monotonic() - began
        if any(row["algorithm"] != self._algorithm for row in outcomes):
            expected = replace(expected, total=there.total)
        if there != expected:
            raise ImportDiffers(self.table, expected, there)
        mine = [row for row in outcomes if row["source"] == self.source]
        return _report(self.source, self.table, self.uri, mine, slices=slices, slices_now=made, seconds_after=seconds)

    @property
    def _algorithm(self) -> str:
        return f"xxhash64 of JSON, Spark {self.lake.spark.version}"

    def _note(self, table: Table, rows: Sequence[Mapping[str, Any]], txn: Transaction) -> None:
        self.lake.append(self.lake.frame(table_of(rows, table)), table, txn, rows=len(rows))

    def _noted(self, table: Table, **where: str) -> list[dict[str, Any]]:
        """Rows of one of the import's books that have these values; none where there is no such table."""
        found = log.open_log(self.lake.uri(table))
        if found is None:
            return []
        rows = scan.find(found, table.column_names, {name: [value] for name, value in where.items()})
        noted: list[dict[str, Any]] = rows.to_pylist()
        return noted


def convert(lake: Lake, source: str, files: Sequence[SourceFile], schema: Schema) -> Report:
    """Make a folder of Parquet files a Delta table where it is: a log is written beside them, and nothing else.

    Files that cannot be read, or rows that do not fit the schema, are a reason not to begin: in place nothing can be
    put aside. Raises NothingToImport, ImportDiffers.
    """
    if others := [file.path for file in files if file.format != "parquet"]:
        raise NothingToImport(source, f"{others[0]} is no Parquet file, so that it cannot become a table where it is")
    began, looked = time.monotonic(), look(source, files)
    with strictly(lake.spark):
        rows = read(lake.spark, source, looked, schema.columns)
        bad = [*looked.damaged.items(), *rows.where(f"{REASON} IS NOT NULL").select(PATH, REASON).limit(1).collect()]
        if bad:
            raise NothingToImport(source, ": ".join(map(str, bad[0])))
        before = summed(rows.select(*schema.columns.names))
    seconds = time.monotonic() - began
    by = ", ".join(f"`{name}` {schema.columns[name].dataType.simpleString()}" for name in schema.partitioned_by)
    convert_folder(lake, source, by)
    began = time.monotonic()
    there = summed(lake.spark.read.format("delta").load(source).select(*schema.columns.names))
    if there != before:
        raise ImportDiffers(source, before, there)
    outcome = {
        "rows": before.rows, "rejected": 0, "checksum": before.total, "files": len(files),
        "bytes": sum(file.bytes for file in files), "seconds": seconds,
    }  # fmt: skip
    took = time.monotonic() - began
    return _report(source, source, source, [outcome], slices=1, slices_now=1, seconds_after=took)


def _report(source: str, table: str, uri: str, outcomes: Sequence[Mapping[str, Any]], **figures: Any) -> Report:
    """Before and after, from the outcomes of all slices. figures: the rest of the report."""
    opened = log.open_log(uri)
    assert opened is not None, f"{uri} is gone"
    sizes = pa.table(opened.get_add_actions(flatten=True)).column("size_bytes")
    read, total = _together(outcomes), {n: sum(row[n] for row in outcomes) for n in ("rejected", *_BEFORE)}
    return Report(
        source=source, table=table, rows=read.rows, checksum=read.total, rejected=total["rejected"],
        files_after=len(sizes), bytes_after=int(pc.sum(sizes).as_py() or 0),
        **{f"{name}_before": total[name] for name in _BEFORE}, **figures,
    )  # fmt: skip


def summed(rows: DataFrame) -> Checksum:
    """How many rows there are, and a sum over all their values."""
    [found] = rows.agg(F.count("*"), F.sum(row_hash(rows.columns))).collect()
    return Checksum(found[0], str(found[1] or 0))


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


def _contract(name: str, source: str, schema: Schema) -> Table:
    columns = tuple(Column(field.name, field.dataType.simpleString(), "") for field in schema.columns)
    return Table(tuple(name.split("/")), f"Imported from {source}.", columns, Mode.MUTABLE, schema.partitioned_by)


def _together(rows: Sequence[Mapping[str, Any]]) -> Checksum:
    return Checksum(sum(row["rows"] for row in rows), str(sum(int(row["checksum"]) for row in rows)))

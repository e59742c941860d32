"""Reads tables of the lake and the current views for people: into one file, or the first rows. Writes no table.

What the views hold is `pipelines.snapshot` and `pipelines.profiles.view`; how a command line shows rows is `cli.jobs`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.contract import Mode, Table
from engagement_platform.lake.engagement import MAPPING, engagement_tables
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.plain import plain_rows, plain_value
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW
from engagement_platform.pipelines.profiles import view as profiles
from engagement_platform.pipelines.profiles.entity import Entity, profile
from engagement_platform.pipelines.snapshot import CURRENT, DATA, current, current_names, snapshot
from engagement_platform.settings import Settings

GROUP_ROWS = 100_000
GROUP_BYTES = 64 * 1024 * 1024
"""A row group of a Parquet file ends at either. That much is in memory (a guess between small reads and memory)."""

_NAME = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)+")
_ERROR_CLASS = re.compile(r"\[[A-Z][A-Z0-9_.]+\] \S[^\n]*")
_LOGS_OF_ERRORS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Where pyspark writes each error with its whole stack before it raises it."""
_ENGAGEMENT_VIEWS = {CURRENT: DATA, MAPPING.name: MAPPING}
"""Each with the table that it needs; what is not there of the others holds nothing yet."""


class UnknownTable(PlatformError):
    """Nothing in the lake goes by this name."""

    def __init__(self, name: str, there: Sequence[str]) -> None:
        super().__init__(f"There is no table called {name!r}. Tables and views: {', '.join(there)}.")


class NotThereYet(PlatformError):
    """A table that no job has made so far."""

    def __init__(self, name: str, table: str, root: str) -> None:
        which = "It" if name == table else table
        super().__init__(
            f"{name} cannot be read yet. {which} is made under {root} by the first run of a job that writes it, such "
            "as `engagement-platform run ingest-engagements --until-idle`."
        )


class ViewHasNoVersions(PlatformError):
    """A version was asked of a view."""

    def __init__(self, name: str, version: int) -> None:
        told = f"{name} is a view over several tables and has no version {version}."
        if name != MAPPING.name:
            table = "data" if name == CURRENT else "materialized"
            table, changeset = (name.replace("/current", f"/{last}") for last in (table, "changeset"))
            told += f" Read {table} with --version instead; what came since its watermark is in {changeset}."
        super().__init__(told)


class CannotWrite(PlatformError):
    """The file that was asked for cannot be made."""

    def __init__(self, out: Path, why: str) -> None:
        super().__init__(f"{out} cannot be written: {why}. Nothing was read.")


class NotReadable(PlatformError):
    """Spark refused: a predicate that is none, a version that is gone, a value that cannot be cast."""

    def __init__(self, name: str, said: str) -> None:
        hint = (
            ". Narrow it with --where, or raise ENGAGEMENT_PLATFORM_SPARK__DRIVER_MAX_RESULT_SIZE."
            if "maxResultSize" in said
            else ""
        )
        super().__init__(f"{name} could not be read as asked: {said}{hint}")


def check_asked(settings: Settings, name: str, version: int | None, out: Path | None) -> None:
    """Whether this can be read and written at all, before Spark is opened.

    Raises UnknownTable, NotThereYet, ViewHasNoVersions, CannotWrite.
    """
    if out is not None:
        _check_out(out)
    parts = _views(settings).get(name)
    if parts is not None:
        if version is not None:
            raise ViewHasNoVersions(name, version)
        needed = [table.name for table in parts]
    elif _NAME.fullmatch(name) is None:
        raise UnknownTable(name, table_names(settings))
    else:
        needed = [name]
    for table in needed:
        if log.version(f"{settings.lake}/{table}") is None:
            if table in _declared(settings):
                raise NotThereYet(name, table, settings.lake)
            raise UnknownTable(name, table_names(settings))


def table_names(settings: Settings) -> list[str]:
    """The views, the tables that the platform declares, and any other tables in the lake."""
    return sorted({*_views(settings), *_declared(settings), *log.tables(settings.lake)})


def rows_of(lake: Lake, name: str, *, where: str | None = None, version: int | None = None) -> DataFrame:
    """Rows of a table or of the view. where: a Spark SQL predicate over its columns.

    Raises NotReadable with what Spark says about the predicate or the version.
    """
    with _told(name):
        if name == CURRENT:
            rows = current(lake, snapshot(lake.root)).select(*CURRENT_ROW.names)
        elif name == MAPPING.name:
            rows = current_names(lake, snapshot(lake.root))
        elif (entity := _entities(lake.settings).get(name)) is not None:
            # Told of the predicate, it skips files of the base.
            rows, where = profiles.current(lake, entity, where=where), None
        else:
            rows = lake.read(Table(tuple(name.split("/")), "", (), Mode.MUTABLE), version)
        rows = rows if where is None else rows.where(where)
        # Over Connect nothing is looked at before the columns are asked for.
        assert rows.columns
        return rows


def first(rows: DataFrame, name: str, most: int) -> tuple[list[str], list[list[object]]]:
    """Column names, and the first rows as values that JSON knows."""
    with _told(name):
        found = rows.limit(most).toArrow()
    return list(found.column_names), [list(row.values()) for row in plain_rows(found)]


def save(rows: DataFrame, name: str, out: Path) -> int:
    """All rows into one file, .parquet, .csv or .jsonl by its suffix; how many there are. An older file is replaced.

    The file appears when it is whole. Rows come as compressed Arrow batches through an iterator, since that is the one
    way that works in this process, over Connect and with an object store alike: Spark cannot write to this machine
    from another one, and toArrow and toPandas hold everything here at once. So memory is one partition of the result
    in this process, or one message over Connect, and a row group. Spark hands out at most spark.driver.maxResultSize,
    compressed: of one partition in this process, of the whole result over Connect.
    CSV: structs, maps and arrays as JSON. CSV and JSON lines: binary as base64. Raises NotReadable.
    """
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    count = 0
    try:
        with _told(name):
            schema = to_arrow_schema(rows.schema, timezone="UTC")
            with SUFFIXES[out.suffix](partial, schema) as put:
                for table in _groups(rows, schema):
                    put(table)
                    count += table.num_rows
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _groups(rows: DataFrame, schema: pa.Schema) -> Iterator[pa.Table]:
    """Batches gathered to what makes a good row group."""
    held: list[pa.Table] = []
    for batch in _batches(rows):
        held.append(pa.Table.from_batches([batch]).cast(schema))
        if sum(t.num_rows for t in held) >= GROUP_ROWS or sum(t.nbytes for t in held) >= GROUP_BYTES:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _batches(rows: DataFrame) -> Iterator[pa.RecordBatch]:
    """Arrow batches as they come. toLocalIterator alone makes an object of every value: about ten times slower."""
    for row in rows.mapInArrow(_packed, "batch binary").toLocalIterator():
        with pa.ipc.open_stream(pa.py_buffer(row["batch"])) as packed:
            yield from packed


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch as one compressed value."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_batch(batch)
        yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["batch"])


Put = Callable[[pa.Table], None]


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[Put]:
    with pq.ParquetWriter(path, schema) as writer:
        yield writer.write_table


@contextmanager
def _csv(path: Path, schema: pa.Schema) -> Iterator[Put]:
    as_text = [pa.field(f.name, pa.string()) if _needs_text(f.type) else f for f in schema]
    with pa.csv.CSVWriter(path, pa.schema(as_text)) as writer:

        def put(table: pa.Table) -> None:
            columns = [_as_text(table.column(f.name)) if _needs_text(f.type) else table.column(f.name) for f in schema]
            writer.write_table(pa.table(columns, pa.schema(as_text)))

        yield put


@contextmanager
def _jsonl(path: Path, _schema: pa.Schema) -> Iterator[Put]:
    with path.open("w", encoding="utf-8") as file:

        def put(table: pa.Table) -> None:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in plain_rows(table))

        yield put


SUFFIXES = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}


def _needs_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind))


def _as_text(column: pa.ChunkedArray) -> pa.Array:
    plain = (plain_value(value, column.type) for value in column.to_pylist())
    texts = (v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in plain)
    return pa.array(list(texts), pa.string())


@contextmanager
def _told(name: str) -> Iterator[None]:
    """What Spark says at length as one sentence."""
    loud = [log_ for log_ in map(PySparkLogger.getLogger, _LOGS_OF_ERRORS) if not log_.disabled]
    try:
        for log_ in loud:
            log_.disabled = True
        yield
    except Exception as error:
        if isinstance(error, PlatformError) or not type(error).__module__.startswith(("pyspark", "py4j", "grpc")):
            raise
        raise NotReadable(name, _sentence(str(error)) or type(error).__name__) from error
    finally:
        for log_ in loud:
            log_.disabled = False


def _sentence(error: str) -> str:
    """What Spark says: the line with an error class, else the innermost cause, else the first line."""
    if said := _ERROR_CLASS.search(error):
        return said[0][:500].rstrip(" ;")
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return (causes[-1].split(": ", 2)[-1] if causes else lines[0] if lines else "")[:500]


def _check_out(out: Path) -> None:
    if out.suffix not in SUFFIXES:
        raise CannotWrite(out, f"the end of its name says how, one of {', '.join(SUFFIXES)}")
    if not out.absolute().parent.is_dir():
        raise CannotWrite(out, f"there is no folder {out.absolute().parent}")
    if out.is_dir():
        raise CannotWrite(out, "it is a folder")
    if not os.access(out.absolute().parent, os.W_OK):
        raise CannotWrite(out, f"nobody may write into {out.absolute().parent}")


def _declared(settings: Settings) -> set[str]:
    entities = _entities(settings).values()
    of_entities = (table for entity in entities for table in (entity.changeset, entity.base))
    declared = declarations(settings)
    of_streams = (table for stream in declared.streams for table in (stream.table, stream.quarantine))
    of_feeds = (table for feed in declared.feeds for table in feed.tables)
    every = (*engagement_tables(settings.layout.scheme), *of_entities, *of_streams, *of_feeds)
    return {table.name for table in every}


def _entities(settings: Settings) -> dict[str, Entity]:
    """The entity that ships and those that are declared, by the names of their views."""
    declared = (each.entity for each in declarations(settings).entities)
    return {entity.view: entity for entity in (profile(settings), *declared)}


def _views(settings: Settings) -> dict[str, Sequence[Table]]:
    """Each view with the tables that it needs."""
    ours = {view: (table,) for view, table in _ENGAGEMENT_VIEWS.items()}
    return {**ours, **{view: (e.changeset, e.base) for view, e in _entities(settings).items()}}

"""Reads tables of the lake and the current views for people: into one file, or the first rows. Writes no table.

What the views hold is `pipelines.snapshot` and `pipelines.profiles.view`; how rows are shown is `cli.reading`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from engagement_platform.engine.durable_files import replacing
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.arrow import plain_rows, plain_value
from engagement_platform.lake.contract import TABLE_NAME, Mode, Table
from engagement_platform.lake.engagement import MAPPING, engagement_tables
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.optimize import configured
from engagement_platform.pipelines.declarations.declared import declarations
from engagement_platform.pipelines.engagements.schema import CURRENT_ROW
from engagement_platform.pipelines.parts import unweighed
from engagement_platform.pipelines.profiles import view as profiles
from engagement_platform.pipelines.profiles.entity import PROFILE, Entity, profile
from engagement_platform.pipelines.snapshot import CURRENT, DATA, current, current_names, snapshot
from engagement_platform.settings import Settings

_ERROR_CLASS = re.compile(r"\[[A-Z][A-Z0-9_.]+\] \S[^\n]*")
_SHORT_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"}
"""A tenth of Spark's default: rows of 60 kB make 60 MB."""


def check_asked(settings: Settings, name: str, version: int | None, out: Path | None) -> None:
    """Raise PlatformError when this cannot be read or written at all, before Spark is opened."""
    if out is not None:
        _check_out(out)
    entity = _entities(settings).get(name)
    # Each view needs these tables; what is not there of others holds nothing yet.
    views = {CURRENT: (DATA,), MAPPING.name: (MAPPING,)} | ({name: (entity.base, entity.changeset)} if entity else {})
    needed = [table.name for table in views[name]] if name in views else [name]
    if name in views and version is not None:
        instead = f" Read {needed[0]} with --version instead." if needed[0] != name else ""
        raise PlatformError(f"{name} is a view over several tables and has no version {version}.{instead}")
    for table in needed:
        if TABLE_NAME.fullmatch(table) and log.version(f"{settings.lake}/{table}") is not None:
            continue
        if table not in _declared(settings):
            names = ", ".join(table_names(settings))
            raise PlatformError(f"There is no table called {name!r}. Tables and views: {names}.")
        raise PlatformError(
            f"{name} cannot be read yet. {'It' if name == table else table} is made under {settings.lake} by the first "
            "run of a job that writes it, such as `engagement-platform run ingest-engagements --until-idle`."
        )


def _check_out(out: Path) -> None:
    folder = out.absolute().parent
    wrong = {
        f"the end of its name says how, one of {', '.join(WRITERS)}": out.suffix not in WRITERS,
        f"there is no folder {folder}": not folder.is_dir(),
        "it is a folder": out.is_dir(),
        f"{folder} is not writable": not os.access(folder, os.W_OK),
    }
    for why, so in wrong.items():
        if so:
            raise PlatformError(f"{out} cannot be written: {why}. Nothing was read.")


def table_names(settings: Settings) -> list[str]:
    """The views, the tables that the platform declares, and any other tables in the lake."""
    return sorted({CURRENT, *_entities(settings), *_declared(settings), *log.tables(settings.lake)})


def _declared(settings: Settings) -> set[str]:
    """Names of all tables that the platform or a declaration has."""
    shipped = (*engagement_tables(settings.layout.scheme), PROFILE.changeset, PROFILE.base)
    return {table.name for table in (*shipped, *declarations(settings).written)}


def _entities(settings: Settings) -> dict[str, Entity]:
    """The entity that ships and those that are declared, by the names of their views."""
    declared = (each.entity for each in declarations(settings).entities)
    return {entity.view: entity for entity in (profile(settings), *declared)}


def rows_of(lake: Lake, name: str, *, where: str | None = None, version: int | None = None) -> DataFrame:
    """Rows of a table or of a view. where: a Spark SQL predicate over its columns.

    Raises PlatformError with what Spark says about the predicate or the version.
    """
    with _one_sentence(name):
        if name == CURRENT:
            rows = current(lake, snapshot(lake.root)).select(*CURRENT_ROW.names)
        elif name == MAPPING.name:
            rows = current_names(lake, snapshot(lake.root))
        elif (entity := _entities(lake.settings).get(name)) is not None:
            # It skips files of the base by the predicate.
            rows, where = profiles.current(lake, entity, where=where), None
        else:
            rows = lake.read(Table(tuple(name.split("/")), "", (), Mode.MUTABLE), version)
        rows = rows if where is None else rows.where(where)
        # Over Connect nothing is looked at before the schema is asked for.
        rows.schema  # noqa: B018
        return rows


def first(rows: DataFrame, name: str, most: int) -> tuple[list[str], list[list[object]]]:
    """Column names, and the first rows as values that JSON knows."""
    with _one_sentence(name), _by_rules(name, rows):
        found = rows.limit(most).toArrow()
    return list(found.column_names), [list(row.values()) for row in plain_rows(found)]


def save(rows: DataFrame, name: str, out: Path) -> int:
    """All rows into one file, .parquet, .csv or .jsonl by its suffix; how many there are. An older file is replaced.

    The file appears when it is whole. Rows come as compressed Arrow batches through an iterator, since that is the one
    way that works in this process, over Connect and with an object store alike: Spark cannot write to this machine
    from another one, and toArrow and toPandas hold everything here at once. So memory is one partition of the result
    in this process, or one message over Connect. Spark hands out at most spark.driver.maxResultSize, compressed.
    CSV: structs, maps and arrays as JSON. CSV and JSON lines: binary as base64. Raises PlatformError.
    """
    count = 0
    with replacing(out) as file, _one_sentence(name), _by_rules(name, rows):
        schema = to_arrow_schema(rows.schema, timezone="UTC")
        with WRITERS[out.suffix](file, schema) as write:
            # toLocalIterator alone makes an object of every value: about ten times slower.
            for row in rows.mapInArrow(_packed, "batch binary").toLocalIterator():
                with pa.ipc.open_stream(pa.py_buffer(row["batch"])) as packed:
                    table = packed.read_all().cast(schema)
                write(table)
                count += table.num_rows
    return count


@contextmanager
def _by_rules(name: str, rows: DataFrame) -> Iterator[None]:
    """What the views of engagements and names need while they are read. What is not weighed goes by rows, since a few
    may be of many kilobytes."""
    if name not in (CURRENT, MAPPING.name):
        yield
        return
    with unweighed(rows.sparkSession), configured(rows.sparkSession, _SHORT_BATCHES):
        yield


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch as one compressed value."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_batch(batch)
        yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["batch"])


Write = Callable[[pa.Table], None]


@contextmanager
def _parquet(file: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    with pq.ParquetWriter(file, schema) as writer:
        yield writer.write_table


@contextmanager
def _csv(file: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    texts = {field.name for field in schema if pa.types.is_nested(field.type) or pa.types.is_binary(field.type)}
    as_text = pa.schema([pa.field(f.name, pa.string()) if f.name in texts else f for f in schema])

    def text(value: object, kind: pa.DataType) -> str | None:
        plain = plain_value(value, kind)
        return plain if plain is None or isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)

    with pa.csv.CSVWriter(file, as_text) as writer:

        def write(table: pa.Table) -> None:
            for place, field in enumerate(schema):
                if field.name in texts:
                    values = [text(value, field.type) for value in table.column(place).to_pylist()]
                    table = table.set_column(place, as_text.field(place), pa.array(values, pa.string()))
            writer.write_table(table)

        yield write


@contextmanager
def _jsonl(file: BinaryIO, _schema: pa.Schema) -> Iterator[Write]:
    yield lambda table: file.writelines(
        f"{json.dumps(row, ensure_ascii=False)}\n".encode() for row in plain_rows(table)
    )


WRITERS = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}


@contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    """Raise what Spark refused (a predicate that is none, a version that is gone, a cast) as one sentence."""
    # Where pyspark writes each error with its whole stack before it raises it.
    loggers = [PySparkLogger.getLogger(f"{of}QueryContextLogger") for of in ("SQL", "DataFrame")]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    except Exception as error:
        if isinstance(error, PlatformError) or not type(error).__module__.startswith(("pyspark", "py4j", "grpc")):
            raise
        why = _sentence(str(error)) or type(error).__name__
        if "maxResultSize" in why:
            why += ". Narrow it with --where, or raise ENGAGEMENT_PLATFORM_SPARK__DRIVER_MAX_RESULT_SIZE."
        raise PlatformError(f"{name} could not be read as asked: {why}") from error
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _sentence(error: str) -> str:
    """Of Spark's text the line with an error class, else the innermost cause, else the first line."""
    if found := _ERROR_CLASS.search(error):
        return found[0][:500].rstrip(" ;")
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return (causes[-1].split(": ", 2)[-1] if causes else lines[0] if lines else "")[:500]

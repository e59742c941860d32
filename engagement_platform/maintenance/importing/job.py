"""Imports an old store into a new table: its rows in one commit, its quarantine in another one, then compares.

Both commits carry a transaction id made of the names, sizes and times of the files, so that a second call adds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from engagement_platform.engine.model import Transaction
from engagement_platform.errors import PlatformError
from engagement_platform.lake import live_files, log
from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.optimize import Place, configured, rewrite
from engagement_platform.lake.restore import row_hash
from engagement_platform.maintenance.importing.files import ImportRefused, Source
from engagement_platform.maintenance.importing.rows import PATH, REASON, STRICT, VALUE, read

PLANNED, APPENDED, REFUSED, COMPACTED = "planned", "appended", "refused", "compacted"
"""Points at which a process may end; `observe` is called at each."""

REJECTED = Table(
    key=("import", "quarantine"),
    description="Every line or row of an old store that did not fit, whole.",
    mode=Mode.APPEND_ONLY,
    columns=(
        Column("source", "string", "Folder of the old store."),
        Column("table_name", "string", "The table that it was imported into."),
        Column("path", "string", "File, relative to the source."),
        Column("value", "binary", "The line as it is in the file; a row of Parquet or ORC as JSON."),
        Column("reason", "string", "Why it was refused."),
    ),
)

_TARGET_FILE_BYTES = 1024**3


class ImportDiffers(PlatformError):
    """The table does not hold the rows that were read."""

    def __init__(self, table: str, read: str, there: str) -> None:
        super().__init__(
            f"{table} has {there}; {read} were read from the source, which was not changed. Import into another table, "
            "or, when nobody else wrote to this one or to the source meanwhile, report this as a defect."
        )


@dataclass(frozen=True)
class Report:
    """Before and after. seconds_before: reading and parsing the source; seconds_after: reading the table."""

    source: str
    table: str
    rows: int
    rejected: int
    checksum: str
    files_before: int
    bytes_before: int
    seconds_before: float
    files_after: int
    bytes_after: int
    seconds_after: float


def import_into(
    lake: Lake, name: str, source: Source, schema: StructType, observe: Callable[[str], None] = lambda _point: None
) -> Report:
    """Import a source into a table of its own. Called again, it makes what is missing and compares once more.

    Raises ImportRefused where the table has other rows, ImportDiffers.
    """
    columns = tuple(Column(field.name, field.dataType.simpleString(), "") for field in schema)
    partitions = tuple(source.files[0].partition)
    table = Table(tuple(name.split("/")), f"Imported from {source.folder}.", columns, Mode.MUTABLE, partitions)
    application = f"import@4.{source.digest}/{name.replace('/', '_')}"
    uri, rows_txn = lake.uri(table), Transaction(f"{application}/append", 0)
    version = log.version(uri)
    if version is not None and not lake.holds(table, rows_txn) and live_files.rows_in(uri, version):
        why = f"{name} has rows that are not of these files as they are now; import into another table"
        raise ImportRefused(source.folder, why)
    lake.ensure(table, REJECTED)
    observe(PLANNED)
    with configured(lake.spark, STRICT):
        rows = read(lake.spark, source, schema)
        fits, began = F.col(REASON).isNull(), time.monotonic()
        [figures] = rows.agg(F.count_if(fits), F.count_if(~fits), _sum(schema.names, fits)).collect()
        imported, rejected, checksum = figures[0], figures[1], str(figures[2] or 0)
        seconds_before = time.monotonic() - began
        lake.append(rows.where(fits), table, rows_txn, rows=imported)
        observe(APPENDED)
        if rejected:
            lake.append(
                rows.where(~fits).select(
                    F.lit(source.folder).alias("source"), F.lit(name).alias("table_name"),
                    F.col(PATH).alias("path"), F.col(VALUE).alias("value"), F.col(REASON).alias("reason"),
                ),
                REJECTED, Transaction(f"{application}/quarantine", 0), rows=rejected,
            )  # fmt: skip
    observe(REFUSED)
    place, marker = Place(name, uri, lake.root), f"{application}/merge#0"
    rewrite(place, lake.spark, target_file_bytes=_TARGET_FILE_BYTES, marker=marker)
    observe(COMPACTED)
    began = time.monotonic()
    [there] = lake.read(table).agg(F.count("*"), _sum(schema.names, F.lit(True))).collect()
    seconds_after = time.monotonic() - began
    if (there[0], str(there[1] or 0)) != (imported, checksum):
        raise ImportDiffers(name, f"{imported:,} rows with checksum {checksum}", f"{there[0]:,} with {there[1] or 0}")
    files = pa.table(log.open_version(uri).get_add_actions(flatten=True))
    sizes = files.column("size_bytes").to_pylist()
    return Report(
        source=source.folder, table=name, rows=imported, rejected=rejected, checksum=checksum,
        files_before=len(source.files), bytes_before=source.bytes, seconds_before=seconds_before,
        files_after=len(sizes), bytes_after=sum(sizes), seconds_after=seconds_after,
    )  # fmt: skip


def _sum(columns: list[str], which: SparkColumn) -> SparkColumn:
    """The checksum of the rows that a condition selects."""
    return F.sum(F.when(which, row_hash(columns)))

"""A folder of Parquet files made a Delta table where it is: a log is written beside them, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from engagement_platform.importing.files import NothingToImport, SourceFile
from engagement_platform.importing.job import ImportDiffers, Report
from engagement_platform.importing.parse import parsed
from engagement_platform.importing.schema import Schema
from engagement_platform.lake import imported
from engagement_platform.lake.checksums import Checksum, in_memory, of


def convert(source: str, files: Sequence[SourceFile], schema: Schema) -> Report:
    """Read all files, convert the folder, read the table, compare. Raises NothingToImport, ImportDiffers.

    Files that cannot be read, or rows that do not fit the schema, are a reason not to begin: in place nothing can be
    put aside.
    """
    if others := [file.path for file in files if file.format != "parquet" or file.codec is not None]:
        raise NothingToImport(source, f"{others[0]} is no Parquet file, so that it cannot become a table where it is")
    began, read = time.monotonic(), Checksum()
    with in_memory() as connection:
        for file in files:
            for part in parsed(f"{source}/{file.path}", file, schema.columns):
                if part.rejected:
                    raise NothingToImport(source, f"{file.path}: {part.rejected[0].reason}")
                read += of(connection, part.rows)
    seconds = time.monotonic() - began
    partitions = [schema.columns.field(name) for name in schema.partitioned_by]
    found = imported.convert(source, pa.schema(partitions) if partitions else None)
    there, after = imported.read(found, schema.columns)
    if there != read:
        raise ImportDiffers(source, read, there)
    count, size = imported.size_of(found)
    return Report(
        source=source, table=source, slices=1, slices_now=1, rows=read.rows, rejected=0, checksum=read.text,
        files_before=len(files), bytes_before=sum(file.bytes for file in files), seconds_before=seconds,
        files_after=count, bytes_after=size, seconds_after=after,
    )  # fmt: skip

"""The command that imports old stores: import."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from engagement_platform.importing.files import Source
    from engagement_platform.importing.job import Report

_NAME = re.compile(r"[A-Za-z0-9_]+/[A-Za-z0-9_]+")
_OURS = ("engagement", "profile", "game", "layout", "import", "perftest")


def import_store(
    source: Annotated[str, typer.Argument(help="File, folder, or s3a:// URI of the old store.")],
    table: Annotated[str, typer.Argument(help="A new table below the lake's root, such as old/clicks.")],
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="parquet, orc, csv, jsonl or text, for all files. Default: as they are named."),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Columns as a JSON object of names and types.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Take the columns as they are shown, without asking.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the columns as JSON, for --schema, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> None:
    """Import an old store into a new Delta table by Spark, in one commit.

    Finds the columns in the files and shows them before anything is written. Lines that do not fit go to
    import/quarantine, whole and with the reason. Merges small files, reads all rows back and compares them with those
    that were read. Called again after an interruption it makes what is missing and adds nothing twice.
    Exit status: 0, or 1 with the reason. Example: engagement-platform import old-store old/clicks --yes
    """
    from engagement_platform.importing.files import FORMATS, find
    from engagement_platform.importing.job import import_into
    from engagement_platform.importing.rows import declared, inferred
    from engagement_platform.lake.lake import Lake
    from engagement_platform.lake.session import spark_session
    from engagement_platform.settings import Settings

    if file_format is not None and file_format not in FORMATS:
        raise typer.BadParameter(f"one of {', '.join(FORMATS)}", param_hint="--format")
    if not _NAME.fullmatch(table) or table.split("/")[0] in _OURS:
        raise typer.BadParameter(
            f"two words such as old/clicks; the first is none of {', '.join(_OURS)}", param_hint="TABLE"
        )
    store, settings = find(source, file_format), Settings()
    with spark_session(settings, "import", reads_only=show) as spark:
        columns = inferred(spark, store) if schema is None else declared(schema, store)
        if show:
            types = {field.name: field.dataType.simpleString() for field in columns}
            typer.echo(json.dumps(types, indent=2, ensure_ascii=False))
            return
        _show(store, columns)
        if not yes and schema is None and not typer.confirm("Import with these columns?", err=True):
            raise typer.Exit(1)
        _report(import_into(Lake(spark, settings), table, store, columns), as_json)


def _show(source: Source, columns: StructType) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    kinds = sorted({f"{file.format}{f' ({file.codec})' if file.codec else ''}" for file in source.files})
    typer.echo(f"{len(source.files):,} files, {source.bytes:,} bytes: {', '.join(kinds)}", err=True)
    table = Table("column", "type", "")
    for field in columns:
        by = "partition" if field.name in source.files[0].partition else ""
        table.add_row(escape(field.name), escape(field.dataType.simpleString()), by)
    Console(stderr=True).print(table)


def _report(report: Report, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(vars(report)))
        return
    from rich.console import Console
    from rich.table import Table

    typer.echo(
        f"{report.rows:,} rows imported into {report.table}, checksum {report.checksum}; {report.rejected:,} in "
        "import/quarantine"
    )
    table = Table("", "files", "bytes", "scan, s")
    for name in ("before", "after"):
        files, size, seconds = (getattr(report, f"{what}_{name}") for what in ("files", "bytes", "seconds"))
        table.add_row(name, f"{files:,}", f"{size:,}", f"{seconds:.2f}")
    Console().print(table)

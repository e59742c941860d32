"""The command that imports old stores: import."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from engagement_platform.importing.files import SourceFile
    from engagement_platform.importing.job import Report
    from engagement_platform.importing.schema import Schema
    from engagement_platform.lake.lake import Lake

_NAME = re.compile(r"[A-Za-z0-9_]+/[A-Za-z0-9_]+")
_OURS = ("engagement", "profile", "game", "layout", "import", "perftest")


def import_store(
    source: Annotated[str, typer.Argument(help="File, folder, or s3a:// URI of the old store.")],
    table: Annotated[
        str | None, typer.Argument(help="Where to, below the lake's root, such as old/clicks; not with --in-place.")
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="parquet, orc, csv, jsonl or text, for all files. Default: as they are named."),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Columns as a JSON object of names and types.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Take the columns as they are shown, without asking.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the columns as JSON, for --schema, and end.")] = False,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Parquet only: make the folder a Delta table where it is.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> None:
    """Import an old store into a Delta table by Spark, slice by slice, each committed once.

    Columns are looked for in the files and shown before anything is written. Lines that do not fit go to
    import/quarantine, whole and with the reason. Called again after an interruption it goes on; when all is there,
    it only checks. Small files are merged at the end; all rows are read back, and compared with those that were read.
    Exit status: 0, or 1 with the reason. Example: engagement-platform import old-store old/clicks --yes
    """
    from engagement_platform.importing.files import FORMATS, folder_of, found, root_of
    from engagement_platform.importing.job import Import, convert
    from engagement_platform.lake.lake import Lake
    from engagement_platform.lake.session import spark_session
    from engagement_platform.settings import Settings

    if file_format is not None and file_format not in FORMATS:
        raise typer.BadParameter(f"one of {', '.join(FORMATS)}", param_hint="--format")
    if not show and (table is None) is not in_place:
        raise typer.BadParameter("give a table, or --in-place", param_hint="TABLE")
    if table is not None and (not _NAME.fullmatch(table) or table.split("/")[0] in _OURS):
        raise typer.BadParameter(
            f"two words such as old/clicks; the first is none of {', '.join(_OURS)}", param_hint="TABLE"
        )
    root = root_of(source)
    files = found(root, file_format)
    settings = Settings()
    with spark_session(settings, "import", reads_only=show) as spark:
        lake = Lake(spark, settings)
        columns = _columns(lake, root, table, files, schema)
        if show:
            typer.echo(columns.as_json())
            return
        _shown(files, columns)
        if not yes and schema is None and not typer.confirm("Import with these columns?", err=True):
            raise typer.Exit(1)
        if table is None:
            report = convert(lake, root, files, columns)
        else:
            report = Import(lake, root, folder_of(root), table).run(files, columns)
    _told(report, as_json)


def _columns(lake: Lake, root: str, table: str | None, files: Sequence[SourceFile], path: Path | None) -> Schema:
    from engagement_platform.importing.files import folder_of
    from engagement_platform.importing.job import Import
    from engagement_platform.importing.schema import declared, inferred

    if path is not None:
        return declared(path, files)
    kept = None if table is None else Import(lake, root, folder_of(root), table).kept()
    return kept or inferred(lake.spark, folder_of(root), files)


def _shown(files: Sequence[SourceFile], columns: Schema) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    kinds = sorted({f"{file.format}{f' ({file.codec})' if file.codec else ''}" for file in files})
    typer.echo(f"{len(files):,} files, {sum(file.bytes for file in files):,} bytes: {', '.join(kinds)}", err=True)
    table = Table("column", "type", "")
    for field in columns.columns:
        by = "partition" if field.name in columns.partitioned_by else ""
        table.add_row(escape(field.name), escape(field.dataType.simpleString()), by)
    Console(stderr=True).print(table)


def _told(report: Report, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(vars(report)))
        return
    from rich.console import Console
    from rich.table import Table

    typer.echo(
        f"{report.rows:,} rows imported into {report.table}, checksum {report.checksum}; {report.rejected:,} in "
        f"quarantine; {report.slices_now:,} of {report.slices:,} slices now"
    )
    table = Table("", "files", "bytes", "scan, s")
    for name in ("before", "after"):
        files, size, seconds = (getattr(report, f"{what}_{name}") for what in ("files", "bytes", "seconds"))
        table.add_row(name, f"{files:,}", f"{size:,}", f"{seconds:.2f}")
    Console().print(table)

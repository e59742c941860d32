"""The command that imports old stores: import."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from engagement_platform.cli.common import Json, Yes, flag, print_json, print_table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from engagement_platform.maintenance.importing.files import Source
    from engagement_platform.maintenance.importing.job import Report

_NAME = re.compile(r"[A-Za-z0-9_]+/[A-Za-z0-9_]+")


def import_store(
    source: Annotated[str, typer.Argument(help="File, folder, or s3a:// URI of the old store.")],
    table: Annotated[str, typer.Argument(help="A new table below the lake's root, such as old/clicks.")],
    file_format: Annotated[
        Literal["parquet", "orc", "csv", "jsonl", "text"] | None,
        typer.Option("--format", help="Of all files. Default: as they are named."),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Columns as a JSON object of names and types.")
    ] = None,
    yes: Yes = False,
    show: Annotated[bool, flag("--show", "Print the columns as JSON, for --schema, and end.")] = False,
    as_json: Json = False,
) -> None:
    """Import an old store into a new Delta table by Spark, in one commit.

    Finds the columns in the files and shows them before anything is written. Lines that do not fit go to
    import/quarantine, whole and with the reason. Merges small files, reads all rows back and compares them with those
    that were read. Called again after an interruption it makes what is missing and adds nothing twice.
    Exit status: 0, or 1 with the reason. Example: engagement-platform import old-store old/clicks --yes
    """
    from engagement_platform.lake.lake import Lake
    from engagement_platform.lake.session import spark_session
    from engagement_platform.maintenance.importing.files import damage_named, find
    from engagement_platform.maintenance.importing.job import import_into
    from engagement_platform.maintenance.importing.rows import declared, inferred
    from engagement_platform.pipelines.declarations.declared import declarations
    from engagement_platform.pipelines.kafka_tables.tables import OURS
    from engagement_platform.settings import Settings

    if not _NAME.fullmatch(table) or table.split("/")[0] in OURS:
        raise typer.BadParameter(
            f"two words such as old/clicks; the first is none of {', '.join(sorted(OURS))}", param_hint="TABLE"
        )
    settings = Settings()
    if table in {written.name for written in declarations(settings).written}:
        raise typer.BadParameter(f"{table} is declared, and its own job writes it", param_hint="TABLE")
    store = find(source, file_format)
    with spark_session(settings, "import", reads_only=show, source=store.folder) as spark, damage_named(store):
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
    kinds = sorted({f"{file.format}{f' ({file.codec})' if file.codec else ''}" for file in source.files})
    typer.echo(f"{len(source.files):,} files, {source.bytes:,} bytes: {', '.join(kinds)}", err=True)
    for field in columns:
        by = " (partition)" if field.name in source.files[0].partition else ""
        typer.echo(f"  {field.name}  {field.dataType.simpleString()}{by}", err=True)


def _report(report: Report, as_json: bool) -> None:
    if as_json:
        print_json(vars(report))
        return
    typer.echo(
        f"{report.rows:,} rows imported into {report.table}, checksum {report.checksum}; {report.rejected:,} in "
        "import/quarantine"
    )
    rows = [
        (when, *(getattr(report, f"{what}_{when}") for what in ("files", "bytes")),
         f"{getattr(report, f'seconds_{when}'):.2f}")
        for when in ("before", "after")
    ]  # fmt: skip
    print_table(("", "files", "bytes", "scan, s"), rows)

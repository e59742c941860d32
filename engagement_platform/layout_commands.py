"""Commands that look after the layout of tables: doctor.

Thin: parse, call, print.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from engagement_platform.layout.doctor import Examination
    from engagement_platform.layout.outcomes import Outcome


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    app.command()(doctor)


def doctor(
    table: Annotated[
        str | None,
        typer.Argument(metavar="TABLE|PATH", help="engagement/data, a folder, or a URI. Default: the whole lake."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report with histograms here; one file, 5 MB.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    clustered_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column that reads filter by. Default: what the table was clustered by."),
    ] = None,
) -> None:
    """Examine how the files of tables lie, say what is unhealthy and what mending would gain. Changes nothing.

    Works on any Delta table, whoever wrote it. Reads the log, not the data; needs Spark only for tables of more than
    health.files_in_process files. The settings under health say what counts as unhealthy. Each finding names the
    command that mends it, where there is one; --html and --json tell what such commands predicted and what came of it.
    Exit status: 0 nothing but infos, 1 warnings, errors or a table that cannot be read.
    Example: engagement-platform doctor engagement/data --html doctor.html
    """
    from engagement_platform.layout.doctor import examine, targets
    from engagement_platform.layout.files import LogNotReadable
    from engagement_platform.layout.outcomes import predicted_and_actual
    from engagement_platform.settings import Settings

    if html is not None and not html.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {html.absolute().parent}", param_hint="--html")
    if clustered_by is not None and table is None:
        raise typer.BadParameter("--clustered-by goes with a table")
    settings = Settings()

    def open_spark() -> AbstractContextManager[SparkSession]:
        from engagement_platform.spark.session import spark_session

        return spark_session(settings, "doctor")

    examined, unread = [], []
    for target in targets(settings, table):
        try:
            examined.append(examine(settings, target, clustering=clustered_by, open_spark=open_spark))
        except LogNotReadable as error:
            if table is not None:
                raise
            unread.append(error)
    wanted = as_json or html is not None
    done = predicted_and_actual(settings, [one.target for one in examined]) if wanted else {}
    if as_json:
        found = [finding.as_json() for examination in examined for finding in examination.findings]
        tables = [_table(examination, done.get(examination.target.name, ())) for examination in examined]
        typer.echo(json.dumps({"findings": found, "tables": tables}))
    else:
        _show(examined)
    if html is not None:
        from engagement_platform.layout.report import page

        html.write_text(page(examined, done), encoding="utf-8")
        typer.echo(f"The report is in {html}", err=as_json)
    for reason in unread:
        typer.echo(reason, err=True)
    bad = any(finding.severity != "info" for examination in examined for finding in examination.findings)
    raise typer.Exit(1 if bad or unread else 0)


def _table(examination: Examination, done: Sequence[Outcome]) -> dict[str, object]:
    from engagement_platform.layout.outcomes import as_json

    return {**examination.as_json(), "predicted_and_actual": [as_json(one) for one in done]}


def _show(examined: Sequence[Examination]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from engagement_platform.layout.finding import readable
    from engagement_platform.layout.gain import told

    console = Console()
    summary = Table(
        Column("table", overflow="fold"), "version", "files", "bytes", "partitions", "small", "median", "findings"
    )
    for examination in examined:
        totals = examination.statistics.totals
        share = f"{100 * totals.small_files / totals.files:.0f} %" if totals.files else "–"
        summary.add_row(
            Text(examination.statistics.table),
            f"{examination.statistics.version:,}",
            f"{totals.files:,}",
            readable(totals.bytes),
            f"{totals.partitions:,}",
            share,
            readable(totals.median_file_bytes),
            str(len(examination.findings)),
        )
    console.print(summary)
    for examination in examined:
        for finding in examination.findings:
            colour = {"error": "bold red", "warning": "yellow", "info": "cyan"}[finding.severity]
            console.print(Text(f"\n{finding.severity} {finding.code}", colour), Text(finding.table))
            evidence = ", ".join(f"{name}={value}" for name, value in finding.evidence.items())
            for label, said in (
                ("", finding.what),
                ("evidence: ", evidence),
                ("what to do: ", finding.remedy),
                ("gain: ", told(finding.gain)),
            ):
                console.print(f"  {label}{said}", markup=False, highlight=False, soft_wrap=True)
    if not any(examination.findings for examination in examined):
        there = "Nothing to mend." if examined else "There are no tables yet."
        console.print(there, markup=False)

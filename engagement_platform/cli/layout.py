"""Commands that look after the layout of tables: doctor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from engagement_platform.layout.doctor import Examination
    from engagement_platform.layout.history import Outcome
    from engagement_platform.settings import Settings


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
    guards: Annotated[
        bool, typer.Option("--guards", help="Instead: the rules that keep tables and streams safe, and their state.")
    ] = False,
    capabilities: Annotated[
        bool, typer.Option("--capabilities", help="Instead: try what this Spark and Delta can do. Needs Spark.")
    ] = False,
) -> None:
    """Examine how the files of tables lie, say what is unhealthy and what mending would gain. Changes nothing.

    Works on any Delta table, whoever wrote it. Reads the log, not the data, and needs no Spark. The settings under
    health say what counts as unhealthy. Each finding names the command that mends it, where there is one; --html and
    --json tell what such commands predicted and what came of it.
    --guards lists every rule with its source, what holds it and whether it is kept; it reads logs and stores.
    Exit status: 0 nothing but infos, 1 warnings, errors, a broken rule or a table that cannot be read.
    Example: engagement-platform doctor engagement/data --html doctor.html
    """
    from engagement_platform.layout.doctor import examine
    from engagement_platform.layout.files import LogNotReadable
    from engagement_platform.layout.history import predicted_and_actual
    from engagement_platform.layout.survey import targets
    from engagement_platform.settings import Settings

    if html is not None and not html.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {html.absolute().parent}", param_hint="--html")
    if clustered_by is not None and table is None:
        raise typer.BadParameter("--clustered-by goes with a table")
    settings = Settings()
    if guards or capabilities:
        if table is not None or html is not None:
            raise typer.BadParameter("--guards and --capabilities look at the whole lake and make no report")
        raise typer.Exit(_guards(settings, as_json) if guards else _capabilities(settings, as_json))

    examined, unread = [], []
    for target in targets(settings, table):
        try:
            examined.append(examine(settings, target, clustering=clustered_by))
        except LogNotReadable as error:
            if table is not None:
                raise
            unread.append(error)
    wanted = as_json or html is not None
    done = predicted_and_actual(settings, [one.target for one in examined]) if wanted else {}
    if as_json:
        found = [finding.as_json() for examination in examined for finding in examination.findings]
        most = settings.health.worst_partitions
        tables = [_table(examination, done.get(examination.target.name, ()), most) for examination in examined]
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


def _table(examination: Examination, done: Sequence[Outcome], most: int) -> dict[str, object]:
    from engagement_platform.layout.history import as_json

    return {**examination.as_json(most), "predicted_and_actual": [as_json(one) for one in done]}


def _guards(settings: Settings, as_json: bool) -> int:
    """Show every rule; the exit status."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from engagement_platform.guards.rules import broken
    from engagement_platform.guards.rules import guards as guards_of
    from engagement_platform.jobs import open_stores

    found = guards_of(settings, open_stores(settings))
    wrong = broken(found)
    if as_json:
        typer.echo(json.dumps({"guards": [guard.as_json() for guard in found]}))
        return 1 if wrong else 0
    shown = Table("rule", "state", "seen", "says", "held by", "source")
    for guard in found:
        colour = {"kept": "green", "broken": "bold red"}.get(guard.verdict.state, "dim")
        rule, verdict = guard.rule, guard.verdict
        words = (verdict.seen, rule.says, rule.held_by, rule.source)
        shown.add_row(Text(rule.code), Text(verdict.state, colour), *map(Text, words))
    console = Console()
    console.print(shown)
    for guard in wrong:
        said = f"{guard.rule.code} is broken: {guard.verdict.seen}. What to do: {guard.rule.do}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    return 1 if wrong else 0


def _capabilities(settings: Settings, as_json: bool) -> int:
    """Show what the engines can do; that one cannot is no failure."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from engagement_platform.guards.capabilities import capabilities as tried
    from engagement_platform.lake.session import spark_session

    with spark_session(settings, "doctor", reads_only=True) as spark:
        found = list(tried(spark))
    if as_json:
        typer.echo(json.dumps({"capabilities": [one.as_json() for one in found]}))
        return 0
    shown = Table("capability", "works", "seen")
    for one in found:
        shown.add_row(one.name, Text("yes", "green") if one.works else Text("no", "yellow"), Text(one.seen))
    Console().print(shown)
    return 0


def _show(examined: Sequence[Examination]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from engagement_platform.layout.remedies import readable

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
                ("gain: ", str(finding.gain)),
            ):
                console.print(f"  {label}{said}", markup=False, highlight=False, soft_wrap=True)
        for code, why in examination.not_looked_at.items():
            console.print(Text(f"\n{code} not looked at", "yellow"), Text(f"{examination.target.name}: {why}"))
    if not any(examination.findings for examination in examined):
        there = "Nothing to mend." if examined else "There are no tables yet."
        console.print(there, markup=False)

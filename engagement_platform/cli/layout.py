"""Commands that look after the layout of tables: doctor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engagement_platform.cli.common import Json, TablePath, flag, print_json, print_table

if TYPE_CHECKING:
    from engagement_platform.maintenance.layout.doctor import Examination
    from engagement_platform.settings import Settings


def doctor(
    table: TablePath = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report with histograms here; one file, 5 MB.")
    ] = None,
    as_json: Json = False,
    clustered_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column that reads filter by. Default: what the table was clustered by."),
    ] = None,
    guards: Annotated[
        bool, flag("--guards", "Instead: the rules that keep tables and streams safe, and their state.")
    ] = False,
    capabilities: Annotated[
        bool, flag("--capabilities", "Instead: try what this Spark and Delta can do. Needs Spark.")
    ] = False,
) -> None:
    """Examine how the files of tables lie, say what is unhealthy and what mending would gain. Changes nothing.

    Works on any Delta table, of any writer. Reads the log, not the data, and needs no Spark. The settings under
    health say what counts as unhealthy. Each finding names the command that mends it, where there is one; --html and
    --json tell what such commands predicted and what came of it.
    --guards lists every rule with its source, what holds it and whether it is kept; it reads logs and stores.
    Exit status: 0 nothing but infos, 1 warnings, errors, a broken rule or a table that cannot be read.
    Example: engagement-platform doctor engagement/data --html doctor.html
    """
    from engagement_platform.maintenance.layout.doctor import examine
    from engagement_platform.maintenance.layout.files import LogNotReadable
    from engagement_platform.maintenance.layout.history import as_json as outcome_as_json
    from engagement_platform.maintenance.layout.history import predicted_and_actual
    from engagement_platform.maintenance.layout.survey import targets
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
    done = predicted_and_actual(settings, [one.facts.seen.target for one in examined]) if wanted else {}
    if as_json:
        found = [finding.as_json() for examination in examined for finding in examination.findings]
        tables = [
            examination.as_json(settings.health.worst_partitions)
            | {"predicted_and_actual": [outcome_as_json(one) for one in done.get(examination.facts.name, ())]}
            for examination in examined
        ]
        print_json({"findings": found, "tables": tables})
    else:
        _show(examined)
    if html is not None:
        from engagement_platform.maintenance.layout.report import page

        html.write_text(page(examined, done), encoding="utf-8")
        typer.echo(f"The report is in {html}", err=as_json)
    for reason in unread:
        typer.echo(reason, err=True)
    bad = any(finding.severity != "info" for examination in examined for finding in examination.findings)
    raise typer.Exit(1 if bad or unread else 0)


def _guards(settings: Settings, as_json: bool) -> int:
    """Show every rule; the exit status."""
    from rich.text import Text

    from engagement_platform.maintenance.guards.rules import broken
    from engagement_platform.maintenance.guards.rules import guards as guards_of
    from engagement_platform.pipelines.jobs import open_stores

    found = guards_of(settings, open_stores(settings))
    wrong = broken(found)
    if as_json:
        print_json({"guards": [guard.as_json() for guard in found]})
        return 1 if wrong else 0
    colours = {"kept": "green", "broken": "bold red"}
    rows = [
        (rule.code, Text(state, colours.get(state, "dim")), seen, rule.says, rule.held_by, rule.source)
        for rule, state, seen in found
    ]
    print_table(("rule", "state", "seen", "says", "held by", "source"), rows)
    for guard in wrong:
        typer.echo(f"{guard.rule.code} is broken: {guard.seen}. What to do: {guard.rule.do}")
    return 1 if wrong else 0


def _capabilities(settings: Settings, as_json: bool) -> int:
    """Show what the engines can do; that one cannot is no failure."""
    from engagement_platform.lake.capability_probes import capabilities as tried
    from engagement_platform.lake.session import spark_session

    with spark_session(settings, "doctor", reads_only=True) as spark:
        found = list(tried(spark))
    if as_json:
        print_json({"capabilities": [one._asdict() for one in found]})
    else:
        rows = [(one.name, "yes" if one.works else "no", one.seen) for one in found]
        print_table(("capability", "works", "seen"), rows)
    return 0


def _show(examined: Sequence[Examination]) -> None:
    from engagement_platform.maintenance.layout.remedies import readable

    rows = []
    for examination in examined:
        facts, totals = examination.facts, examination.facts.totals
        share = f"{100 * totals.small_files / totals.files:.0f} %" if totals.files else "–"
        sizes = (readable(totals.bytes), totals.partitions, share, readable(totals.median_file_bytes))
        rows.append((facts.name, facts.seen.shape.version, totals.files, *sizes, len(examination.findings)))
    print_table(("table", "version", "files", "bytes", "partitions", "small", "median", "findings"), rows)
    for examination in examined:
        for finding in examination.findings:
            colour = {"error": "red", "warning": "yellow", "info": "cyan"}[finding.severity]
            typer.echo(f"\n{typer.style(f'{finding.severity} {finding.code}', colour)} {finding.table}")
            typer.echo(f"  {finding.what}")
            typer.echo(f"  evidence: {', '.join(f'{name}={value}' for name, value in finding.evidence.items())}")
            typer.echo(f"  what to do: {finding.remedy}\n  gain: {finding.gain or '–'}")
    if not any(examination.findings for examination in examined):
        typer.echo("Nothing to mend." if examined else "There are no tables yet.")

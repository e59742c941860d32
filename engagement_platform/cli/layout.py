"""Commands that look at the layout of tables and mend it: doctor, optimize, vacuum, migrate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from engagement_platform.cli.common import DryRun, Json, TablePath, callbacks, flag, print_json, print_table
from engagement_platform.errors import PlatformError, plain

if TYPE_CHECKING:
    from engagement_platform.maintenance.layout.doctor import Examination
    from engagement_platform.maintenance.layout.optimize import Outcome, Plan
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
        _show_findings(examined)
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


def _show_findings(examined: Sequence[Examination]) -> None:
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
            typer.echo(f"  {plain(finding.what)}")
            evidence = ", ".join(f"{name}={value}" for name, value in finding.evidence.items())
            typer.echo(f"  evidence: {plain(evidence)}")
            typer.echo(f"  what to do: {finding.remedy}\n  gain: {finding.gain or '–'}")
    if not any(examination.findings for examination in examined):
        typer.echo("Nothing to mend." if examined else "There are no tables yet.")


def optimize(
    table: TablePath = None,
    organization: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only partitions of this one; repeatable.")
    ] = None,
    second_round: Annotated[bool, flag("--second-round", "Merge up to maintenance.second_round_file_bytes.")] = False,
    budget: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Begin nothing new after so long. Default: maintenance.budget."),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Merge small files and order them anew, partition by partition, most files saved per second first.

    No row changes, and readers and streams see none twice. Writers come first: a table that is being written is
    touched when it is free, for one partition at a time. What does not fit into the budget, the next call does.
    Exit status: 0 also when something is left for the next call, 1 with the reason. A table that cannot be read or
    rewritten is named, and the others are done all the same.
    Example: engagement-platform optimize engagement/data --organization org-7 --dry-run
    """
    from datetime import timedelta

    from engagement_platform.maintenance.layout.optimize import Asked, Callbacks, planned
    from engagement_platform.maintenance.layout.optimize import optimize as outcomes_of
    from engagement_platform.maintenance.layout.plan import Left
    from engagement_platform.settings import Settings

    settings = Settings()
    limit = None if budget is None else timedelta(seconds=budget)
    asked = Asked(table, tuple(organization or ()), second_round, limit)
    plan, failed = planned(settings, asked), 0
    if dry_run:
        _show_plan(plan, as_json=as_json)
    else:
        progress = Callbacks(
            on_slice=lambda one: typer.echo(f"{one}: {one.action}, about {one.seconds:,.1f} s; {one.why}", err=True),
            on_wait=lambda one, holder: typer.echo(f"{one} waits: {holder}", err=True),
        )
        for number, outcome in enumerate(outcomes_of(settings, plan, progress), 1):
            _show(outcome, number, len(plan.chosen) + len(plan.left), as_json=as_json)
            failed += isinstance(outcome, Left) and outcome.failed
        if not as_json and not (plan.chosen or plan.left):
            typer.echo("Nothing to mend.")
    for reason in plan.unread:
        typer.echo(reason, err=True)
    raise typer.Exit(1 if plan.unread or failed else 0)


def _show(outcome: Outcome, number: int, count: int, *, as_json: bool) -> None:
    from engagement_platform.maintenance.layout.optimize import Done
    from engagement_platform.maintenance.layout.remedies import readable

    if as_json:
        print_json(outcome.as_json())
    elif isinstance(outcome, Done):
        removed, added = readable(outcome.bytes_rewritten), readable(outcome.bytes_written)
        typer.echo(
            f"[{number}/{count}] {outcome.slice}: {outcome.files_before:,} → {outcome.files_after:,} files, "
            f"{removed} → {added}, {outcome.seconds:.1f} s"
        )
    else:
        typer.echo(f"[{number}/{count}] {outcome.slice} is left: {outcome.why}")


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    from engagement_platform.maintenance.layout.remedies import readable

    if as_json:
        print_json({"slices": [one.as_json() for one in plan.chosen], "left": [one.as_json() for one in plan.left]})
        return
    rows = []
    for one in plan.chosen:
        files = f"{one.gain.files_before:,} → {one.gain.files_after:,}"
        rewritten = readable(one.gain.bytes_to_rewrite)
        rows.append((one.table.name, one.partition, one.action, files, rewritten, f"{one.seconds:,.1f}", one.why))
    print_table(("table", "partition", "action", "files", "to rewrite", "seconds", "why"), rows)
    typer.echo(f"{len(plan.chosen):,} slices; {len(plan.left):,} more do not fit into the budget.")


def vacuum(
    table: TablePath = None,
    hours: Annotated[
        int | None, typer.Option(min=0, help="Keep removed files for so long. Default: as long as they may be needed.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete files that tables no longer consist of, and that nobody may still read.

    They are kept for the longest of: the table's own retention, maintenance.rollback_window, mutation.max_lateness
    (tables of engagements), and what consumers and streams have yet to read. --hours below that is refused, and the
    sentence says by what. Refused in any case, also a dry run: where an unfinished batch, restore or erasure reads a
    file that would go, and where more has to be kept than the table's own retention says. Versions older than that
    cannot be read any more.
    Exit status: 0, or 1 with the reason; a table that cannot be vacuumed is named, and the others are done first.
    Example: engagement-platform vacuum engagement/data --dry-run
    """
    from engagement_platform.maintenance.layout.vacuum import vacuum_tables
    from engagement_platform.settings import Settings

    refused, count = 0, 0
    for done in vacuum_tables(Settings(), table, hours=hours, dry_run=dry_run):
        count += 1
        if isinstance(done, PlatformError):
            refused += 1
            typer.echo(done, err=True)
        elif as_json:
            print_json(done.as_json())
        else:
            typer.echo(done)
    if not count:
        typer.echo("There are no tables yet.", err=True)
    raise typer.Exit(1 if refused or not count else 0)


def migrate(
    table: Annotated[str, typer.Argument(help="The table; only engagement/data has more than one layout.")],
    layout: Annotated[
        Literal["organization", "organization_date", "liquid"],
        typer.Option(help="What it is to become; layout.scheme has to say the same."),
    ],
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Rewrite the Data Table in another layout: the same rows, in one commit, compared before and after.

    Set layout.scheme for every process first; until the table is migrated, new runs stop without writing anything.
    Runs at work are waited for (stores.lease_wait). Killed at any moment, it leaves the old layout or the new one;
    called again it goes on from there, and compares again what is done. Reads all rows four times, writes them once.
    Exit status: 0 migrated, or it was before; 1 with the reason.
    Example: engagement-platform migrate engagement/data --layout organization --dry-run
    """
    from engagement_platform.maintenance.layout.migrate import migrate as migrated
    from engagement_platform.maintenance.layout.migrate import plan
    from engagement_platform.settings import Settings

    settings = Settings()
    planned = plan(settings, table, layout)
    if dry_run:
        typer.echo(json.dumps(planned.as_json()) if as_json else planned)
        return
    typer.echo(planned, err=True)
    done = migrated(settings, table, layout, callbacks())
    typer.echo(json.dumps(done.as_json()) if as_json else done)

"""Commands that mend the layout of tables: optimize, vacuum, migrate. Looking at it is in `cli.layout`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from engagement_platform.cli.common import DryRun, Json, TablePath, callbacks, flag, print_json, print_table

if TYPE_CHECKING:
    from engagement_platform.maintenance.layout.optimize import Outcome, Plan


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

    They are kept for the longest of: the table's own retention, maintenance.rollback_window, mutation.max_lateness,
    and as far back as an unfinished batch or a job that follows the table reads. --hours below that is refused, and
    the sentence says by what. Versions older than that cannot be read any more.
    Exit status: 0, or 1 with the reason; a table that cannot be vacuumed is named, and the others are done first.
    Example: engagement-platform vacuum engagement/data --dry-run
    """
    from engagement_platform.errors import PlatformError
    from engagement_platform.maintenance.layout.remedies import readable
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
            size = "" if done.bytes is None else f" of {readable(done.bytes)}"
            verb = "would go" if dry_run else "removed"
            typer.echo(f"{done.table}: {done.files:,} files{size} {verb}; kept {done.kept_hours:,} h ({done.because})")
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

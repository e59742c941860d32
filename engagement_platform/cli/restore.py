"""The command that takes tables back: restore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from engagement_platform.cli.common import DryRun, Json, Yes, callbacks, flag, print_json

if TYPE_CHECKING:
    from engagement_platform.maintenance.rollback.job import Restoring
    from engagement_platform.maintenance.rollback.plan import Asked
    from engagement_platform.settings import Settings


def restore(
    table: Annotated[
        str | None,
        typer.Argument(help="engagement/data, profile/materialized or another table: all of its group go back."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="VERSION|TIMESTAMP", help="A version of TABLE, or a time (UTC): the last batch by then."),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Why; kept in layout/restore. Needed unless it is a dry run.")
    ] = None,
    dry_run: DryRun = False,
    drop: Annotated[bool, flag("--drop", "Do not read again what came since: it is given up on purpose.")] = False,
    yes: Yes = False,
    finish: Annotated[bool, flag("--finish", "Finish a restore that was interrupted.")] = False,
    abandon: Annotated[bool, flag("--abandon", "Give up an interrupted restore: tables are as before it.")] = False,
    as_json: Json = False,
) -> None:
    """Take tables back to the end of an earlier batch, tell readers, and read again what came since.

    The engagement tables go back together, base and changeset of profiles, and all tables of games; so for what is
    declared.

    Notifications stay, and so does quarantine, except that of a declared stream; accepted requests go back with the
    tables. Messages since then are read again by the next runs, exactly once; with --drop they are given up. Refused
    when files or messages are gone, or a batch is unfinished.
    An interrupted restore keeps other jobs waiting: --finish does the rest, --abandon gives every table the rows from
    before it. That is refused once all tables are back, since notifications may have gone out.
    Exit status: 0 restored or nothing to do, 1 with the reason.
    Example: engagement-platform restore engagement/data --to 17 --reason "bad import" --dry-run
    """
    from engagement_platform.maintenance.rollback.plan import Asked, RestoreMode, parsed
    from engagement_platform.settings import Settings

    settings = Settings()
    if finish and abandon:
        raise typer.BadParameter("give --finish, or --abandon")
    if finish:
        _run(settings, None, as_json)
        return
    if abandon:
        _abandon(settings, as_json)
        return
    if table is None or to is None:
        raise typer.BadParameter("name a table and a version or time: restore engagement/data --to 17")
    if not (reason or dry_run):
        raise typer.BadParameter('say why: --reason "bad import"; it is kept with the restore')
    from engagement_platform.engine.owner import this_user

    mode: RestoreMode = "drop" if drop else "replay"
    asked = Asked(table, parsed(to), mode, reason, this_user())
    if not _planned(settings, asked, dry_run, as_json) or dry_run:
        return
    if not yes:
        typer.confirm("Restore?", abort=True)
    _run(settings, asked, as_json)


def _planned(settings: Settings, asked: Asked, dry_run: bool, as_json: bool) -> bool:
    """Print what would change; whether anything would."""
    from engagement_platform.maintenance.rollback.plan import plan
    from engagement_platform.pipelines.jobs import open_stores

    planned = plan(settings, open_stores(settings), asked)
    differing = None
    if dry_run and planned.changes:
        from engagement_platform.lake.lake import Lake
        from engagement_platform.lake.session import spark_session

        with spark_session(settings, "restore", reads_only=True) as spark:
            differing = planned.differing(Lake(spark, settings))
    if as_json and dry_run:
        print_json(planned.as_json(differing))
    else:
        for line in planned.lines(differing):
            typer.echo(line, err=as_json)
    return bool(planned.changes or planned.offsets)


@contextmanager
def _restoring(settings: Settings) -> Iterator[Restoring]:
    from engagement_platform.lake.lake import Lake
    from engagement_platform.lake.session import spark_session
    from engagement_platform.maintenance.rollback.job import Restoring
    from engagement_platform.pipelines.jobs import open_stores

    with spark_session(settings, "restore") as spark:
        yield Restoring(Lake(spark, settings), open_stores(settings), callbacks())


def _abandon(settings: Settings, as_json: bool) -> None:
    from engagement_platform.engine.owner import this_user

    with _restoring(settings) as restoring:
        done = restoring.abandon(this_user())
    tables = {} if done is None else {name: done.table_versions[name] for name in done.end}
    if as_json:
        print_json({} if done is None else {"batch_id": done.batch_id, "abandoned": True, "tables": tables})
    elif done is None:
        typer.echo("Nothing to give up.")
    else:
        back = ", ".join(f"{table} as of version {version}" for table, version in tables.items())
        typer.echo(f"{done} is given up, and its tables have the rows from before: {back}.")


def _run(settings: Settings, asked: Asked | None, as_json: bool) -> None:
    with _restoring(settings) as restoring:
        report = restoring.run(asked)
    if report is None:
        typer.echo("{}" if as_json else "Nothing to restore.")
    elif as_json:
        print_json(report.as_json())
    else:
        counts = report.counts
        # A restore that only had to be noted as finished has no details any more.
        where = report.details.get("boundary", "where they were to go")
        typer.echo(
            f"{report.manifest}: {counts['tables']} tables at {where}, checksums equal; "
            f"{counts['notifications']:,} changes announced, {counts['jobs_put_back']} jobs put back."
        )

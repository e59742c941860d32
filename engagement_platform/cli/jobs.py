"""Commands that run and look after jobs: run, status, batches, reset, recover, page-views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from engagement_platform.cli.common import (
    DryRun,
    Json,
    UntilIdle,
    Yes,
    callbacks,
    flag,
    print_batches,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from engagement_platform.pipelines.status import JobStatus


def run(
    job: Annotated[
        str,
        typer.Argument(
            help="ingest-engagements, ingest-mutation-requests, apply-mutations, rematerialize-aliases, "
            "ingest-profile-changes, rematerialize-profile, ingest-game-events, redrive-quarantine, or the job of a "
            "declared table, such as ingest-shop-click."
        ),
    ],
    until_idle: UntilIdle = False,
    as_json: Json = False,
    reason: Annotated[
        str | None, typer.Option(help="redrive-quarantine: reason code of the records to put through again.")
    ] = None,
) -> None:
    """Run a job in this process: the same that Dagster runs, for cron, tests and other orchestrators.

    A batch that was interrupted is finished first. Exit status: 0 when idle, 1 with a one-line reason.
    Example: engagement-platform run ingest-engagements --until-idle --json
    """
    from engagement_platform.pipelines.jobs import run_job
    from engagement_platform.settings import Settings

    reports = run_job(job, Settings(), until_idle=until_idle, reason=reason, callbacks=callbacks())
    print_batches(reports, as_json, "Nothing is waiting.")


def status(
    as_json: Json = False,
    prometheus: Annotated[
        bool, flag("--prometheus", "Print figures of jobs in Prometheus's text format, for a textfile collector.")
    ] = False,
) -> None:
    """Show how far each job is, what waits, and who holds which lease. Starts no Spark; takes about a second.

    Exit status: 0, or 1 with the reason when broker or stores do not answer.
    """
    from engagement_platform.pipelines.jobs import open_stores
    from engagement_platform.pipelines.status import job_statuses
    from engagement_platform.settings import Settings

    settings = Settings()
    jobs = job_statuses(settings)
    if prometheus:
        from engagement_platform.pipelines.prometheus import figures

        typer.echo(figures(jobs).decode(), nl=False)
        return
    holders = list(map(str, open_stores(settings).leases.holders()))
    if as_json:
        print_json({"jobs": [_as_json(job) for job in jobs], "leases": holders})
        return
    shown = [{**job.totals, **_as_json(job)} for job in jobs]
    columns = ("job", "batch_id", "state", "backlog", "landed", "duplicates", "quarantined")
    names = {"batch_id": "batch", "backlog": "waiting", "duplicates": "known"}
    print_table([names.get(name, name) for name in columns], [[job.get(n, 0) for n in columns] for job in shown])
    for job in jobs:
        if job.checkpoint is not None and job.checkpoint.reason:
            typer.echo(f"{job.job}: {job.checkpoint.reason}")
    for holder in holders:
        typer.echo(holder)


def _as_json(job: JobStatus) -> dict[str, object]:
    last = job.checkpoint
    return {
        "job": job.job,
        "batch_id": last.manifest.batch_id if last else None,
        "state": last.state.value if last else "NEW",
        "application_id": last.manifest.app_id if last else None,
        "end_offsets": dict(last.manifest.end) if last else {},
        "reason": last.reason if last else None,
        "backlog": job.backlog,
        "waiting_since": job.waiting_since.isoformat() if job.waiting_since else None,
        "batches": job.batches,
        "totals": dict(job.totals),
    }


def batches(
    job: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this job. Default: of all jobs.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = 30,
    as_json: Json = False,
) -> None:
    """List the newest batches that the stores know, newest first, also those from before resets. Starts no Spark.

    Seconds go from a batch's first attempt to its end. Rows are those that it received; of a move, its changes.
    Exit status: 0, or 1 with the reason, also for a job that has begun no batch.
    Example: engagement-platform batches --job ingest-engagements --limit 5 --json
    """
    from engagement_platform.errors import PlatformError
    from engagement_platform.pipelines.jobs import open_stores
    from engagement_platform.settings import Settings

    checkpoints = open_stores(Settings()).checkpoints
    jobs = checkpoints.jobs()
    if job is not None and job not in jobs:
        raise PlatformError(f"{job} has begun no batch; jobs that have: {', '.join(jobs) or 'none'}.")
    found = [one for name in ([job] if job else jobs) for one in checkpoints.history(name, limit=limit)]
    found = sorted(found, key=lambda one: one.manifest.sequence, reverse=True)[:limit]
    rows = []
    for one in found:
        seconds = (one.finished_ts - one.started_ts).total_seconds() if one.finished_ts else None
        began = one.started_ts.isoformat(timespec="seconds")
        row = (one.manifest.job, one.manifest.batch_id, began, seconds, one.state.value, one.rows)
        shown = (*row[:2], f"{one.started_ts:%Y-%m-%d %H:%M:%S}", *row[3:])
        rows.append(["" if value is None else value for value in shown])
        if as_json:
            names = ("job", "batch_id", "began", "seconds", "state", "rows")
            print_json(dict(zip(names, row, strict=True)) | {"counts": dict(one.counts), "reason": one.reason})
    if not as_json:
        print_table(("job", "batch", "began, UTC", "seconds", "state", "rows"), rows)


def reset(
    job: Annotated[str, typer.Argument(help="Any that `status` or `batches` shows, such as ingest-engagements.")],
    yes: Yes = False,
    abandon: Annotated[
        bool, flag("--abandon", "Also when a batch is unfinished; what it landed may stay unannounced.")
    ] = False,
) -> None:
    """Forget how far a job is, so that its next run reads the topic from its beginning; tables and history stay.

    The job takes a new application id, so that Delta does not skip what is read again; engagements that landed before
    are then known duplicates, and what quarantine holds is not put there again. An unfinished batch is refused.
    Exit status: 0, or 1 with the reason. Example: engagement-platform reset ingest-engagements --yes
    """
    from engagement_platform.pipelines.jobs import reset_job
    from engagement_platform.settings import Settings

    if not yes:
        typer.confirm(f"Let {job} read its topic from the beginning again?", abort=True)
    app_id = reset_job(job, Settings(), abandon=abandon)
    typer.echo(f"{job} has the application id {app_id} now and starts at the beginning of its topic.")


def recover(dry_run: DryRun = False, as_json: Json = False) -> None:
    """Bring stores from a backup, or new ones, up to what the tables' transactions say; then runs go on.

    Each job's last batch in the tables is recorded with the manifest that its commits carry: as finished, or as
    unfinished, which the next run finishes without writing anything twice. Changes the stores only, and nothing when
    called again. Reads all entries of all tables' logs, no data: seconds for some thousand commits. Refused while a
    job runs. Not brought back: how far consumers have read, keys of pseudonyms, alerts.
    Exit status: 0; 1 with the reason, also when a job's commits are no longer in any log: only a reset goes on then.
    Example: engagement-platform recover --dry-run
    """
    from engagement_platform.engine.recovery import recover as recovered
    from engagement_platform.pipelines.jobs import open_stores
    from engagement_platform.settings import Settings

    found = recovered(open_stores(Settings()), dry_run=dry_run)
    for one in found:
        if as_json:
            batch = one.manifest and {"app_id": one.manifest.app_id, "batch_id": one.manifest.batch_id}
            print_json({"job": one.job, "batch": batch, "recorded_as": one.state, "lost": batch is None})
        else:
            typer.echo(str(one))
    if not found and not as_json:
        typer.echo("No table holds a batch.")
    raise typer.Exit(int(any(one.manifest is None for one in found)))


def page_views(until_idle: UntilIdle = False) -> None:
    """Run the streams of page views one after the other, again and again, on one session: seconds from hop to hop.

    Page views from Kafka, sessions of them, days of those. In Dagster the same is a job by the clock; a lease keeps the
    two from running one stream at once. Exit status: 0 when nothing waits, 1 with a one-line reason.
    Example: engagement-platform page-views --until-idle
    """
    from engagement_platform.lake.lake import Lake
    from engagement_platform.lake.session import spark_session
    from engagement_platform.pipelines.jobs import open_stores
    from engagement_platform.pipelines.page_views.job import PAGE_VIEWS, run_hops
    from engagement_platform.settings import Settings

    settings = Settings()
    with spark_session(settings, PAGE_VIEWS) as spark:
        lake, stores = Lake(spark, settings), open_stores(settings)
        for done in run_hops(lake, stores, until_idle=until_idle, pause=settings.drain.poll):
            if came := [f"{name}: {d.rows_in:,} rows, {d.late:,} late" for name, d in done.items() if d.rows_in]:
                typer.echo(", ".join(came))
    typer.echo("Nothing is waiting.")

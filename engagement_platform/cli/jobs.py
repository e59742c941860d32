"""Commands that run and look after jobs and read what they made: run, status, read, verify, reset,
recover, page-views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engagement_platform.cli.common import callbacks

if TYPE_CHECKING:
    from engagement_platform.status import JobStatus


def run(
    job: Annotated[
        str,
        typer.Argument(
            help="ingest-engagements, ingest-mutation-requests, apply-mutations, rematerialize-aliases, "
            "ingest-profile-changes, rematerialize-profile, ingest-game-events or redrive-quarantine."
        ),
    ],
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when nothing is waiting; without it, go on waiting for more.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per batch instead of a line.")] = False,
    reason: Annotated[
        str | None, typer.Option(help="redrive-quarantine: reason code of the records to put through again.")
    ] = None,
) -> None:
    """Run a job in this process: the same that Dagster runs, for cron, tests and other orchestrators.

    A batch that was interrupted is finished first. Exit status: 0 when idle, 1 with a one-line reason.
    Example: engagement-platform run ingest-engagements --until-idle --json
    """
    from engagement_platform.jobs import run_job
    from engagement_platform.settings import Settings

    for report in run_job(job, Settings(), until_idle=until_idle, reason=reason, callbacks=callbacks()):
        if as_json:
            typer.echo(json.dumps(report.as_json()))
            continue
        counts = report.counts
        typer.echo(
            f"{report.manifest}: {counts.get('rows_in', 0):,} in, {counts.get('landed', 0):,} landed, "
            f"{counts.get('duplicates', 0):,} known, {counts.get('quarantined', 0):,} quarantined, "
            f"{counts.get('files', 0):,} files, {report.seconds:.1f} s{' (resumed)' if report.replayed else ''}"
        )
    if not as_json:
        typer.echo("Nothing is waiting.")


def status(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Show how far each job is, what waits, and who holds which lease. Starts no Spark; takes about a second.

    Exit status: 0, or 1 with the reason when broker or stores do not answer.
    """
    from rich.console import Console
    from rich.table import Table

    from engagement_platform.jobs import open_stores
    from engagement_platform.settings import Settings
    from engagement_platform.status import job_statuses

    settings = Settings()
    jobs = job_statuses(settings)
    holders = open_stores(settings).leases.holders()
    if as_json:
        typer.echo(json.dumps({"jobs": [_status_json(job) for job in jobs], "leases": [str(h) for h in holders]}))
        return
    table = Table("job", "batch", "state", "waiting", "batches", "landed", "known", "quarantined", "files")
    for job in jobs:
        shown = _status_json(job)
        totals = job.totals
        figures = [
            job.backlog,
            job.batches,
            *(totals.get(n, 0) for n in ("landed", "duplicates", "quarantined", "files")),
        ]
        table.add_row(job.job, str(shown["batch_id"]), str(shown["state"]), *(f"{figure:,}" for figure in figures))
    console = Console()
    console.print(table)
    for job in jobs:
        if job.checkpoint is not None and job.checkpoint.reason:
            console.print(f"{job.job}: {job.checkpoint.reason}", markup=False, highlight=False)
    for holder in holders:
        console.print(str(holder), markup=False, highlight=False)


def _status_json(job: JobStatus) -> dict[str, object]:
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


SHOWN_ROWS = 20


def read(
    table: Annotated[str, typer.Argument(help="engagement/current, engagement/mapping, profile/current, …")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all rows here: .parquet, .csv or .jsonl. Replaces it.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows for which this Spark SQL is true.")
    ] = None,
    version: Annotated[int | None, typer.Option(min=0, help="The table as of this version; not for a view.")] = None,
) -> None:
    """Read a table of the lake, or a view, into one file; without --out show the first 20 rows.

    engagement/current is the place to read engagements: newest identities and contents, no deleted rows. So is
    engagement/mapping for names, one row per id. engagement/data gets changes up to mutation.max_pending later, and
    deleted rows stand there with a null person_id. Needs Spark: seconds with ENGAGEMENT_PLATFORM_SPARK__REMOTE,
    up to a minute without. Exit status: 0, or 1 with the reason.
    Example: engagement-platform read engagement/current --out current.parquet --where "organization_id = 'org-7'"
    """
    from engagement_platform.reading import check_asked, first, rows_of, save
    from engagement_platform.settings import Settings

    settings = Settings()
    check_asked(settings, table, version, out)

    from engagement_platform.lake.lake import Lake
    from engagement_platform.lake.session import spark_session

    with spark_session(settings, "read", reads_only=True) as spark:
        rows = rows_of(Lake(spark, settings), table, where=where, version=version)
        if out is not None:
            count = save(rows, table, out)
            typer.echo(f"{count:,} {'row' if count == 1 else 'rows'} of {table} in {out}")
            return
        columns, values = first(rows, table, SHOWN_ROWS + 1)
    _show(table, columns, values)


def _show(name: str, columns: list[str], values: list[list[object]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(*columns)
    for row in values[:SHOWN_ROWS]:
        texts = (json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value for value in row)
        shown.add_row(*(Text("null", style="dim") if text is None else Text(str(text)) for text in texts))
    console = Console()
    console.print(shown)
    more = len(values) > SHOWN_ROWS
    count = f"The first {SHOWN_ROWS} rows" if more else f"All rows: {len(values)}"
    console.print(f"{count} of {name}.{' With --out FILE all of them.' if more else ''}", markup=False, highlight=False)


def verify(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per check.")] = False,
    identity: Annotated[
        bool,
        typer.Option("--identity", help="Instead: recompute identities, names and patched contents. Needs no broker."),
    ] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, help="--identity: so many organizations, others every day. Default: all.")
    ] = None,
) -> None:
    """Read the topic again and compare with the tables: nothing lost, nothing doubled, all announced. Changes nothing.

    With --identity: whether every identity, name and patched content follows from what events and requests said.
    Exit status: 0 when all is right, 1 when something is wrong. Example: engagement-platform verify
    """
    from engagement_platform.settings import Settings
    from engagement_platform.verify import identity_findings
    from engagement_platform.verify import verify as findings_of

    if sample is not None and not identity:
        raise typer.BadParameter("--sample goes with --identity")
    settings = Settings()
    if identity:
        from engagement_platform.lake.session import spark_session

        with spark_session(settings, "verify", reads_only=True) as spark:
            findings = identity_findings(settings, spark, sample)
    else:
        findings = findings_of(settings)
    for finding in findings:
        if as_json:
            typer.echo(json.dumps({**vars(finding), "examples": list(finding.examples)}))
        else:
            verdict = "ok" if not finding.wrong else f"{finding.wrong:,} WRONG, such as {', '.join(finding.examples)}"
            typer.echo(f"{finding.check:18} {finding.looked_at:>12,} looked at, {verdict}  ({finding.meaning})")
    raise typer.Exit(1 if any(finding.wrong for finding in findings) else 0)


def reset(
    job: Annotated[str, typer.Argument(help="ingest-engagements or ingest-mutation-requests.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Also when a batch is unfinished; what it landed may stay unannounced.")
    ] = False,
) -> None:
    """Forget how far a job is, so that its next run reads the topic from its beginning; tables and history stay.

    The job takes a new application id, so that Delta does not skip what is read again; engagements that landed before
    are then known duplicates, and what quarantine holds is not put there again. An unfinished batch is refused.
    Exit status: 0, or 1 with the reason. Example: engagement-platform reset ingest-engagements --yes
    """
    from engagement_platform.jobs import reset_job
    from engagement_platform.settings import Settings

    if not yes:
        typer.confirm(f"Let {job} read its topic from the beginning again?", abort=True)
    typer.echo(
        f"{job} goes by {reset_job(job, Settings(), abandon=abandon)} now and starts at the beginning of its topic."
    )


def recover(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what the stores lack.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each job.")] = False,
) -> None:
    """Bring stores from a backup, or new ones, up to what the tables' transactions say; then runs go on.

    Each job's last batch in the tables is recorded with the manifest that its commits carry: as finished, or as
    unfinished, which the next run finishes without writing anything twice. Changes the stores only, and nothing when
    called again. Reads all entries of all tables' logs, no data: seconds for some thousand commits. Refused while a
    job runs. Not brought back: how far consumers have read, keys of pseudonyms, alerts.
    Exit status: 0; 1 with the reason, also when a job's commits are no longer in any log: only a reset goes on then.
    Example: engagement-platform recover --dry-run
    """
    from engagement_platform.engine.recovery import recover as recovered
    from engagement_platform.jobs import open_stores
    from engagement_platform.settings import Settings

    found = recovered(open_stores(Settings()), dry_run=dry_run)
    for one in found:
        if as_json:
            batch = None if one.manifest is None else {"app_id": one.manifest.app_id, "batch_id": one.manifest.batch_id}
            typer.echo(json.dumps({"job": one.job, "batch": batch, "recorded_as": one.state, "lost": one.is_lost}))
        else:
            typer.echo(str(one))
    if not found and not as_json:
        typer.echo("No table holds a batch.")
    raise typer.Exit(1 if any(one.is_lost for one in found) else 0)


def page_views(
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when nothing waits instead of waiting for more.")
    ] = False,
) -> None:
    """Run the streams of page views one after the other, again and again, on one session: seconds from hop to hop.

    Page views from Kafka, sessions of them, days of those. In Dagster the same is a job by the clock; a lease keeps the
    two from running one stream at once. Exit status: 0 when nothing waits, 1 with a one-line reason.
    Example: engagement-platform page-views --until-idle
    """
    from engagement_platform.jobs import open_stores
    from engagement_platform.lake.lake import Lake
    from engagement_platform.lake.session import spark_session
    from engagement_platform.pipelines.page_views.job import PAGE_VIEWS, run_hops
    from engagement_platform.settings import Settings

    settings = Settings()
    with spark_session(settings, PAGE_VIEWS) as spark:
        lake, stores = Lake(spark, settings), open_stores(settings)
        for done in run_hops(lake, stores, until_idle=until_idle, pause=settings.drain.poll):
            came = {name: drained for name, drained in done.items() if drained.rows_in}
            if came:
                typer.echo(", ".join(f"{name}: {d.rows_in:,} rows, {d.late:,} late" for name, d in came.items()))
    typer.echo("Nothing is waiting.")

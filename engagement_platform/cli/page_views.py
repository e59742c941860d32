"""The command that runs the streams of page views without Dagster: page-views.

Thin: parse, call, print.
"""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    app.command()(page_views)


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

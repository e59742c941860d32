"""The command that reads game events once more: replay. Making some is `cli.local`."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer

from engagement_platform.cli.common import callbacks


def replay(
    prefix: Annotated[
        list[str] | None, typer.Option(help="Objects whose keys begin so, such as events/2026/11/22/10/; repeatable.")
    ] = None,
    date: Annotated[
        list[datetime] | None,
        typer.Option(formats=["%Y-%m-%d"], help="Objects that arrived on this UTC day; repeatable."),
    ] = None,
    tables: Annotated[
        str | None, typer.Option(help="Of the declared tables whose names begin so. Default: those that ship, game/.")
    ] = None,
    finish: Annotated[bool, typer.Option("--finish", help="Only finish a replay that was interrupted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per batch instead of a line.")] = False,
) -> None:
    """Read objects of game events once more: rows that are lost come back, and nothing that stands is doubled.

    After a mended declaration, or a table that was taken back; stop the sensor first, or let it wait. A replay that
    was interrupted is finished first. Exit status: 0 when all is read, 1 with a one-line reason.
    Example: engagement-platform replay --date 2026-11-22
    """
    if finish == bool(prefix or date):
        raise typer.BadParameter("give --prefix or --date, or --finish alone")
    from engagement_platform.jobs import open_stores, replay_game_events
    from engagement_platform.lake.session import spark_session
    from engagement_platform.pipelines.declarations.declared import declarations
    from engagement_platform.pipelines.games.feed import shipped
    from engagement_platform.pipelines.games.replay import folder_of
    from engagement_platform.settings import Settings

    settings = Settings()
    feed = shipped(settings) if tables is None else declarations(settings).feed(tables)
    own = feed.settings(settings)
    prefixes = [*(prefix or ()), *(folder_of(day.date(), own) for day in date or ())]

    stores = open_stores(settings)
    with spark_session(settings, feed.replay_job) as spark:
        for report in replay_game_events(prefixes, spark, settings, stores, callbacks(), feed=feed):
            counts = report.counts
            if as_json:
                typer.echo(json.dumps(report.as_json()))
                continue
            typer.echo(
                f"{report.manifest}: {counts.get('rows_in', 0):,} lines, {counts.get('landed', 0):,} landed, "
                f"{counts.get('duplicates', 0):,} known, {counts.get('quarantined', 0):,} quarantined, "
                f"{report.seconds:.1f} s{' (resumed)' if report.replayed else ''}"
            )
    if not as_json:
        typer.echo("Nothing is left to replay.")

"""Commands of the replica in DuckDB: replica refresh, status, page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from engagement_platform.replica.refresh import Place
    from engagement_platform.settings import Settings

ACTIONS = ("refresh", "status", "page")


def replica(
    action: Annotated[str, typer.Argument(help="refresh, status or page.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="page: write it here. Default: replica.html in this folder.")
    ] = None,
    resnapshot: Annotated[
        bool, typer.Option("--resnapshot", help="refresh: replace all rows by those that stand, then go on.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="refresh, status: one JSON object instead of lines.")] = False,
    file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The replica's file. Default: replica.path.")
    ] = None,
    name: Annotated[str, typer.Option(help="Of the consumer; each file needs its own.")] = "replica",
) -> None:
    """A copy of the engagements that stand, in one DuckDB file: bring it up to date, tell its state, draw it. No Spark.

    refresh reads what changed since last time; a new replica, and one that changes no longer lead to, is filled with
    everything. page makes one HTML file that loads nothing: engagements per day, top persons, conversions, freshness.
    Exit status: 0, or 1 with the reason. Example: engagement-platform replica refresh
    """
    if action not in ACTIONS:
        raise typer.BadParameter(f"one of {', '.join(ACTIONS)}", param_hint="ACTION")
    from engagement_platform.replica.refresh import place_of
    from engagement_platform.settings import Settings

    settings = Settings()
    place = place_of(settings, file, name)
    if action == "refresh":
        _refresh(settings, place, resnapshot, as_json)
    elif action == "status":
        _status(settings, place, as_json)
    else:
        _page(settings, place, out or Path("replica.html"))


def _refresh(settings: Settings, place: Place, resnapshot: bool, as_json: bool) -> None:
    from engagement_platform.replica.refresh import refresh

    done = refresh(settings, place, resnapshot=resnapshot)
    if as_json:
        figures = {name: getattr(done, name) for name in ("snapshot", "batches", "inserted", "updated", "deleted")}
        typer.echo(json.dumps({**figures, "engagements": done.rows, "batch": done.state.batch}))
        return
    if done.snapshot is not None:
        typer.echo(f"All rows were replaced: {done.snapshot}")
    typer.echo(
        f"{done.inserted:,} inserted, {done.updated:,} updated, {done.deleted:,} deleted; {done.rows:,} stand now"
    )


def _status(settings: Settings, place: Place, as_json: bool) -> None:
    from datetime import UTC, datetime

    from engagement_platform.replica.summaries import as_json as told
    from engagement_platform.replica.summaries import lag_of, summary

    figures = told(summary(place), lag_of(settings, place), datetime.now(UTC))
    if as_json:
        typer.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        typer.echo(f"{name:>18}  {value:,}" if isinstance(value, int) else f"{name:>18}  {value}")


def _page(settings: Settings, place: Place, out: Path) -> None:
    from datetime import UTC, datetime

    from engagement_platform.replica.page import page, write_page
    from engagement_platform.replica.summaries import lag_of, summary

    write_page(out, page(summary(place), lag_of(settings, place), datetime.now(UTC)))
    typer.echo(f"Wrote {out}")

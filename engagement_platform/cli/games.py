"""Commands of games: replay reads their events once more, live-ops judges their figures."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from engagement_platform.cli.common import Finish, Follow, Json, callbacks, flag, print_batches, stop_signals

if TYPE_CHECKING:
    from engagement_platform.pipelines.games.live_ops import Judged

live_ops = typer.Typer(
    help="Figures of games by minute and features of players, which each batch of game events counts.",
    no_args_is_help=True,
)


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
    finish: Finish = False,
    as_json: Json = False,
) -> None:
    """Read objects of game events once more: rows that are lost come back, and no event is doubled.

    After a mended declaration, or a table that was taken back; stop the sensor first, or let it wait. A replay that
    was interrupted is finished first. Exit status: 0 when all is read, 1 with a one-line reason.
    Example: engagement-platform replay --date 2026-11-22
    """
    if finish == bool(prefix or date):
        raise typer.BadParameter("give --prefix or --date, or --finish alone")
    from engagement_platform.lake.session import spark_session
    from engagement_platform.pipelines.declarations.declared import declarations
    from engagement_platform.pipelines.games.feed import shipped
    from engagement_platform.pipelines.games.replay import folder_of
    from engagement_platform.pipelines.jobs import open_stores, parts_of, replay_game_events
    from engagement_platform.settings import Settings

    settings = Settings()
    feed = shipped(settings) if tables is None else declarations(settings).feed(tables)
    prefixes = [*(prefix or ()), *(folder_of(day.date(), feed.settings(settings)) for day in date or ())]
    stores = open_stores(settings)
    with spark_session(settings, feed.replay_job) as spark:
        reports = replay_game_events(prefixes, parts_of(spark, settings, stores, callbacks()), feed=feed)
        print_batches(reports, as_json, "Nothing is left to replay.")


@live_ops.command()
def run(
    until_idle: Annotated[bool, flag("--until-idle", "Judge what is complete, send, end.")] = False,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Judge the minutes of games that are complete, and send alerts about what is wrong.

    A game is judged when it has two days of figures, best four weeks. Exit status: 0, also when something is wrong with
    a game, or 1 with the reason. Example: engagement-platform live-ops run --follow
    """
    if until_idle == follow:
        raise typer.BadParameter("give --until-idle or --follow")
    from engagement_platform.pipelines.games.live_ops import LiveOpsJob
    from engagement_platform.settings import Settings

    job = LiveOpsJob(Settings())
    if until_idle:
        typer.echo(_line(job.run(), as_json))
        job.alerts.deliver()
        return
    last: Judged | None = None

    def show(done: Judged) -> None:
        nonlocal last
        if done != last:
            last = done
            typer.echo(_line(done, as_json))

    job.follow(stop_signals(), show)


@live_ops.command()
def player(
    game: Annotated[str, typer.Argument(help="Game, as its events say in game_id.")],
    player_id: Annotated[str, typer.Argument(metavar="PLAYER", help="Player of it, by pseudonym.")],
) -> None:
    """Show the features of one player as one JSON object: recency, frequency, spend, level, session length.

    Two look-ups by key. Exit status: 0, or 1 for a player without counted events.
    Example: engagement-platform live-ops player space-race p-17
    """
    from datetime import UTC

    from engagement_platform.engine.database import open_engine
    from engagement_platform.pipelines.games.live_ops_store import LiveOpsStore
    from engagement_platform.settings import Settings

    found = LiveOpsStore(open_engine(Settings().store_url)).player(game, player_id, datetime.now(UTC))
    if found is None:
        typer.echo(f"No event of {player_id} in {game} was counted", err=True)
        raise typer.Exit(1)
    typer.echo(json.dumps(vars(found)))


@live_ops.command("reset")
def reset_counts() -> None:
    """Count figures and features anew from the tables of events, a Spark job for each day. Alerts stay.

    After figures that are wrong were counted, or a restore of tables. No batch of game events is begun meanwhile. Exit
    status: 0, or 1 with the reason.
    Example: engagement-platform live-ops reset
    """
    from engagement_platform.pipelines.games.job import recount
    from engagement_platform.settings import Settings

    recount(Settings())
    typer.echo("Figures and features are those of the events in the tables")


def _line(done: Judged, as_json: bool) -> str:
    wrong = [{"game": one.game, "what": one.what, "since": one.detected_at.isoformat(), "ratio": round(one.ratio, 3),
              "change": one.change} for one in done.standing]  # fmt: skip
    until = None if done.until is None else done.until.isoformat()
    if as_json:
        return json.dumps({"until": until, "games": done.games, "standing": wrong})
    found = ", ".join(f"{one['game']}: {one['what']}" for one in wrong) or "nothing is wrong"
    return f"{len(done.games)} games judged until {until}; {found}"

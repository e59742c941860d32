"""Commands of live-ops: live-ops run, player, reset."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from engagement_platform.cli.common import stop_signals

if TYPE_CHECKING:
    from engagement_platform.pipelines.games.live_ops import Judged


group = typer.Typer(
    help="Figures of games by minute and features of players, which each batch of game events counts.",
    no_args_is_help=True,
)


@group.command()
def run(
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Judge what is complete, send, end.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a run instead of a line.")] = False,
) -> None:
    """Judge the minutes of games that are complete, and tell of what is wrong.

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

    def say(done: Judged) -> None:
        nonlocal last
        if done != last:
            last = done
            typer.echo(_line(done, as_json))

    job.follow(stop_signals(), say)


@group.command()
def player(
    game: Annotated[str, typer.Argument(help="Game, as its events say in game_id.")],
    player_id: Annotated[str, typer.Argument(metavar="PLAYER", help="Player of it, by pseudonym.")],
) -> None:
    """Show the features of one player as one JSON object: recency, frequency, spend, level, session length.

    Two look-ups by key. Exit status: 0, or 1 for a player nobody has seen.
    Example: engagement-platform live-ops player space-race p-17
    """
    from datetime import UTC, datetime

    from engagement_platform.engine.database import open_engine
    from engagement_platform.pipelines.games.live_ops_store import LiveOpsStore
    from engagement_platform.settings import Settings

    found = LiveOpsStore(open_engine(Settings().store_url)).player(game, player_id, datetime.now(UTC))
    if found is None:
        typer.echo(f"No event of {player_id} in {game} was counted", err=True)
        raise typer.Exit(1)
    typer.echo(json.dumps(vars(found)))


@group.command("reset")
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
    wrong = [{"game": one.game, "what": one.what, "since": one.told_at.isoformat(), "ratio": round(one.ratio, 3),
              "change": one.change} for one in done.standing]  # fmt: skip
    until = None if done.until is None else done.until.isoformat()
    if as_json:
        return json.dumps({"until": until, "games": done.games, "standing": wrong})
    said = ", ".join(f"{one['game']}: {one['what']}" for one in wrong) or "nothing is wrong"
    return f"{len(done.games)} games judged until {until}; {said}"

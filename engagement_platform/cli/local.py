"""Commands that set up and run everything on one machine: setup, services, up, produce, produce-games."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from engagement_platform.cli.common import Follow, stop_signals


def setup() -> None:
    """Check Java and download the jars that pyspark lacks into the user's cache. Starts nothing.

    Exit status: 0 all there, 1 with the reason. 40 to 90 s the first time, one second later.
    Example: engagement-platform setup
    """
    from engagement_platform.lake.jars import JarsUnavailable, find_java, resolve_jars, spark_jars
    from engagement_platform.settings import Settings

    settings = Settings()
    print(f"Java: {find_java()}")
    given = settings.spark.own_conf.get("spark.jars.ivySettings")
    mirror = Path(given) if given else None
    if settings.spark.jar_folder is None:
        try:
            resolve_jars("graph", settings.spark.jar_cache, settings=mirror)
        except JarsUnavailable:
            print("GraphFrames: not to be had here; only organizations above mutation.max_edges_per_group need it")
    jars = [*spark_jars(settings), *resolve_jars("kafka", settings.spark.jar_cache, settings=mirror)]
    print(f"Jars: {len(jars)} in {jars[0].parent.parent}")


def services(
    env_file: Annotated[
        Path | None, typer.Option(help="Write the settings to use here as KEY=VALUE lines, once everything answers.")
    ] = None,
    game_rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Events a second that simulated games post to the ingest server; 0 is off. Default: "
            "traffic.game_rate, and 0 with --env-file, whose reader brings events of their own.",
        ),
    ] = None,
) -> None:
    """Run Kafka, Spark Connect, S3 and SQS with the ingest server and simulated games before them, until Ctrl-C.

    In the foreground, on 127.0.0.1. Data stays in ENGAGEMENT_PLATFORM_HOME from start to start, but for that of S3 and
    SQS. Their emulator, the ingest server and games are left away where the extra `games` is not installed. Exit
    status: 0 when stopped, 1 with the reason.
    Example: engagement-platform services --env-file platform.env
    """
    from rich.console import Console

    from engagement_platform.local.up import run_services
    from engagement_platform.settings import Settings

    settings = Settings()
    if game_rate is None:
        game_rate = settings.traffic.game_rate if env_file is None else 0.0
    run_services(settings, env_file, Console(), stop_signals(), game_rate=game_rate)


def up(
    traffic: Annotated[
        float | None, typer.Option(min=0, help="Sample engagements a second; 0 is off. Default: traffic.rate.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--for", min=1, metavar="SECONDS", help="Produce for so long, ingest all of it, sum up, end."),
    ] = None,
) -> None:
    """Run everything on this machine: Kafka, Spark, Dagster with its UI, sample traffic. Ctrl-C stops it all.

    Needs about 6 GB of memory; what ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS or ENGAGEMENT_PLATFORM_SPARK__REMOTE
    name is used instead of being started. Exit status: 0 when stopped; with --for, 0 only if the figures balance and
    the traffic produced something.
    Example: engagement-platform up --for 120 --traffic 200
    """
    from rich.console import Console

    from engagement_platform.local.up import run_up
    from engagement_platform.settings import Settings

    settings = Settings()
    rate = settings.traffic.rate if traffic is None else traffic
    raise typer.Exit(run_up(settings, rate, seconds, Console(), stop_signals()))


def produce(
    sample: Annotated[int | None, typer.Option(min=0, help="Produce so many messages of the traffic model.")] = None,
    file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Produce each line of this file as it is.")
    ] = None,
    follow: Follow = False,
    topic: Annotated[
        str | None, typer.Option(help="Topic to produce to. Default: the one each message is for.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0, help="Messages a second; with --follow, new engagements a second.")
    ] = None,
) -> None:
    """Put messages on the broker: --sample N, --file F.jsonl, or --follow.

    The same seed makes the same sample, so a second one is all known duplicates. A --file goes to the engagements
    topic unless --topic says otherwise. Exit status: 0 when the broker took every message, 1 with the reason.
    Example: engagement-platform produce --sample 10000
    """
    if sum((sample is not None, file is not None, follow)) != 1:
        raise typer.BadParameter("give exactly one of --sample, --file and --follow")
    from engagement_platform.local.producing import produce_from
    from engagement_platform.settings import Settings

    stop = stop_signals()
    print(produce_from(Settings(), sample=sample, file=file, topic=topic, rate=rate, stop=stop))


def produce_games(
    sample: Annotated[int | None, typer.Option(min=1, help="Post so many lines of events.")] = None,
    follow: Follow = False,
    rate: Annotated[
        float | None, typer.Option(min=0, help="Events a second; 0 as fast as it goes. Default: traffic.game_rate.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="URL", help="Ingest server. Default: the one of `up` and `services`.")
    ] = None,
) -> None:
    """Post simulated game events to an ingest server, with the sample keys of `up`: --sample N or --follow.

    Events of every declared type with made-up personal data; some come twice, some are late, some are broken. The same
    seed makes the same events in a sample, but for their times. Exit status: 0, or 1 with the reason.
    Example: engagement-platform produce-games --sample 2000 --rate 0
    """
    if (sample is None) == (not follow):
        raise typer.BadParameter("give --sample or --follow")
    from engagement_platform.local.games import GameTraffic, post_events
    from engagement_platform.local.ingest import address, sample_keys
    from engagement_platform.pipelines.games.registry import registry
    from engagement_platform.settings import Settings

    settings = Settings()
    paced = settings.traffic.game_rate if rate is None else rate
    # Endless traffic is other events each time.
    seed, keys = time.time_ns() if follow else settings.traffic.seed, sample_keys(settings)
    traffic = GameTraffic(seed, registry(settings.games.declarations), personal=True)
    print(post_events(traffic, to or address(settings), keys, events=sample, rate=paced, stop=stop_signals()))

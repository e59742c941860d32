"""The command that compares ways of reading: perftest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def perftest(
    spec: Annotated[Path, typer.Argument(help="JSON: runs, operations, methods, queries, cluster.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Of chart and log. Default: <home>/perftest/ID.")
    ] = None,
) -> None:
    """Time each way of reading profile/current, every permutation of SPEC in a fresh Spark; print table and ranking.

    A permutation takes 20 to 60 s beside what it measures, most of it Spark starting. Figures are rows of
    perftest/timer in the lake; a permutation whose row is there is not run again, so the same command goes on after an
    interruption. The spec's token, and passwords in its conf, are in no log, table or command line of a remote cluster.
    Exit status: 0, or 1 with the reason. Example: engagement-platform perftest spec.json
    """
    from rich.console import Console

    from engagement_platform.perftest.report import rankings, save_chart, table, words
    from engagement_platform.perftest.run import prepare, run
    from engagement_platform.perftest.spec import read_spec
    from engagement_platform.perftest.timer import TIMER
    from engagement_platform.settings import Settings

    def say(line: str) -> None:
        typer.echo(line)

    settings = Settings()
    asked, text = read_spec(spec)
    test = prepare(asked, text, settings)
    folder = out or settings.home.expanduser() / "perftest" / test.perftest_id
    base = sum(batch.rows for batch in test.at.pending.values())
    say(f"{asked.name} ({test.perftest_id}): {base:,} changes wait in {test.root}")
    run(test, folder, say)
    found = rankings(test.rows)
    console = Console(width=110, highlight=False)
    for ranking in found:
        console.print(table(ranking), markup=False)
        for line in words(ranking):
            say(line)
    save_chart(found, folder / "perftest.png")
    say(f"Every run: engagement-platform read {TIMER.name}. Chart: {folder / 'perftest.png'}")

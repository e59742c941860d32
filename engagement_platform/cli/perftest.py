"""The command that compares ways of reading: perftest. What it does is `benchmarks/perftest`, in the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engagement_platform.errors import PlatformError


def perftest(
    spec: Annotated[Path, typer.Argument(help="JSON: runs, operations, methods, queries, cluster.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Of chart and log. Default: <home>/perftest/ID.")
    ] = None,
) -> None:
    """Time each way of reading profile/current, every permutation of SPEC in a fresh Spark; print table and ranking.

    Needs a checkout of the repository. A permutation takes 20 to 60 s beside what it measures, most of it Spark
    starting. Figures are rows of perftest/timer in the lake; a permutation whose row is there is not run again, so the
    same command goes on after an interruption. The spec's token, and passwords in its conf, are in no log, table or
    command line of a remote cluster.
    Exit status: 0, or 1 with the reason. Example: engagement-platform perftest spec.json
    """
    try:
        from benchmarks.perftest.run import measure_spec
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "benchmarks":
            raise
        raise PlatformError(
            "perftest needs the repository's checkout, whose folder benchmarks/ cannot be imported from here: run it "
            "in that folder as `python -m engagement_platform.cli perftest SPEC`."
        ) from None

    measure_spec(spec, out, typer.echo)

"""The command line: one module per command group, which parses, calls and prints.

What a command does is elsewhere, and imported only when it is called.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

import typer

from engagement_platform.cli import (
    alerts,
    consumers,
    erase,
    games,
    importing,
    ingest,
    jobs,
    layout,
    local,
    reading,
    restore,
)
from engagement_platform.errors import PlatformError, plain

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

PANELS = {
    "Run": (local.up, local.services, local.setup, jobs.run, jobs.status, jobs.batches, jobs.reset, jobs.recover),
    "Read": (reading.read, reading.verify, consumers.consume, consumers.consumers),
    "Tables": (layout.doctor, layout.optimize, layout.vacuum, layout.migrate, restore.restore),
    "Streams": (games.replay, jobs.page_views, ingest.ingest_server),
    "Privacy": (erase.erase,),
    "Develop": (local.produce, local.produce_games, reading.perftest),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.command("import", rich_help_panel="Tables")(importing.import_store)
app.add_typer(ingest.keys, name="ingest-key", rich_help_panel="Streams")
app.add_typer(games.live_ops, name="live-ops", rich_help_panel="Streams")
app.add_typer(ingest.pii, name="pii", rich_help_panel="Privacy")
app.add_typer(alerts.group, name="alert", rich_help_panel="Alerts")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"engagement-platform {version('engagement-platform')}")
        raise typer.Exit


@app.callback()
def engagement_platform(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Events that change after they were written: ingested exactly once, mutated in bulk, read incrementally."""


def _hide_types_of_flags(command: Any) -> None:
    """Typer (0.29) shows `<bool>` for options that take no value, its own `--help` among them."""
    # Its classes are private to it in recent versions, so none is named.
    for option in command.get_params(command.context_class(command)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for one in getattr(command, "commands", {}).values():
        _hide_types_of_flags(one)


def main() -> None:
    """Entry point of `engagement-platform`: errors meant for people become one line on stderr, never a traceback."""
    # Whatever the shell's umask is: files of the home folder are for their owner only. Children inherit it.
    os.umask(0o077)
    # A terminal that lacks a letter shows its number; stderr does so anyway.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        command = typer.main.get_command(app)
        _hide_types_of_flags(command)
        command()
    except PlatformError as error:
        # A name in it may be of data.
        print(*map(plain, str(error).split("\n")), sep="\n", file=sys.stderr)
        sys.exit(1)
    except ValueError as error:
        from engagement_platform.settings import refusal

        if (reason := refusal(error)) is None:
            raise
        print(reason, file=sys.stderr)
        sys.exit(2)

"""The command line: one module per command group, which parses, calls and prints.

What a command does is elsewhere, and imported only when it is called.
"""

from __future__ import annotations

import sys

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
    live_ops,
    local,
    maintenance,
    perftest,
    replica,
    restore,
)
from engagement_platform.errors import PlatformError

app = typer.Typer(
    help="Events that change after they were written: ingested exactly once, mutated in bulk, read incrementally.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    *(local.setup, local.services, local.up, local.produce, local.produce_games),
    *(jobs.run, jobs.status, jobs.read, jobs.verify, jobs.reset),
    *(layout.doctor, maintenance.optimize, maintenance.vacuum, maintenance.migrate),
    *(restore.restore, jobs.recover, consumers.consume, consumers.consumers),
    *(ingest.ingest_server, ingest.ingest_key, ingest.pii, erase.erase, replica.replica),
):
    app.command()(command)
app.command("import")(importing.import_store)
app.command()(perftest.perftest)
app.add_typer(alerts.group, name="alert")
app.command()(games.replay)
app.add_typer(live_ops.group, name="live-ops")
app.command()(jobs.page_views)


def main() -> None:
    """Entry point of `engagement-platform`: errors meant for people become one line on stderr, never a traceback."""
    try:
        app()
    except PlatformError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except ValueError as error:
        if (reason := _unusable_settings(error)) is None:
            raise
        print(reason, file=sys.stderr)
        sys.exit(2)


def _unusable_settings(error: ValueError) -> str | None:
    """A sentence for settings that cannot be read, None for any other error. Values are left out: some are secrets."""
    import tomllib

    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from engagement_platform.settings import ENV_PREFIX

    if isinstance(error, ValidationError) and error.title == "Settings":
        problems = error.errors(include_input=False, include_url=False)
        wrong = (f"{ENV_PREFIX}{'__'.join(map(str, problem['loc'])).upper()}: {problem['msg']}" for problem in problems)
        return f"Settings cannot be used (variable or line of platform.toml): {'; '.join(wrong)}. Nothing was started."
    if isinstance(error, SettingsError | tomllib.TOMLDecodeError):
        return f"Settings cannot be read: {error}. Nothing was started."
    return None

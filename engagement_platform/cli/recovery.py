"""The command that brings the stores up to the tables: recover.

Thin: parse, call, print.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    app.command()(recover)


def recover(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what the stores lack.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each job.")] = False,
) -> None:
    """Bring stores from a backup, or new ones, up to what the tables' transactions say; then runs go on.

    Each job's last batch in the tables is recorded with the manifest that its commits carry: as finished, or as
    unfinished, which the next run finishes without writing anything twice. Changes the stores only, and nothing when
    called again. Reads all entries of all tables' logs, no data: seconds for some thousand commits. Refused while a
    job runs. Not brought back: how far consumers have read, keys of pseudonyms, alerts.
    Exit status: 0; 1 with the reason, also when a job's commits are no longer in any log: only a reset goes on then.
    Example: engagement-platform recover --dry-run
    """
    from engagement_platform.engine.recovery import recover as recovered
    from engagement_platform.jobs import open_stores
    from engagement_platform.settings import Settings

    found = recovered(open_stores(Settings()), dry_run=dry_run)
    for one in found:
        if as_json:
            batch = None if one.manifest is None else {"app_id": one.manifest.app_id, "batch_id": one.manifest.batch_id}
            typer.echo(json.dumps({"job": one.job, "batch": batch, "recorded_as": one.state, "lost": one.is_lost}))
        else:
            typer.echo(str(one))
    if not found and not as_json:
        typer.echo("No table holds a batch.")
    raise typer.Exit(1 if any(one.is_lost for one in found) else 0)

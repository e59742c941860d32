"""Commands of the ingest server and of personal data: ingest-server, ingest-key, pii. Erasing is `cli.erase`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from engagement_platform.cli.common import Json, print_json, print_table, subject_id

if TYPE_CHECKING:
    from engagement_platform.ingest_server.keys import IngestKeys
    from engagement_platform.pii.vault import Vault

keys = typer.Typer(help="Make, show or revoke API keys of games.", no_args_is_help=True)
pii = typer.Typer(help="Read personal data that the ingest server took out, or rotate its keys.", no_args_is_help=True)


def ingest_server() -> None:
    """Take events of games by HTTP until Ctrl-C: POST /v1/events. What it acknowledges survives its death.

    Settings are those of ingest_server, pii and games; personal data of the types in games.declarations is taken out,
    too. What is in the spool is delivered before it ends, as far as ingest_server.stop_within allows.
    Exit status: 0 when stopped, 1 with the reason when it cannot start.
    Example: engagement-platform ingest-server
    """
    from engagement_platform.errors import require

    require("server", "The ingest server")

    from engagement_platform.ingest_server.server import serve
    from engagement_platform.pipelines.games.registry import with_personal_fields
    from engagement_platform.settings import Settings

    serve(with_personal_fields(Settings()), lambda sentence: print(sentence, flush=True))


@keys.command()
def add(game: Annotated[str, typer.Argument(help="The game.")], as_json: Json = False) -> None:
    """Make a key, which is shown once; the stores have a hash of it.

    A running server knows it after ingest_server.key_refresh. Exit status: 0, or 1 with the reason.
    Example: engagement-platform ingest-key add puzzle
    """
    made, text = _keys().add(game)
    shown = {"key_id": made.key_id, "game": made.game, "key": text}
    typer.echo(json.dumps(shown) if as_json else f"Key of {made.game}, shown this once: {text}")


@keys.command("list")
def list_keys(as_json: Json = False) -> None:
    """Show all keys, revoked ones too. Example: engagement-platform ingest-key list"""
    rows = [
        {"key_id": key.key_id, "game": key.game, "created": key.created_ts.isoformat(),
         "revoked": key.revoked_ts.isoformat() if key.revoked_ts else None}
        for key in _keys().all()
    ]  # fmt: skip
    if as_json:
        typer.echo(json.dumps({"keys": rows}))
    elif rows:
        shown = [(row["key_id"], row["game"], row["revoked"] or "valid") for row in rows]
        print_table(("key", "game", "revoked"), shown)
    else:
        typer.echo("There are no keys.")


@keys.command()
def revoke(key_id: Annotated[str, typer.Argument(help="As `list` shows it.")], as_json: Json = False) -> None:
    """Revoke a key; a running server refuses it after ingest_server.key_refresh. Exit status: 0, 1 for no such key."""
    revoked = _keys().revoke(key_id)
    shown = {"key_id": revoked.key_id, "game": revoked.game}
    typer.echo(json.dumps(shown) if as_json else f"The key {revoked.key_id} of {revoked.game} is revoked.")


def _keys() -> IngestKeys:
    from engagement_platform.ingest_server.keys import IngestKeys
    from engagement_platform.settings import Settings

    return IngestKeys(Settings().store_url)


Purpose = Annotated[str, typer.Option(help="What for; one of pii.purposes. It is written down.")]


@pii.command()
def read(
    subject: Annotated[str, typer.Option(help="Whose personal data; - reads the id from standard input.")],
    game: Annotated[str | None, typer.Option(help="Only of this game.")] = None,
    purpose: Purpose = "",
) -> None:
    """Read personal data of a subject as JSON lines. Every read is in the table pii/audit before it is decrypted.

    Exit status: 0, or 1 with the reason. Example: engagement-platform pii read --subject p-42 --purpose access-request
    """
    from engagement_platform.engine.owner import this_user

    for one in _vault().read(subject_id(subject), purpose=purpose, reader=this_user(), game=game):
        print_json({**vars(one), "received_ts": one.received_ts.isoformat()})


@pii.command()
def refused(game: Annotated[str, typer.Option(help="Of which game.")], purpose: Purpose = "") -> None:
    """Read refused events of a game as JSON lines; written down like `pii read`.

    Exit status: 0, or 1 with the reason. Example: engagement-platform pii refused --game puzzle --purpose support
    """
    from engagement_platform.engine.owner import this_user

    for row, body in _vault().refused(game, purpose=purpose, reader=this_user()):
        shown = {name: str(row[name]) for name in ("refused_id", "reason_code", "reason", "received_ts")}
        print_json({**shown, "body": body.decode(errors="replace")})


@pii.command()
def rotate() -> None:
    """Encrypt the vault with new data keys under a new master key, and forget the former ones.

    With KMS set pii.kms_key_id to the new key first. Everything else may go on meanwhile. Interrupted, call it again.
    Exit status: 0, or 1 with the reason. Example: engagement-platform pii rotate
    """
    from engagement_platform.pii import rotation

    done = rotation.rotate(_vault())
    typer.echo(f"{done.keys:,} keys are wrapped by {done.version} now, {done.rows:,} rows are encrypted anew.")
    typer.echo(rotation.NO_HELP)


def _vault() -> Vault:
    from engagement_platform.pii.vault import open_vault
    from engagement_platform.settings import Settings

    return open_vault(Settings())

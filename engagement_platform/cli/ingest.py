"""Commands of the ingest server and of personal data: ingest-server, ingest-key, pii. Erasing is `cli.erase`."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def ingest_server() -> None:
    """Take events of games by HTTP until Ctrl-C: POST /v1/events. What it acknowledges survives its death.

    Settings are those of ingest_server, pii and games; personal data of the types in games.declarations is taken out,
    too. What is in the spool is delivered before it ends, as far as ingest_server.stop_within allows.
    Exit status: 0 when stopped, 1 with the reason when it cannot start.
    Example: engagement-platform ingest-server
    """
    from engagement_platform.ingest_server.server import serve
    from engagement_platform.pipelines.games.registry import with_personal_fields
    from engagement_platform.settings import Settings

    serve(with_personal_fields(Settings()), lambda sentence: print(sentence, flush=True))


def ingest_key(
    action: Annotated[str, typer.Argument(help="add, list or revoke.")],
    name: Annotated[str | None, typer.Argument(help="add: the game. revoke: the key's id.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Make, show or revoke API keys of games. A key is shown once, when it is made; the stores have a hash of it.

    A running server knows of it after ingest_server.key_refresh. Exit status: 0, or 1 with the reason.
    Example: engagement-platform ingest-key add puzzle
    """
    from engagement_platform.ingest_server.keys import IngestKeys
    from engagement_platform.settings import Settings

    if action not in ("add", "list", "revoke") or (name is None) != (action == "list"):
        raise typer.BadParameter("add GAME, list, or revoke KEY_ID")
    keys = IngestKeys(Settings().store_url)
    if action == "list":
        rows = [
            {"key_id": key.key_id, "game": key.game, "created": key.created_ts.isoformat(),
             "revoked": key.revoked_ts.isoformat() if key.revoked_ts else None}
            for key in keys.all()
        ]  # fmt: skip
        lines = [f"{row['key_id']}  {row['game']}  {row['revoked'] or 'valid'}" for row in rows]
        typer.echo(json.dumps({"keys": rows}) if as_json else "\n".join(lines) or "There are no keys.")
    elif action == "add":
        made, text = keys.add(str(name))
        told = {"key_id": made.key_id, "game": made.game, "key": text}
        typer.echo(json.dumps(told) if as_json else f"Key of {made.game}, shown this once: {text}")
    else:
        revoked = keys.revoke(str(name))
        told = {"key_id": revoked.key_id, "game": revoked.game}
        typer.echo(json.dumps(told) if as_json else f"The key {revoked.key_id} of {revoked.game} is revoked.")


def pii(
    action: Annotated[str, typer.Argument(help="read, refused or rotate.")],
    subject: Annotated[str | None, typer.Option(help="read: whose personal data.")] = None,
    game: Annotated[str | None, typer.Option(help="read: only of this game. refused: of which game.")] = None,
    purpose: Annotated[str, typer.Option(help="What for; one of pii.purposes. It is written down.")] = "",
) -> None:
    """Read personal data of a subject, or refused events of a game, as JSON lines; or rotate the master key.

    Every read is in the table pii/audit before anything is decrypted. A rotation wraps every key anew and forgets the
    former master key; with KMS set pii.kms_key_id to the new key first. Exit status: 0, or 1 with the reason.
    Example: engagement-platform pii read --subject p-42 --purpose access-request
    """
    from engagement_platform.pii.vault import open_vault
    from engagement_platform.settings import Settings

    wanted = {"read": subject, "refused": game, "rotate": ""}
    if action not in wanted or wanted[action] is None:
        raise typer.BadParameter("read --subject ID, refused --game GAME, or rotate")
    vault = open_vault(Settings())
    if action == "rotate":
        version, count = vault.keyring.rotate()
        typer.echo(f"{count:,} keys are wrapped by {version} now.")
    elif action == "read":
        for one in vault.read(str(subject), purpose=purpose, reader=_reader(), game=game):
            typer.echo(json.dumps({**vars(one), "received_ts": one.received_ts.isoformat()}))
    else:
        for row, body in vault.refused(str(game), purpose=purpose, reader=_reader()):
            said = {name: str(row[name]) for name in ("refused_id", "reason_code", "reason", "received_ts")}
            typer.echo(json.dumps({**said, "body": body.decode(errors="replace")}))


def _reader() -> str:
    import getpass
    import socket

    return f"{getpass.getuser()}@{socket.gethostname()}"

"""The ingest server for one machine: its process, which delivers into the bucket of `aws`, and API keys to try it with.

What the server does is `ingest_server`; simulated games that post to it are `games`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from engagement_platform.engine.durable_files import private_folder
from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server.keys import IngestKeys
from engagement_platform.local import aws
from engagement_platform.local.ports import LOCALHOST, answers_http
from engagement_platform.local.process import Child
from engagement_platform.settings import ENV_PREFIX, Settings

NAME = "ingest-server"


def address(settings: Settings) -> str:
    return f"http://{LOCALHOST}:{settings.embedded.ingest_port}"


def key_folder(settings: Settings) -> Path:
    """Where the sample keys are: one file for each game, named like it, for its owner only."""
    return settings.home.expanduser().absolute() / "ingest" / "keys"


def ingest_child(settings: Settings, variables: Mapping[str, str]) -> Child:
    """The server as a process to supervise, once the bucket is there. variables: the settings of all clients.

    When it stops, what it has not delivered stays in its spool for the next start: the emulator forgets its objects.
    """
    ours = {
        "HOST": LOCALHOST,
        "PORT": str(settings.embedded.ingest_port),
        "HEALTH_PORT": "0",
        "SINK": "s3",
        "STOP_WITHIN": "PT0S",
    }
    if "segment_age" not in settings.ingest_server.model_fields_set:
        # So that rows show within half a minute; at the sample's 20 events a second that is 200 lines an object.
        ours["SEGMENT_AGE"] = "PT10S"
    return Child(
        name=NAME,
        command=[sys.executable, "-m", "engagement_platform.cli", "ingest-server"],
        env={**variables, **{f"{ENV_PREFIX}INGEST_SERVER__{name}": value for name, value in ours.items()}},
        ready=lambda: answers_http(f"{address(settings)}/openapi.json"),
        after=(aws.NAME,),
        # Before the emulator, which is of stage 0.
        stage=1,
    )


def make_sample_keys(settings: Settings, games: Iterable[str]) -> None:
    """An API key for each game, in its file; those that are there and valid stay. Raises StoresUnavailable."""
    folder = key_folder(settings)
    private_folder(folder)
    keys = IngestKeys(settings.store_url)
    valid = {key.key_id for key in keys.all() if key.revoked_ts is None}
    for game, text in {**dict.fromkeys(games, ""), **_keys_in(folder)}.items():
        # "ep_<id>_<secret>"; a home whose database is gone has keys that no server knows.
        if "_" in text and text.split("_")[1] in valid:
            continue
        _, made = keys.add(game)
        (folder / game).unlink(missing_ok=True)
        with os.fdopen(os.open(folder / game, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(made)


def sample_keys(settings: Settings) -> dict[str, str]:
    """Game to key. Raises PlatformError where there are none."""
    folder = key_folder(settings)
    found = _keys_in(folder) if folder.is_dir() else {}
    if not found:
        raise PlatformError(
            f"There are no sample API keys in {folder}, so nothing was sent. `engagement-platform up` and `services` "
            "make them at their first start."
        )
    return found


def _keys_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in sorted(folder.iterdir()) if path.is_file()}

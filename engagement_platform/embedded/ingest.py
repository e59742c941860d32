"""The ingest server for one machine: its process, which delivers into the bucket of `aws`, and API keys to try it with.

What the server does is `ingest_server`; simulated games that post to it are `game_traffic`.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

from engagement_platform.embedded import aws
from engagement_platform.embedded.ports import LOCALHOST
from engagement_platform.embedded.process import Child
from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server.keys import IngestKeys
from engagement_platform.settings import ENV_PREFIX, Settings

NAME = "ingest-server"
# As old a segment's object is in the bucket soon, so that whoever tries it sees rows within half a minute. At the
# sample's 20 events a second that is 200 lines an object.
_SEGMENT_AGE = "PT10S"


class SampleKeyMissing(PlatformError):
    """Simulated games have no API key."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"There are no sample API keys in {folder}. Nothing was sent. `engagement-platform up` and `services` make "
            "them at their first start."
        )


def address(settings: Settings) -> str:
    """Where the server is."""
    return f"http://{LOCALHOST}:{settings.embedded.ingest_port}"


def key_folder(settings: Settings) -> Path:
    """Where the sample keys are: one file for each game, named like it, for its owner only."""
    return settings.home.expanduser().absolute() / "ingest" / "keys"


def ingest_child(settings: Settings, variables: Mapping[str, str]) -> Child:
    """The server as a process to supervise, once the bucket is there. variables: the settings of all clients.

    When it stops, what it has not delivered stays in its spool for the next start: the emulator forgets its objects.
    """
    ours = {
        "INGEST_SERVER__HOST": LOCALHOST,
        "INGEST_SERVER__PORT": str(settings.embedded.ingest_port),
        "INGEST_SERVER__SINK": "s3",
        "INGEST_SERVER__STOP_WITHIN": "PT0S",
    }
    if "segment_age" not in settings.ingest_server.model_fields_set:
        ours["INGEST_SERVER__SEGMENT_AGE"] = _SEGMENT_AGE
    return Child(
        name=NAME,
        command=[sys.executable, "-m", "engagement_platform.cli", "ingest-server"],
        env={**variables, **{f"{ENV_PREFIX}{name}": value for name, value in ours.items()}},
        ready=lambda: _answers(settings),
        after=(aws.NAME,),
        # Before the emulator, which is of stage 0.
        stage=1,
    )


def make_sample_keys(settings: Settings, games: Iterable[str]) -> None:
    """An API key for each game, in its file; those that are there and valid stay. Raises StoresUnavailable."""
    folder = key_folder(settings)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = IngestKeys(settings.store_url)
    valid = {key.key_id for key in keys.all() if key.revoked_ts is None}
    for game, text in {**dict.fromkeys(games, ""), **_texts(folder)}.items():
        # "ep_<id>_<secret>"; a home whose database is gone has keys that nobody knows.
        if "_" in text and text.split("_")[1] in valid:
            continue
        _, made = keys.add(game)
        path = folder / game
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(made)


def sample_keys(settings: Settings) -> dict[str, str]:
    """Game to key. Raises SampleKeyMissing."""
    folder = key_folder(settings)
    found = _texts(folder) if folder.is_dir() else {}
    if not found:
        raise SampleKeyMissing(folder)
    return found


def _texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in sorted(folder.iterdir()) if path.is_file()}


def _answers(settings: Settings) -> bool:
    try:
        with urllib.request.urlopen(f"{address(settings)}/healthz", timeout=1) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        return False

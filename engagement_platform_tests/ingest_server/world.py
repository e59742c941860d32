"""A real server in a process of its own, spoken to by HTTP, and what it has left on the disk."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engagement_platform.ingest_server.keys import IngestKeys
from engagement_platform.ingest_server.sinks import objects
from engagement_platform.pii.vault import open_vault
from engagement_platform.settings import Settings

WITHIN_S = 240.0


@dataclass(frozen=True)
class Reply:
    """One answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        """The body's JSON."""
        return json.loads(self.body)


class Server:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, health: int) -> None:
        self.process, self.port, self.health = process, port, health

    def call(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """One request on a connection of its own."""
        port = self.health if path in ("/healthz", "/readyz", "/metrics") else self.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return Reply(response.status, dict(response.headers), response.read())
        finally:
            connection.close()

    def send(self, key: str, body: bytes, kind: str = "application/json", **headers: str) -> Reply:
        """Send a body with a key."""
        said = {"Content_Type": kind, "Authorization": f"Bearer {key}", **headers}
        return self.call("POST", "/v1/events", body, **said)

    def post(self, key: str, events: object) -> Reply:
        """Send events as JSON."""
        return self.send(key, json.dumps(events).encode())

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> tuple[int, str]:
        """Ask it to stop; (status, what it said since)."""
        self.process.send_signal(signal.SIGTERM)
        said, _ = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, said.decode()


@contextmanager
def server(home: Path, **env: str) -> Iterator[Server]:
    """A server on a home folder; killed at the end when it still runs. env: settings, without their prefix."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ENGAGEMENT_PLATFORM_")}
    ours = {"HOME": str(home), "INGEST_SERVER__PORT": "0", "INGEST_SERVER__HEALTH_PORT": "0", **env}
    process = subprocess.Popen(
        [sys.executable, "-m", "engagement_platform.cli", "ingest-server"],
        env={**clean, **{f"ENGAGEMENT_PLATFORM_{name}": value for name, value in ours.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        umask=0,
    )
    try:
        yield Server(process, *_ports(process))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _ports(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], WITHIN_S)
    assert ready, f"the server said nothing within {WITHIN_S} s"
    line = process.stdout.readline().decode()
    assert line.startswith("Listening on http://127.0.0.1:"), line + process.stdout.read().decode()
    listening, _, health = line.split(";")
    return int(listening.rpartition(":")[2]), int(health.rpartition(" ")[2])


def key_for(home: Path, game: str) -> str:
    """A new key of a game."""
    _, text = IngestKeys(Settings(home=home).store_url).add(game)
    return text


def event(event_id: str, **more: object) -> dict[str, object]:
    """An event with what it must have."""
    return {"event_id": event_id, "event_type": "level_up", "event_ts": "2026-11-22T10:00:00Z", **more}


def stored(folder: Path) -> list[dict[str, Any]]:
    """Every event in the objects below a folder, in their order."""
    lines = [line for path in objects(folder) for line in gzip.decompress(path.read_bytes()).splitlines()]
    return [json.loads(line) for line in lines]


def refused(home: Path, game: str = "puzzle") -> list[bytes]:
    """Every refused event of a game that the vault keeps."""
    kept = open_vault(Settings(home=home)).refused(game, purpose="support", reader="test")
    return [body for _, body in kept]


def wait_until(true: Callable[[], bool], or_say: str, within_s: float = WITHIN_S) -> None:
    """Return when it is true."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, or_say
        time.sleep(0.02)


def ids(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Their ids."""
    return [str(one["event_id"]) for one in events]

"""Requests sent by vegeta (github.com/tsenart/vegeta), a public load generator, for benchmarks that find it installed.

What is sent and what the answers mean is the caller's.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

# More than this at once and a server is not slow but gone.
_MOST_AT_ONCE = 1000


@dataclass(frozen=True)
class Answer:
    """To one request."""

    number: int
    """Of the body that was sent, from 0."""
    status: int
    """0 where nothing was answered."""
    sent_s: float
    """When it was sent, seconds since 1970."""
    latency_s: float
    """From sending to the whole answer."""


def installed() -> bool:
    """Whether the program is on the path."""
    return shutil.which("vegeta") is not None


def version() -> str:
    """Its name and version, the latter as far as it knows."""
    said = subprocess.run(["vegeta", "-version"], capture_output=True, text=True, check=True).stdout
    found = [line.partition(":")[2].strip() for line in said.splitlines() if line.startswith("Version")]
    return " ".join(["vegeta", *found]).strip()


def attack(
    folder: Path, url: str, headers: Mapping[str, str], bodies: Iterable[bytes], *, seconds: float,
    every_s: float | None, workers: int,
) -> list[Answer]:  # fmt: skip
    """Post each body once, in their order, until they or the time are over. Answers in the order of sending.

    every_s: a request is sent so often, however long answers take; None: each of `workers` connections sends the next
    one when it was answered. Each request says its number as `n` in the query.
    """
    targets, results = folder / "targets.json", folder / "results.bin"
    with targets.open("w") as file:
        for number, body in enumerate(bodies):
            said = {
                "method": "POST", "url": f"{url}?n={number}", "body": base64.b64encode(body).decode(),
                "header": {name: [value] for name, value in headers.items()},
            }  # fmt: skip
            file.write(json.dumps(said) + "\n")
    if every_s is None:
        pace = ["-rate=0", f"-max-workers={workers}", f"-workers={workers}"]
    else:
        # Whole requests in a whole time, so in micros: 75 requests a second are 75 per 1s, 37.5 are not.
        pace = [f"-rate={round(1e6 / every_s)}/1000000s", f"-max-workers={_MOST_AT_ONCE}", f"-workers={workers}"]
    command = [
        "vegeta", "attack", "-format=json", "-lazy", f"-targets={targets}", f"-duration={seconds}s", "-timeout=60s",
        f"-output={results}", *pace,
    ]  # fmt: skip
    subprocess.run(command, check=True)
    encoded = subprocess.run(
        ["vegeta", "encode", "-to=json", str(results)], check=True, capture_output=True, text=True
    ).stdout
    found = sorted((json.loads(line) for line in encoded.splitlines()), key=lambda one: int(one["seq"]))
    # Where the bodies are over, the last request was none.
    sent = [one for one in found if "?n=" in one.get("url", "")]
    return [
        Answer(
            number=int(one["url"].rpartition("=")[2]),
            status=int(one["code"]),
            sent_s=datetime.fromisoformat(one["timestamp"]).timestamp(),
            latency_s=int(one["latency"]) / 1e9,
        )
        for one in sent
    ]

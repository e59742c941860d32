"""A peer's process as seen from here: started, asked line by line, ended whatever happens.

What can be asked is `protocol`'s; what is made of the answers is `measure`'s.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import Environment, PeerFailedError

ROOT = Path(__file__).parents[2]
ANSWERS_WITHIN_S = 3600.0
"""For one step; a peer that takes longer has failed."""

# What would lead a peer's pyspark to the product's Spark, or its Python to the product's packages.
_NOT_PASSED_ON = (
    "SPARK_REMOTE",
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
    "VIRTUAL_ENV",
)


@dataclass(frozen=True)
class Step:
    """What a step took. bytes: of all files that it wrote."""

    seconds: float
    bytes: int
    rows: int | None


class Client:
    """The asking side of one process."""

    def __init__(self, process: subprocess.Popen[str], log: Path, within_s: float) -> None:
        self._process, self._log, self._within_s = process, log, within_s

    def ask(self, do: str, **told: object) -> Mapping[str, Any]:
        """One line there, one back. Raises PeerFailedError with what the peer says, or where its log is."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Timer(self._within_s, self.kill)
        late.start()
        try:
            self._process.stdin.write(json.dumps({"do": do, **told}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            late.cancel()
        if not line:
            raise PeerFailedError(f"{do}: the process ended or took over {self._within_s:g} s; it said: {self._last()}")
        answer: Mapping[str, Any] = json.loads(line)
        if "failed" in answer:
            raise PeerFailedError(f"{do}: {answer['failed']}")
        return answer

    def step(self, do: str, **told: object) -> Step:
        """Something that is timed. Raises PeerFailedError."""
        answer = self.ask(do, **told)
        return Step(float(answer["seconds"]), int(answer["bytes"]), answer.get("rows"))

    def kill(self) -> None:
        """End it and what it started, at once."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _last(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][-300:] if lines else "nothing"


@contextmanager
def running(
    environment: Environment, folder: Path, *, memory: str, parallelism: int, within_s: float = ANSWERS_WITHIN_S
) -> Iterator[tuple[Client, Mapping[str, str]]]:
    """The process of a peer, opened in a folder where it leaves its log too; and its versions.

    Raises PeerFailedError.
    """
    folder.mkdir(parents=True)
    log = folder / "peer.log"
    passed = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    with log.open("w") as said:
        process = subprocess.Popen(
            [str(environment.python), "-m", f"benchmarks.peers.{environment.module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            cwd=folder,
            env={**passed, "PYTHONPATH": str(ROOT)},
            # A group of its own, so that a JVM ends with it.
            start_new_session=True,
        )
    client = Client(process, log, within_s)
    try:
        versions = client.ask(
            "open",
            folder=str(folder / "files"),
            jars=[str(jar) for jar in environment.jars],
            memory=memory,
            parallelism=parallelism,
        )
        yield client, versions
    finally:
        _end(process, client)


def _end(process: subprocess.Popen[str], client: Client) -> None:
    """Its input ends, and so does it; not later than in half a minute."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.close()
        process.wait(timeout=30)
    except (BrokenPipeError, subprocess.TimeoutExpired):
        client.kill()
        process.wait()
    process.stdout.close()

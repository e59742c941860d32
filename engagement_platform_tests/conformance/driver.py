"""Drives the process that runs the jobs of a storm (`driven`), and starts it anew where it was killed."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERBOSE = bool(os.environ.get("TESTS_FAULTS_VERBOSE"))
"""Print what happens, while something is being looked into."""
PATIENCE_S = 400.0
"""Longer silence is a failure; a client of Spark tries again for a minute and more."""


STORES, LAKE = "stores", "lake"
"""What an attempt to write is one to."""


class JobsEnded(AssertionError):
    """The process of the jobs ended by itself, or says nothing any more."""


@dataclass(frozen=True)
class Event:
    """What was said, when (monotonic), and of which job. why: the kind of a fault that is due, the text of an error.

    An attempt to write, `wrote`, is named STORES or LAKE; when it was over, and no why where it succeeded.
    """

    what: str
    name: str
    when: float
    why: str = ""
    began: float = 0.0


class Jobs:
    """The process, started when it is needed. types: as `driven.main` takes it. log: what it writes to stderr."""

    def __init__(self, environment: Mapping[str, str], types: Path, log: Path) -> None:
        self._environment, self._types, self._log = dict(environment), types, log
        self._process: subprocess.Popen[str] | None = None
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._killed = False

    def run(
        self, names: Sequence[str], faults: Sequence[Mapping[str, Any]], happens: Callable[[str, str], None]
    ) -> list[Event]:
        """Run jobs until they are idle, one after the other; what happened meanwhile.

        faults: as `driven.main` reads them. happens: does to a job what a kind of fault is while the job waits at the
        point, or goes on (`pass`) since so many seconds; it may kill the process. A fault of a job that was done before
        is left out, and is `missed`. Raises JobsEnded.
        """
        left, due, events = list(names), list(faults), list[Event]()
        self._ask(left, due)
        while True:
            said = self._next()
            if said is None:
                if not self._killed:
                    raise JobsEnded(f"the process of the jobs ended: {self._log.read_text()[-2000:]}")
                self._ask(left, due)
                continue
            if "idle" in said:
                return events
            (what, name), *_ = said.items()
            when, began = said.get("when", time.monotonic()), said.get("began", 0.0)
            events.append(Event(what, str(name), when, str(said.get("why", "")), began))
            if VERBOSE:
                print(f"{events[-1].when:.1f} {what} {name} {events[-1].why[:300]}", file=sys.stderr)
            if what == "done":
                left.remove(name)
            elif what == "at":
                (fault,) = [one for one in due if (one["job"], one["kind"]) == (name, said["why"])]
                due.remove(fault)
                if fault["does"] == "pass":
                    time.sleep(fault["seconds"])
                    if self._is_done(str(name)):
                        events.append(Event("missed", str(name), time.monotonic(), fault["kind"]))
                    else:
                        happens(str(name), fault["kind"])
                elif fault["does"] == "pause":
                    happens(str(name), fault["kind"])
                    if not self._killed:
                        self._send("")

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._killed = True
        self._process.kill()

    def close(self) -> None:
        """Let it end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_done(self, name: str) -> bool:
        """Whether a job has said so, and nobody has listened yet."""
        with self._said.mutex:
            return any(said is not None and said.get("done") == name for said in self._said.queue)

    def _ask(self, names: Sequence[str], faults: Sequence[Mapping[str, Any]]) -> None:
        if self._process is None or self._killed:
            self._start()
        self._send(json.dumps({"jobs": list(names), "faults": list(faults)}))

    def _start(self) -> None:
        self._said, self._killed = queue.Queue(), False
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engagement_platform_tests.conformance.driven", str(self._types)],
                env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        threading.Thread(target=_pass_on, args=(self._process, self._said), daemon=True).start()

    def _send(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # Its output ends, too, and says why.
            pass

    def _next(self) -> dict[str, Any] | None:
        try:
            return self._said.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise JobsEnded(f"no word for {PATIENCE_S:.0f} s: {self._log.read_text()[-2000:]}") from None


def _pass_on(process: subprocess.Popen[str], said: queue.Queue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            said.put(json.loads(line))
    process.wait()
    said.put(None)

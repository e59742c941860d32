"""Programs, each a process forked from one that has imported what they need: that is half of their work."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from subprocess import CompletedProcess

from engagement_platform_tests.conformance import disturbed
from engagement_platform_tests.conformance.refusals import name_errors
from engagement_platform_tests.ingestion.test_whole_path import Machine

WITHIN_S = 600
_FORKING = multiprocessing.get_context("forkserver")
# Modules that start no thread and open no channel; the server forks before there is any.
_FORKING.set_forkserver_preload(
    [
        "engagement_platform.cli",
        "engagement_platform.erasing.erase",
        "engagement_platform.maintenance.rollback.job",
        "examples.replica",
        "pyspark.sql.connect.session",
        "pyspark.sql.connect.functions",
        "dagster._cli",
        __name__,
    ]
)
_NUMBERS = count()


class Program:
    """A program that was started. at: the crash point at which it has its fault, as in `disturbed`."""

    def __init__(self, machine: Machine, words: Sequence[str], at: str = "", fault: str = "") -> None:
        self._output = machine.folder / f"program-{next(_NUMBERS)}"
        given = (dict(machine.environment), self._output, tuple(words), at, fault)
        self._process = _FORKING.Process(target=_run, args=given)
        self._process.start()
        self.words = words

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def stopped(self, within_s: float | None = None) -> bool:
        """Wait until it is stopped; False: it ended before, or did neither within so many seconds.

        None: raises AssertionError after WITHIN_S, and ends it.
        """
        deadline = time.monotonic() + (WITHIN_S if within_s is None else within_s)
        while self._process.is_alive():
            if Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return True
            if time.monotonic() > deadline:
                if within_s is not None:
                    return False
                self.kill()
                raise AssertionError(f"{self.words} neither ended nor came to its point within {WITHIN_S} s")
            time.sleep(0.05)
        return False

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ended(self) -> CompletedProcess[str]:
        """Wait for its end; what it printed."""
        self._process.join(WITHIN_S)
        assert not self._process.is_alive(), f"{self.words} did not end within {WITHIN_S} s"
        assert self._process.exitcode is not None
        out, errors = (self._output.with_suffix(end).read_text("utf-8", "replace") for end in (".out", ".err"))
        return CompletedProcess(self.words, self._process.exitcode, out, errors)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


class Quick(Machine):
    """Runs commands as such programs."""

    def _python(self, *arguments: str) -> CompletedProcess[str]:
        program = Program(self, arguments[1:])
        try:
            return program.ended()
        finally:
            program.kill()


def _run(environment: Mapping[str, str], output: Path, words: Sequence[str], at: str, fault: str) -> None:
    os.environ.clear()
    os.environ |= environment
    for end, stream in ((".out", sys.stdout), (".err", sys.stderr)):
        with output.with_suffix(end).open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    name_errors()
    if fault:
        disturbed.main(at, fault, *words)
    else:
        sys.argv = list(words)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)

"""Child processes: started in a group of their own, watched, restarted, and stopped so that none is left over."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from engagement_platform.errors import PlatformError
from engagement_platform.local import reaper

# A fresh interpreter gives the signals back their defaults, announces itself to the reaper and becomes the command.
# Without the first, a server started from a background shell inherits "ignore SIGINT", and Dagster's then also ignore
# SIGTERM. It announces itself, so that a parent killed in that moment leaves no orphan either. SIGPIPE comes last: a
# reaper that is gone must cost no child its life.
_LAUNCH = """
import os, signal, sys
for number in (1, 2, 3, 15, 25):
    signal.signal(number, signal.SIG_DFL)
pipe = int(sys.argv[1])
try:
    os.write(pipe, b"+%d\\n" % os.getpid())
except OSError:
    pass
os.close(pipe)
signal.signal(13, signal.SIG_DFL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
"""

TICK_S = 0.1
STOP_WITHIN_S = 13.0
"""All stages together; the contract is 15 s, the rest is for what comes after."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STEADY_S = 60.0
"""A child that lived this long is restarted after the first pause again."""
START_ATTEMPTS = 3
LARGEST_LOG_BYTES = 20 * 1024 * 1024
"""A longer log makes room: what is in it goes to `.log.1`, in place of what was there."""
LOGS_EVERY_S = 10.0


class ChildFailed(PlatformError):
    """A child did not come up. The message ends in the last lines of its log."""


@dataclass(eq=False)
class Child:
    """A process to keep running: first its declaration, then its state, which belongs to the supervisor."""

    name: str
    command: Sequence[str]
    ready: Callable[[], bool]
    """Whether it does its work; asked often until it says yes, so it must not block."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """On top of this process's environment; None takes a variable away."""
    after: Sequence[str] = ()
    """Started once these are ready."""
    stage: int = 0
    """Stopped from the highest stage to the lowest; one stage at once."""
    stop_s: float = 5.0
    """Seconds from SIGTERM to SIGKILL."""

    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    is_ready: bool = field(default=False, init=False)
    """Since its last start."""
    was_ready: bool = field(default=False, init=False)
    deaths: int = field(default=0, init=False)
    started: float = field(default=0.0, init=False)
    not_before: float = field(default=0.0, init=False)
    log_from: int = field(default=0, init=False)


class Supervisor:
    """Keeps children running; used from one thread. As a context manager it stops them all at the end.

    on_event receives a sentence whenever a child died, was restarted, or had to be killed.
    keep_open: file descriptors the reaper holds until everything is gone, such as a lock on the data they use.
    """

    def __init__(
        self, log_dir: Path, on_event: Callable[[str], None] = lambda _: None, *, keep_open: Sequence[int] = ()
    ) -> None:
        self._log_dir, self._on_event, self._keep_open = log_dir, on_event, keep_open
        self._children: dict[str, Child] = {}
        self._logs_seen = 0.0
        self._start_reaper()

    def _start_reaper(self) -> None:
        """Start it and name it what runs already. Those that run still may write to a pipe that is gone, unharmed."""
        read, self._pipe = os.pipe()
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(reaper.__file__)), str(read)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(read, *self._keep_open),
        )
        os.close(read)
        for child in self._children.values():
            if child.process is not None:
                os.write(self._pipe, b"+%d\n" % child.process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *children: Child) -> None:
        """Take children into care; they start now, or in `poll` once what they come after is ready."""
        self._children |= {child.name: child for child in children}
        self.poll()

    def poll(self) -> None:
        """Start what may start, see who is ready, restart who died. Call it a few times a second."""
        if self._reaper.poll() is not None:
            # Without one, kill -9 of this process would leave its children running.
            os.close(self._pipe)
            self._start_reaper()
        now = time.monotonic()
        if now - self._logs_seen >= LOGS_EVERY_S:
            self._logs_seen = now
            for child in self._children.values():
                self._make_room(child)
        for child in self._children.values():
            if child.process is None:
                if now >= child.not_before and all(self._children[name].is_ready for name in child.after):
                    self._launch(child)
            elif child.process.poll() is not None:
                self._died(child, child.process.returncode, now)
            elif not child.is_ready and child.ready():
                child.is_ready = child.was_ready = True

    def wait_ready(self, timeout_s: float, *, tick: Callable[[], None] = lambda: None) -> None:
        """Return when all are ready. `tick` is called ten times a second meanwhile.

        Raises ChildFailed when one dies three times before it was ever ready, or when the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while waiting := [child for child in self._children.values() if not child.is_ready]:
            self.poll()
            tick()
            for child in waiting:
                if not child.was_ready and child.deaths >= START_ATTEMPTS:
                    self._fail(child, f"ended {child.deaths} times while starting")
            if time.monotonic() > deadline:
                self._fail(waiting[0], f"was not ready after {timeout_s:.0f} s")
            time.sleep(TICK_S)

    def end(self, name: str) -> None:
        """Stop one child for good; the others go on."""
        self._stop([self._children.pop(name)], STOP_WITHIN_S)

    def stop(self) -> None:
        """Stop all, stage by stage, within STOP_WITHIN_S seconds; afterwards nothing they started is left."""
        deadline = time.monotonic() + STOP_WITHIN_S
        for stage in sorted({child.stage for child in self._children.values()}, reverse=True):
            together = [child for child in self._children.values() if child.stage == stage]
            self._stop(together, max(deadline - time.monotonic(), 0.5))
        self._children.clear()
        if self._reaper.returncode is None:
            os.close(self._pipe)
            self._reaper.wait()

    def _launch(self, child: Child) -> None:
        log = self._log_of(child)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            child.log_from = out.tell()
            child.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCH, str(self._pipe), *child.command],
                env={key: value for key, value in {**os.environ, **child.env}.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self._pipe,),
            )
        child.started, child.is_ready = time.monotonic(), False

    def _stop(self, together: Sequence[Child], within_s: float) -> None:
        reaper.send([child.process.pid for child in together if child.process is not None], signal.SIGTERM)
        begin = time.monotonic()
        for child in together:
            limit = min(child.stop_s, within_s)
            while self._group_lives(child) and time.monotonic() < begin + limit:
                time.sleep(TICK_S / 2)
            if child.process is not None and child.process.poll() is None:
                self._on_event(f"{child.name} did not stop within {limit:.0f} s and was killed")
            self._clear(child)

    def _group_lives(self, child: Child) -> bool:
        """Whether it or anything it started still runs: a server's workers get the same time to end."""
        process = child.process
        return process is not None and (process.poll() is None or bool(reaper.living([process.pid])))

    def _clear(self, child: Child) -> None:
        """Kill what is left of the group: also a server's workers, which would go on working for nobody."""
        if child.process is not None:
            reaper.send([child.process.pid], signal.SIGKILL)
            child.process.wait()
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, b"-%d\n" % child.process.pid)
        child.process, child.is_ready = None, False

    def _died(self, child: Child, status: int, now: float) -> None:
        self._clear(child)
        lived_s = now - child.started
        child.deaths = 1 if lived_s >= STEADY_S else child.deaths + 1
        pause_s = min(FIRST_PAUSE_S * 2 ** (child.deaths - 1), LONGEST_PAUSE_S)
        child.not_before = now + pause_s
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        what = f"{child.name} ended with {how} after {lived_s:.0f} s; restarting it in {pause_s:.0f} s."
        self._on_event(f"{what} {self._end_of_log(child)}")

    def _fail(self, child: Child, what: str) -> None:
        raise ChildFailed(f"{child.name} {what}. {self._end_of_log(child)}")

    def _make_room(self, child: Child) -> None:
        """Empty a log that is too long into `.log.1`: its process goes on writing to the same file, at its new end."""
        log = self._log_of(child)
        if log.exists() and log.stat().st_size > LARGEST_LOG_BYTES:
            former = log.with_suffix(".log.1")
            try:
                shutil.copyfile(log, former)
            except OSError:
                # A disk without room for both: the older lines go.
                former.unlink(missing_ok=True)
            os.truncate(log, 0)
            child.log_from = 0

    def _log_of(self, child: Child) -> Path:
        return self._log_dir / f"{child.name}.log"

    def _end_of_log(self, child: Child) -> str:
        """Where the log of a child is, and what it wrote last since it was started."""
        path, lines = self._log_of(child), list[str]()
        with contextlib.suppress(FileNotFoundError), path.open("rb") as log:
            log.seek(max(child.log_from, log.seek(0, os.SEEK_END) - 8192))
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        # Of a Java stack trace the head says what happened.
        last = " | ".join([line for line in lines if not line.startswith("at ")][-5:])
        return f"Its log is {path}{', which ends: ' + last if last else ' and is empty'}"

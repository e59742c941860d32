"""Child processes: started in a group of their own, watched, restarted, and stopped so that none is left over.

What the children are is `kafka`, `connect` and `orchestrator`; the order they are needed in is theirs too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from engagement_platform.embedded import reaper
from engagement_platform.errors import PlatformError

# A fresh interpreter gives the signals back their defaults, announces itself to the reaper and becomes the command.
# Without the first, a server started from a background shell inherits "ignore SIGINT", and Dagster's then also ignore
# SIGTERM. It announces itself, not its parent for it, so that a parent killed in that moment leaves no orphan either.
# SIGPIPE comes last: a reaper killed in that moment must cost no child its life.
_LAUNCH = """
import os, signal, sys
for number in (1, 2, 3, 15, 25):
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
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


class ChildFailed(PlatformError):
    """A child did not come up. The message ends in the last lines of its log."""

    def __init__(self, name: str, what: str, log: Path, last: str) -> None:
        self.name, self.log = name, log
        super().__init__(f"{name} {what}. Its log is {log}{', which ends: ' + last if last else ' and is empty'}")


@dataclass(frozen=True)
class Child:
    """A process to keep running."""

    name: str
    command: Sequence[str]
    ready: Callable[[], bool]
    """Whether it does its work; asked often until it says yes, so it must not block."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """On top of this process's environment; None takes a variable away."""
    after: tuple[str, ...] = ()
    """Started once these are ready."""
    stage: int = 0
    """Stopped from the highest stage to the lowest; one stage at once."""
    stop_s: float = 5.0
    """Seconds from SIGTERM to SIGKILL."""
    may_end: bool = False
    """An exit with status 0 is its proper end and not a reason to restart."""


class _Running:
    """One child and its current process."""

    def __init__(self, child: Child, log: Path) -> None:
        self.child, self.log = child, log
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = self.was_ready = self.ended = False
        self.started = self.not_before = 0.0
        self.pause_s = FIRST_PAUSE_S
        self.deaths = 0
        self.log_from = 0

    def start(self, pipe: int) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LARGEST_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as log:
            self.log_from = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCH, str(pipe), *self.child.command],
                env={key: value for key, value in {**os.environ, **self.child.env}.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(pipe,),
            )
        self.started, self.ready = time.monotonic(), False

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def group_lives(self) -> bool:
        """Whether the process or anything it started still runs."""
        return self.process is not None and (self.alive() or bool(reaper.living([self.process.pid])))

    def signal(self, number: int) -> None:
        """Signal the whole group."""
        if self.process is not None:
            reaper.send([self.process.pid], number)

    def last_lines(self, count: int = 5) -> str:
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(max(self.log_from, log.seek(0, os.SEEK_END) - 8192))
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
            # Of a Java stack trace the head says what happened.
            return " | ".join([line for line in lines if not line.startswith("at ")][-count:])
        return ""


class Supervisor:
    """Keeps children running; used from one thread. As a context manager it stops them all at the end.

    on_event receives a sentence whenever a child died, was restarted, or had to be killed.
    keep_open: file descriptors the reaper holds until everything is gone, such as a lock on the data they use.
    """

    def __init__(
        self, log_dir: Path, on_event: Callable[[str], None] = lambda _: None, *, keep_open: Sequence[int] = ()
    ) -> None:
        self._log_dir, self._on_event, self._keep_open = log_dir, on_event, tuple(keep_open)
        self._running: dict[str, _Running] = {}
        self._reaper: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, *children: Child) -> None:
        """Take children into care; they start now, or in `poll` once what they come after is ready."""
        for child in children:
            self._running[child.name] = _Running(child, self._log_dir / f"{child.name}.log")
        self.poll()

    def poll(self) -> None:
        """Start what may start, see who is ready, restart who died. Call it a few times a second."""
        self._keep_reaper()
        now = time.monotonic()
        for running in self._running.values():
            if running.ended:
                continue
            if running.process is None:
                if now >= running.not_before and all(self.is_ready(name) for name in running.child.after):
                    running.start(self._pipe)
            elif not running.alive():
                self._died(running, now)
            elif not running.ready and running.child.ready():
                running.ready = running.was_ready = True

    def is_ready(self, name: str) -> bool:
        """Whether the child has been found ready since its last start."""
        return self._running[name].ready

    def ended(self, name: str) -> bool:
        """Whether a child that may end did so."""
        return self._running[name].ended

    def pid(self, name: str) -> int | None:
        """Process id of the child, which is also its process group; None while it is not running."""
        process = self._running[name].process
        return process.pid if process is not None and process.poll() is None else None

    def waiting_for(self) -> list[str]:
        """Names of children that are not ready."""
        return [name for name, running in self._running.items() if not (running.ready or running.ended)]

    def wait_ready(self, timeout_s: float, *, tick: Callable[[], None] = lambda: None) -> None:
        """Return when all are ready. `tick` is called ten times a second meanwhile.

        Raises ChildFailed when one dies three times before it was ever ready, or when the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while waiting := self.waiting_for():
            self.poll()
            tick()
            for running in map(self._running.__getitem__, waiting):
                if not running.was_ready and running.deaths >= START_ATTEMPTS:
                    self._fail(running, f"ended {running.deaths} times while starting")
            if time.monotonic() > deadline:
                self._fail(self._running[waiting[0]], f"was not ready after {timeout_s:.0f} s")
            time.sleep(TICK_S)

    def end(self, name: str) -> None:
        """Stop one child for good; the others go on."""
        self._stop_together([self._running.pop(name)], STOP_WITHIN_S)

    def stop(self) -> None:
        """Stop all, stage by stage, within STOP_WITHIN_S seconds; afterwards nothing they started is left."""
        deadline = time.monotonic() + STOP_WITHIN_S
        for stage in sorted({running.child.stage for running in self._running.values()}, reverse=True):
            together = [running for running in self._running.values() if running.child.stage == stage]
            self._stop_together(together, max(deadline - time.monotonic(), 0.5))
        self._running.clear()
        if self._reaper is not None:
            os.close(self._pipe)
            self._reaper.wait()
            self._reaper = None

    def _stop_together(self, together: Sequence[_Running], within_s: float) -> None:
        for running in together:
            running.signal(signal.SIGTERM)
        begin = time.monotonic()
        for running in together:
            limit = min(running.child.stop_s, within_s)
            while running.group_lives() and time.monotonic() < begin + limit:
                time.sleep(TICK_S / 2)
            if running.alive():
                self._on_event(f"{running.child.name} did not stop within {limit:.0f} s and was killed")
            self._clear(running)

    def _clear(self, running: _Running) -> None:
        """Kill what is left of the group: also a server's workers, which would go on working for nobody."""
        running.signal(signal.SIGKILL)
        if running.process is not None:
            running.process.wait()
            self._tell(f"-{running.process.pid}")
        running.process, running.ready = None, False

    def _died(self, running: _Running, now: float) -> None:
        assert running.process is not None
        status, lived_s = running.process.returncode, now - running.started
        self._clear(running)
        if status == 0 and running.child.may_end:
            running.ended = True
            return
        if lived_s >= STEADY_S:
            running.pause_s = FIRST_PAUSE_S
        running.deaths += 1
        running.not_before = now + running.pause_s
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        last = running.last_lines()
        self._on_event(
            f"{running.child.name} ended with {how} after {lived_s:.0f} s; restarting it in {running.pause_s:.0f} s. "
            f"Log: {running.log}{', which ends: ' + last if last else ''}"
        )
        running.pause_s = min(running.pause_s * 2, LONGEST_PAUSE_S)

    def _fail(self, running: _Running, what: str) -> None:
        raise ChildFailed(running.child.name, what, running.log, running.last_lines())

    def _keep_reaper(self) -> None:
        if self._reaper is not None and self._reaper.poll() is None:
            return
        if self._reaper is not None:
            os.close(self._pipe)
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
        for running in self._running.values():
            if running.process is not None:
                self._tell(f"+{running.process.pid}")

    def _tell(self, line: str) -> None:
        # A reaper that was killed is replaced by the next poll, which tells the new one everything.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, f"{line}\n".encode())

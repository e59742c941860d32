"""Children live, are restarted, and are all gone at the end, whoever dies first. The processes are real."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engagement_platform.local.process import Child, ChildFailed, Supervisor

pytestmark = pytest.mark.crash

# Starts a grandchild in its own group, as servers with workers do, then waits.
FAMILY = """
import subprocess, sys, time, pathlib
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(worker.pid))
time.sleep(600)
"""


def wait_for(condition: Callable[[], bool], or_say: str, timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{or_say} within {timeout_s} s"
        time.sleep(0.05)


def exists(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def python(name: str, code: str, *arguments: object, ready: Callable[[], bool] = lambda: True, **more: object) -> Child:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return Child(name=name, command=command, ready=ready, **more)  # type: ignore[arg-type]


def pid_of(child: Child) -> int | None:
    return None if child.process is None else child.process.pid


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, said: list[str]) -> Iterator[Supervisor]:
    with Supervisor(tmp_path / "logs", said.append) as supervisor:
        yield supervisor


def pid_in(file: Path) -> int:
    wait_for(lambda: file.exists() and file.read_text().isdigit(), f"{file.name} was never written")
    return int(file.read_text())


def test_a_killed_child_is_restarted_without_its_workers_and_the_console_says_so(
    supervisor: Supervisor, said: list[str], tmp_path: Path
) -> None:
    file, log = tmp_path / "worker", tmp_path / "logs" / "server.log"
    server = python("server", f"print('the last words', flush=True)\n{FAMILY}", file)
    supervisor.start(server)
    worker, first = pid_in(file), pid_of(server)
    assert "last words" in log.read_text()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    lived_on_beside: list[int] = []

    def restarted() -> bool:
        supervisor.poll()
        if pid_of(server) in (None, first):
            return False
        lived_on_beside.extend([worker] if exists(worker) else [])
        return True

    wait_for(restarted, "it was not restarted")
    assert not lived_on_beside, "the worker lived on beside the new server"
    assert len(said) == 1
    assert "server ended with signal SIGKILL" in said[0]
    assert said[0].endswith("the last words")


@pytest.mark.parametrize(
    ("command", "last_words"),
    [
        ([sys.executable, "-c", "import sys; sys.exit('no such port')"], "no such port"),
        (["no-such-program"], "cannot run no-such-program: No such file or directory"),
    ],
)
def test_a_child_that_dies_while_starting_fails_with_the_end_of_its_log(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, command: list[str], last_words: str
) -> None:
    monkeypatch.setattr("engagement_platform.local.process.FIRST_PAUSE_S", 0.05)
    supervisor.start(Child(name="server", command=command, ready=lambda: False))
    with pytest.raises(ChildFailed, match=rf"server ended 3 times.*server\.log.*{last_words}"):
        supervisor.wait_ready(15)


def test_a_child_that_is_never_ready_fails_when_the_time_is_over(supervisor: Supervisor) -> None:
    supervisor.start(python("server", "import time; time.sleep(600)", ready=lambda: False))
    with pytest.raises(ChildFailed, match="not ready after 0 s"):
        supervisor.wait_ready(0.3)


def test_a_child_starts_only_after_what_it_needs_is_ready(supervisor: Supervisor) -> None:
    open_for_business = False
    second = python("second", "import time; time.sleep(600)", after=("first",))
    supervisor.start(python("first", "import time; time.sleep(600)", ready=lambda: open_for_business), second)
    supervisor.poll()
    assert second.process is None
    open_for_business = True
    supervisor.wait_ready(5)
    assert second.process is not None


def test_stopping_ends_the_highest_stage_first(supervisor: Supervisor, tmp_path: Path) -> None:
    order = tmp_path / "order"
    code = """
        import pathlib, signal, sys, time
        def leave(*_):
            with open(sys.argv[1], "a") as file:
                file.write(sys.argv[2] + "\\n")
            sys.exit(0)
        signal.signal(signal.SIGTERM, leave)
        pathlib.Path(sys.argv[1] + sys.argv[2]).touch()
        time.sleep(600)
    """
    for name, stage in (("broker", 0), ("daemon", 1), ("traffic", 2)):
        supervisor.start(python(name, code, order, name, stage=stage))
        wait_for(Path(f"{order}{name}").exists, f"{name} did not start")
    supervisor.stop()
    assert order.read_text().split() == ["traffic", "daemon", "broker"]


def test_a_child_that_ignores_sigterm_is_killed_in_bounded_time(
    supervisor: Supervisor, said: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "deaf"
    code = """
        import os, pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
        time.sleep(600)
    """
    supervisor.start(python("deaf", code, file, stop_s=0.5))
    pid = pid_in(file)
    before = time.monotonic()
    supervisor.stop()
    assert not exists(pid)
    assert time.monotonic() - before < 3
    assert "deaf did not stop" in said[0]


def test_children_have_default_signals_even_when_their_parent_ignores_them(tmp_path: Path) -> None:
    # What a background shell does to its jobs; the child would then be deaf to Ctrl-C, and Dagster's to SIGTERM.
    log = tmp_path / "dispositions.log"
    show = "import signal; print([signal.getsignal(n) == signal.SIG_DFL for n in (1, 15)], flush=True)"
    code = f"""
        import pathlib, signal, time
        from engagement_platform.local.process import Child, Supervisor
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with Supervisor(pathlib.Path({str(tmp_path)!r})) as supervisor:
            command = {[sys.executable, "-c", show]!r}
            supervisor.start(Child(name="dispositions", command=command, ready=lambda: True))
            while not pathlib.Path({str(log)!r}).read_text().endswith("]\\n"):
                time.sleep(0.05)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=30)
    assert log.read_text().strip() == "[True, True]"


@pytest.mark.parametrize(
    ("how", "reaper_dies"), [(signal.SIGKILL, False), (signal.SIGTERM, False), (signal.SIGKILL, True)]
)
def test_nothing_is_left_when_the_parent_dies_even_after_what_cleans_up_behind_it(
    tmp_path: Path, how: signal.Signals, reaper_dies: bool
) -> None:
    file, leader = tmp_path / "worker", tmp_path / "leader"
    code = f"""
        import pathlib, sys, time
        from engagement_platform.local.process import Child, Supervisor
        supervisor = Supervisor(pathlib.Path({str(tmp_path)!r}))
        family = [sys.executable, "-c", {FAMILY!r}, {str(file)!r}]
        server = Child(name="server", command=family, ready=lambda: True)
        supervisor.start(server)
        while not pathlib.Path({str(file)!r}).exists():
            time.sleep(0.05)
        if {reaper_dies}:
            supervisor._reaper.kill()
            supervisor._reaper.wait()
            supervisor.poll()
        pathlib.Path({str(leader)!r}).write_text(str(server.process.pid))
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)]) as parent:
        family = [pid_in(leader), pid_in(file)]
        assert all(map(exists, family))
        parent.send_signal(how)
    wait_for(lambda: not any(map(exists, family)), f"processes {family} outlived their parent")


def test_a_large_log_makes_room_also_where_the_disk_has_none_for_two(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engagement_platform.local.process.LOGS_EVERY_S", 0.0)

    def full(_source: Path, to: Path) -> None:
        to.write_bytes(b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    supervisor.start(python("server", 'import time; print("x" * 21 * 2**20, flush=True); time.sleep(600)'))
    log = tmp_path / "logs" / "server.log"

    def made_room() -> bool:
        supervisor.poll()
        return log.stat().st_size == 0

    wait_for(made_room, "the log was not emptied")
    assert not log.with_suffix(".log.1").exists()


def test_a_log_that_grows_large_while_its_process_runs_makes_room(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engagement_platform.local.process.LOGS_EVERY_S", 0.0)
    log, full = tmp_path / "logs" / "server.log", tmp_path / "logs" / "server.log.1"
    code = """
        import pathlib, sys, time
        print("x" * 21 * 2**20, "first", flush=True)
        while not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.05)
        time.sleep(1)
        print("second", flush=True)
        time.sleep(600)
    """
    supervisor.start(python("server", code, full))

    def wrote_again() -> bool:
        # As `up` does it all the time.
        supervisor.poll()
        return "second" in log.read_text()

    wait_for(wrote_again, "the child never wrote again")
    assert log.read_text().split() == ["second"]
    assert full.read_text().endswith(" first\n")

"""Runs of one job on a real Connect server: one session for all of them, and nothing of one reaches another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable, Schema
from deltalake.schema import Field, PrimitiveType

from engagement_platform.engine.database import open_engine, writing
from engagement_platform.engine.fencing import TARGETS
from engagement_platform.engine.model import Manifest
from engagement_platform.engine.schema import LEASE
from engagement_platform.engine.stores import CheckpointStore
from engagement_platform.local.connect import connect_child
from engagement_platform.local.ports import free_ports
from engagement_platform.local.process import Supervisor
from engagement_platform.settings import EmbeddedSettings, Settings, SparkSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.usefixtures("spark_jars")]

RUNS = 30
WITHIN_S = 300
LANDS_WITHIN_S = 20
"""A write that is let go lands within two seconds when nothing keeps it out (2 cores, busy)."""


@dataclass(frozen=True)
class Server:
    """A Connect server and the home of its clients."""

    settings: Settings

    def start(self, job: str, *what: str) -> subprocess.Popen[str]:
        """A run that does this."""
        return self._process("engagement_platform_tests.lake.one_run", job, *what)

    def run(self, job: str, *what: str) -> list[str]:
        """What a run printed that ended well."""
        return self._ended(self.start(job, *what))

    def cli(self, *arguments: str) -> list[str]:
        """What a command printed that ended well."""
        return self._ended(self._process("engagement_platform.cli", *arguments))

    def _process(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        remote = f"sc://127.0.0.1:{self.settings.embedded.connect_port}"
        given = {"ENGAGEMENT_PLATFORM_HOME": str(self.settings.home), "ENGAGEMENT_PLATFORM_SPARK__REMOTE": remote}
        command = [sys.executable, "-m", module, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env={**os.environ, **given}, stdout=pipe, stderr=pipe, text=True)

    def _ended(self, process: subprocess.Popen[str]) -> list[str]:
        out, errors = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0, errors[-4000:]
        return out.split("\n")[:-1]

    def forget_the_holders(self) -> None:
        """As if every lease had been silent for its ttl."""
        with writing(open_engine(self.settings.store_url), "test") as connection:
            connection.execute(LEASE.update().values(expires_ts=datetime(2020, 1, 1, tzinfo=UTC)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("connect")
    (port,) = free_ports(1)
    settings = Settings(
        home=folder / "home",
        spark=SparkSettings(master="local[2]"),
        embedded=EmbeddedSettings(connect_port=port),
    )
    with Supervisor(folder / "logs") as supervisor:
        supervisor.start(connect_child(settings, folder / "a folder of spark"))
        supervisor.wait_ready(WITHIN_S)
        yield Server(settings)


def wait_until(happened: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen within {within_s:.0f} s"
        time.sleep(0.1)


DAEMON = b"local.python_daemon"


def python_daemons() -> int:
    """Daemons of Python workers below Connect servers that this process has started."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(folder.name)] = (folder / "cmdline").read_bytes()
        except OSError:
            continue

    def above(pid: int) -> Iterator[int]:
        while (pid := parents.get(pid, 0)) > 1:
            yield pid

    def is_ours(pid: int) -> bool:
        line = list(above(pid))
        # Workers are forks of their daemon, under the same command line.
        fork = DAEMON in commands.get(parents[pid], b"")
        return not fork and os.getpid() in line and any(b"connect_server.py" in commands[one] for one in line)

    return sum(DAEMON in command and is_ours(pid) for pid, command in commands.items())


def test_thirty_runs_of_a_job_have_one_session_and_all_jobs_one_daemon(server: Server) -> None:
    ids = server.run("thirty", "runs", str(RUNS))
    assert len(ids) == RUNS
    assert len(set(ids)) == 1
    assert server.run("another", "runs", "1") != ids[:1], "jobs have no session in common"
    assert python_daemons() == 1


def test_a_killed_run_leaves_nothing_to_the_next(server: Server) -> None:
    run = server.start("killed", "killed")
    out, _ = run.communicate(timeout=WITHIN_S)
    assert run.returncode == -signal.SIGKILL
    first, second = server.run("killed", "runs", "2")
    assert out.strip() != first == second


def test_a_stopped_run_is_refused_by_the_server_once_another_has_its_place(server: Server) -> None:
    run = server.start("stopped", "stopped")
    try:
        _, status = os.waitpid(run.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the run ended too early"
        beside = server.run("stopped", "runs", "1")
        server.forget_the_holders()
        after = server.run("stopped", "runs", "1")
        os.kill(run.pid, signal.SIGCONT)
        out, errors = run.communicate(timeout=WITHIN_S)
    finally:
        run.kill()
    assert out.split() not in (beside, after)
    assert beside != after
    assert "SESSION_CLOSED" not in errors, "what Spark says of it says nothing more"
    assert errors.splitlines()[-1].startswith("engagement_platform.engine.lease.LeaseLost: ")
    assert run.returncode == 1


def test_clients_of_one_server_name_the_same_driver(server: Server) -> None:
    (one,), (another,) = server.run("one", "driver"), server.run("another", "driver")
    assert one == another
    assert one.startswith("local-")


def test_a_write_that_goes_on_in_the_server_does_not_land_after_its_batch_was_abandoned(
    server: Server, tmp_path: Path
) -> None:
    """The client is killed, its session is out of reach, and the write ends only after the reset."""
    job, table = "ingest-engagements", "engagement/late"
    uri = f"{server.settings.lake}/{table}"
    DeltaTable.create(uri, Schema([Field("id", PrimitiveType("long"))]))
    checkpoints = CheckpointStore(open_engine(server.settings.store_url))
    source = {TARGETS: {"data/insert": table}}
    batch = Manifest(job, checkpoints.app_id(job), 0, {}, {"0": 1}, datetime.now(UTC), source=source)
    batch = checkpoints.begin(batch)
    written_under = batch.transaction("data", "insert").app_id

    def rows() -> int:
        return int(DeltaTable(uri).to_pyarrow_table().num_rows)

    def left_alone(app_id: str, begun: Path, go: Path) -> None:
        run = server.start(job, "appending", uri, str(begun), str(go), app_id)
        wait_until(begun.exists, "the write")
        run.kill()
        run.wait(timeout=WITHIN_S)

    # Such a write does land, when nobody keeps it out.
    left_alone("somebody-else", tmp_path / "a", tmp_path / "let-a")
    (tmp_path / "let-a").touch()
    wait_until(lambda: rows() == 1, "the commit of a write whose client was killed")

    left_alone(written_under, tmp_path / "b", tmp_path / "let-b")
    assert f"{job}@2." in server.cli("reset", job, "--abandon", "--yes")[-1]
    assert DeltaTable(uri).transaction_version(written_under) == 0
    (tmp_path / "let-b").touch()
    # It has written its file and now tries to commit.
    files = len(list(Path(uri).glob("*.parquet")))
    deadline = time.monotonic() + LANDS_WITHIN_S
    while time.monotonic() < deadline:
        assert rows() == 1
        time.sleep(0.5)
    assert len(list(Path(uri).glob("*.parquet"))) >= files

"""The command line as a stranger uses it: services, produce, run, kill -9, run, verify; over Spark Connect."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable

from engagement_platform.lake.log import storage_uri
from engagement_platform.local.ports import free_ports
from engagement_platform_tests.conftest import QUICK_JVM
from engagement_platform_tests.ingestion.oracle import Oracle, as_bytes, engagement
from engagement_platform_tests.ingestion.test_crashes import everything
from engagement_platform_tests.matrix import spread

pytestmark = [pytest.mark.broker, pytest.mark.crash]

POINTS = (
    "manifest:before",
    "manifest:after",
    "tables.quarantine:before",
    "tables.quarantine:after",
    "tables.mapping:before",
    "tables.mapping:after",
    "tables.changeset:before",
    "tables.changeset:after",
    "tables.data:before",
    "tables.data:after",
    "tables:recorded",
    "notification.append:before",
    "notification.append:after",
    "notification:recorded",
    "finalized",
)
A_FEW = spread(POINTS, 1)


@dataclass
class Machine:
    """Services in processes of their own, and the environment to use them."""

    folder: Path
    environment: Mapping[str, str]
    oracle: Oracle = field(default_factory=Oracle)
    batches: int = 0
    offset: int = 0
    last: str | None = None
    """The organization that came last, which has rows that others can meet."""

    @property
    def lake(self) -> str:
        """Where the tables are, as delta-rs says it."""
        lake = self.environment.get("ENGAGEMENT_PLATFORM_LAKE_URI", str(self.folder / "home" / "lake"))
        return storage_uri(lake)

    def cli(self, *arguments: str, expect: int = 0) -> str:
        """Run the command line; its standard output."""
        done = self._python("-m", "engagement_platform.cli", *arguments)
        assert done.returncode == expect, f"{arguments} ended with {done.returncode}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def killed_at(self, point: str, job: str = "ingest-engagements", *, new: bool = False) -> None:
        """Run the job until it kills itself at the point; new: of a batch that it begins."""
        only = ("--new",) if new else ()
        done = self._python("-m", "engagement_platform_tests.ingestion.killable", job, point, *only)
        assert done.returncode == -signal.SIGKILL, f"never reached {point}: {done.stdout}\n{done.stderr}"

    def passed(self, job: str) -> list[str]:
        """The points that the job passes, undisturbed, with what waits for it now."""
        done = self._python("-m", "engagement_platform_tests.ingestion.killable", job)
        assert done.returncode == 0, f"{job} ended with {done.returncode}: {done.stdout}\n{done.stderr}"
        return [line for line in done.stdout.splitlines() if ":" in line or line == "finalized"]

    def produce(self, messages: Sequence[dict[str, object] | None]) -> None:
        """One more batch, for the broker and for the oracle."""
        file = self.folder / "messages.jsonl"
        file.write_bytes(b"".join(as_bytes(message) + b"\n" for message in messages))
        self.cli("produce", "--file", str(file), "--topic", "engagements")
        self.oracle.batch(self.batches, list(enumerate(messages, self.offset)))
        self.batches += 1
        self.offset += len(messages)

    def rows(self, table: str, *columns: str) -> list[tuple[object, ...]]:
        """Columns of a table, read without Spark."""
        # delta-rs looks for an object store's address and keys in variables; it wants them named for one table.
        storage = {name: value for name, value in self.environment.items() if name.startswith("AWS_")}
        found = DeltaTable(f"{self.lake}/{table}", storage_options=storage if "://" in self.lake else None)
        read = found.to_pyarrow_table(columns=list(columns))
        return sorted(zip(*(read[column].to_pylist() for column in columns), strict=True), key=repr)

    def view(self, name: str, *columns: str) -> list[tuple[object, ...]]:
        """Columns of a view, as the command `read` gives them."""
        file = self.folder / "read.jsonl"
        self.cli("read", name, "--out", str(file))
        rows = (json.loads(line) for line in file.read_text().split("\n") if line)
        return sorted((tuple(row[column] for column in columns) for row in rows), key=repr)

    def assert_as_the_oracle_says(self) -> None:
        """All four tables."""
        data = self.view("engagement/current", "organization_id", "engagement_id", "person_id", "version")
        assert data == sorted(((o, i, r["person"], r["version"]) for (o, i), r in self.oracle.data.items()), key=repr)
        names = self.view("engagement/mapping", "organization_id", "id", "name")
        assert names == sorted(((o, p, name) for (o, p), (_, name, _) in self.oracle.names.items()), key=repr)
        notified = self.rows("engagement/notification", "batch_id", "change_type", "organization_id", "engagement_id")
        assert notified == sorted(((b, c, *key) for b, c, key, _ in self.oracle.notifications), key=repr)
        quarantined = [offset for (offset,) in self.rows("engagement/quarantine", "offset")]
        assert sorted(quarantined, key=repr) == sorted(self.oracle.quarantined, key=repr)

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """`engagement-platform services` on this machine alone."""
    with started(tmp_path_factory.mktemp("machine"), {}) as machine:
        yield machine


@contextmanager
def started(folder: Path, settings: Mapping[str, str]) -> Iterator[Machine]:
    """`engagement-platform services` with one partition a topic, so that offsets follow the messages.

    settings: more variables, for the services and for whoever uses them.
    """
    kafka, controller, connect, aws, ingest = free_ports(5)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("ENGAGEMENT_PLATFORM_")}
    environment = {
        **inherited,
        "ENGAGEMENT_PLATFORM_HOME": str(folder / "home"),
        "ENGAGEMENT_PLATFORM_EMBEDDED__KAFKA_PORT": str(kafka),
        "ENGAGEMENT_PLATFORM_EMBEDDED__KAFKA_CONTROLLER_PORT": str(controller),
        "ENGAGEMENT_PLATFORM_EMBEDDED__CONNECT_PORT": str(connect),
        "ENGAGEMENT_PLATFORM_EMBEDDED__AWS_PORT": str(aws),
        "ENGAGEMENT_PLATFORM_EMBEDDED__INGEST_PORT": str(ingest),
        "ENGAGEMENT_PLATFORM_EMBEDDED__KAFKA_PARTITIONS": "1",
        "ENGAGEMENT_PLATFORM_MUTATION__MAX_LATENESS": "P36500D",  # histories have dates of their own, and land now
        "ENGAGEMENT_PLATFORM_SPARK__CONF": json.dumps({"spark.driver.extraJavaOptions": " ".join(QUICK_JVM)}),
        **settings,
    }
    env_file = folder / "services.env"
    with (folder / "services.log").open("wb") as log:
        command = [sys.executable, "-m", "engagement_platform.cli", "services", "--env-file", str(env_file)]
        services = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 180
            while not env_file.exists():
                said = (folder / "services.log").read_text()
                assert services.poll() is None, f"the services ended: {said}"
                assert time.monotonic() < deadline, f"the services were not up within 180 s: {said}"
                time.sleep(0.2)
            given = dict(line.split("=", 1) for line in env_file.read_text().splitlines())
            assert given["ENGAGEMENT_PLATFORM_SPARK__REMOTE"] == f"sc://127.0.0.1:{connect}"
            yield Machine(folder, {**environment, **given})
        finally:
            services.send_signal(signal.SIGINT)
            assert services.wait(timeout=60) == 0, "the services did not stop in order"


def test_messages_become_rows_and_each_batch_is_told_as_json(machine: Machine) -> None:
    machine.last = "org-begin"
    machine.produce([*everything(machine.last, None), engagement(machine.last, "e4")])
    (line,) = machine.cli("run", "ingest-engagements", "--until-idle", "--json").splitlines()
    batch = json.loads(line)
    told = {
        name: batch[name] for name in ("batch_id", "rows_in", "landed", "duplicates", "quarantined", "notifications")
    }
    assert told == {"batch_id": 0, "rows_in": 8, "landed": 4, "duplicates": 2, "quarantined": 2, "notifications": 4}
    machine.assert_as_the_oracle_says()
    assert machine.cli("run", "ingest-engagements", "--until-idle", "--json") == ""


def kill_and_run_again(machine: Machine, point: str) -> None:
    """A batch that meets rows of the organization before, as each batch is met by the one after it."""
    if machine.last is None:
        machine.last = "org-begin"
        machine.produce(everything(machine.last, None))
        machine.cli("run", "ingest-engagements", "--until-idle")
    before, machine.last = machine.last, f"org-{machine.batches}"
    machine.produce(everything(machine.last, before))
    machine.killed_at(point)
    machine.cli("run", "ingest-engagements", "--until-idle")


@pytest.mark.parametrize("point", A_FEW)
def test_a_killed_process_leaves_nothing_lost_or_doubled(machine: Machine, point: str) -> None:
    kill_and_run_again(machine, point)
    machine.assert_as_the_oracle_says()


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_point_nothing_is_lost_or_doubled(machine: Machine, point: str) -> None:
    kill_and_run_again(machine, point)
    machine.assert_as_the_oracle_says()


def test_verify_and_status_agree_that_all_is_well(machine: Machine) -> None:
    if not machine.batches:
        machine.produce(everything("org-alone", None))
        machine.cli("run", "ingest-engagements", "--until-idle")
    findings = [json.loads(line) for line in machine.cli("verify", "--json").splitlines()]
    assert {finding["check"] for finding in findings} >= {"ledger", "lost", "doubled", "announced"}
    assert not any(finding["wrong"] for finding in findings)
    status = json.loads(machine.cli("status", "--json"))
    (engagements,) = [job for job in status["jobs"] if job["job"] == "ingest-engagements"]
    assert engagements["backlog"] == 0
    assert engagements["state"] == "SUCCEEDED"


@pytest.mark.slow
def test_mutations_that_are_killed_are_finished_once(machine: Machine) -> None:
    """Here, since a machine of its own takes a minute; after the others, since their oracle knows no requests."""
    from engagement_platform_tests.pipelines.mutations.test_kills import DURABLE, assert_finished_once_after_a_kill

    ((job, point),) = spread(DURABLE, 1)
    assert_finished_once_after_a_kill(machine, "org-mutated", job, point)
    findings = [json.loads(line) for line in machine.cli("verify", "--identity", "--json").splitlines()]
    assert {finding["check"] for finding in findings} == {"identity", "names", "contents", "accepted_once"}
    assert not any(finding["wrong"] for finding in findings)


def test_a_job_that_does_not_exist_is_one_line_and_status_1(machine: Machine) -> None:
    done = machine._python("-m", "engagement_platform.cli", "run", "ingest-nothing", "--until-idle")
    assert done.returncode == 1
    assert "no job called" in done.stderr
    assert "Traceback" not in done.stderr

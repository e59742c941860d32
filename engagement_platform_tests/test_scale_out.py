"""The engagement path with its parts apart: executors as processes of their own, tables on S3, stores in PostgreSQL.

All of it by Spark Connect and the command line, as on one machine; the same rows are expected.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from engagement_platform.local.ports import free_ports
from engagement_platform_tests.conftest import QUICK_JVM, Moto
from engagement_platform_tests.engine.conftest import PostgresServer, postgres
from engagement_platform_tests.ingestion.test_whole_path import Machine, started
from engagement_platform_tests.pipelines.mutations.test_crashes import after, before, requests
from engagement_platform_tests.pipelines.mutations.test_kills import (
    assert_as_the_oracle_says,
    assert_finished_once_after_a_kill,
    assert_moved,
    ingest,
    produce,
)

__all__ = ["postgres"]

pytestmark = [
    pytest.mark.broker,
    pytest.mark.crash,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]

BUCKET = "engagement-lake"
EXECUTORS = 2
Row = dict[str, Any]


@dataclass
class Apart(Machine):
    """A machine whose Spark tells what each of its executors did."""

    ui: str = ""

    def told(self, path: str = "") -> Any:
        """What Spark's REST interface says of the one application."""
        (application,) = self._asked("applications")
        return self._asked(f"applications/{application['id']}/{path}") if path else application

    def _asked(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.ui}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def apart(moto: Moto, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    moto.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    (port,) = free_ports(1)
    settings = {
        "ENGAGEMENT_PLATFORM_LAKE_URI": f"s3a://{BUCKET}/lake",
        "ENGAGEMENT_PLATFORM_STORES__URL": postgres.new_database(),
        "ENGAGEMENT_PLATFORM_SPARK__MASTER": f"local-cluster[{EXECUTORS},1,1024]",
        "ENGAGEMENT_PLATFORM_SPARK__CONF": json.dumps(
            {
                "spark.driver.extraJavaOptions": " ".join(QUICK_JVM),
                "spark.ui.enabled": "true",
                "spark.ui.port": str(port),
            }
        ),
        "AWS_ENDPOINT_URL": moto.endpoint,
        "AWS_REGION": "eu-central-1",
        "AWS_ALLOW_HTTP": "true",
    }
    with started(tmp_path_factory.mktemp("apart"), settings) as machine:
        yield Apart(machine.folder, machine.environment, ui=f"http://127.0.0.1:{port}")


def test_killed_far_from_its_tables_a_batch_of_mutations_is_finished_once_and_everything_agrees(apart: Apart) -> None:
    assert_finished_once_after_a_kill(apart, "org-0", "ingest-mutation-requests", "tables.alias:after")
    findings = [json.loads(line) for line in apart.cli("verify", "--identity", "--json").splitlines()]
    assert findings
    assert not any(finding["wrong"] for finding in findings)
    rules = {rule["code"]: rule["state"] for rule in json.loads(apart.cli("doctor", "--guards", "--json"))["guards"]}
    assert rules["one_driver"] == "kept"


def test_pending_changes_are_moved_and_a_replica_made_by_the_shell_equals_what_is_read(apart: Apart) -> None:
    own, organization = apart, "org-1"
    replica: dict[tuple[str, str], Row] = {}
    ingest(own, before(organization))
    follow(own, replica)
    produce(own, "mutation-requests", requests(organization))
    own.cli("run", "ingest-mutation-requests", "--until-idle")
    ingest(own, after(organization))
    own.cli("run", "apply-mutations", "--until-idle")
    assert_as_the_oracle_says(own, organization)
    assert replica != standing(own), "nothing changed, so nothing is compared below"
    assert follow(own, replica) >= {"UPDATE", "DELETE"}
    assert replica == standing(own)
    own.cli("run", "rematerialize-aliases", "--until-idle")
    assert_as_the_oracle_says(own, organization)
    assert_moved(own, organization)
    follow(own, replica)
    assert replica == standing(own)


def test_each_executor_is_a_process_of_its_own_and_all_tasks_are_theirs(apart: Apart) -> None:
    ingest(apart, before("org-2"))
    found = {one["id"]: one["completedTasks"] for one in apart.told("executors")}
    assert found.pop("driver") == 0
    assert len(found) == EXECUTORS
    assert all(found.values()), f"somebody had nothing to do: {found}"
    processes = executors_of(apart.told()["id"])
    assert sorted(processes.values()) == sorted(found)


def follow(own: Machine, replica: dict[tuple[str, str], Row]) -> set[str]:
    """Put what `consume` prints in its place; which kinds of changes there were."""
    kinds = set()
    for line in own.cli("consume", "--name", "shell", "--format", "jsonl").splitlines():
        row = json.loads(line)
        key = (row["organization_id"], row["engagement_id"])
        kinds.add(kind := row.pop("change_type"))
        del row["previous_person_id"]
        if kind == "DELETE":
            replica.pop(key, None)
        else:
            replica[key] = unstamped(row)
    return kinds


def standing(own: Machine) -> dict[tuple[str, str], Row]:
    """What `read` says, through Spark."""
    out = own.folder / "standing.jsonl"
    own.cli("read", "engagement/current", "--out", str(out))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    found = {(row["organization_id"], row["engagement_id"]): unstamped(row) for row in rows}
    assert len(found) == len(rows)
    return found


def unstamped(row: Row) -> Row:
    """Without the batch that moved it last, which is not announced."""
    return {name: value for name, value in row.items() if name != "batch_id"}


def executors_of(application: str) -> dict[int, str]:
    """Process id -> executor id, of those that the machine runs for an application."""
    # Wide: where something has told it how wide the terminal is, ps cuts lines off.
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=", "-o", "args="], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for line in listed.splitlines():
        pid, _, command = line.strip().partition(" ")
        words = command.split()
        if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and application in words:
            found[int(pid)] = words[words.index("--executor-id") + 1]
    return found

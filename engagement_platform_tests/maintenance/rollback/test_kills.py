"""A restore killed with SIGKILL and finished from the command line; over Spark Connect."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from engagement_platform_tests.ingestion.oracle import as_bytes
from engagement_platform_tests.ingestion.test_whole_path import Machine, machine
from engagement_platform_tests.maintenance.rollback.filled import EVERYTHING, FIRST, JOBS, LATER, REQUESTS
from engagement_platform_tests.matrix import spread
from engagement_platform_tests.pipelines.mutations.histories import Message
from engagement_platform_tests.pipelines.mutations.oracle import replay

__all__ = ["machine"]

pytestmark = [pytest.mark.broker, pytest.mark.crash, pytest.mark.slow]

ALIAS = "engagement/alias"

POINTS = (
    "manifest:after", "restore.data:before", "restore.data:after", "restore.alias:after", "restore:recorded",
    "notification.append:before", "notification.append:after", "audit.append:after", "audit:recorded",
    "rewind:recorded",
)  # fmt: skip


def version(machine: Machine) -> int:
    return int(DeltaTable(str(machine.folder / "home" / "lake" / ALIAS)).version())


def land(machine: Machine, messages: Sequence[Message]) -> None:
    """Produce, and let every job do what it finds."""
    for topic, of_requests in (("engagements", False), ("mutation-requests", True)):
        lines = [as_bytes(message) + b"\n" for message in messages if ("request_id" in message) is of_requests]
        if lines:
            file = machine.folder / "some.jsonl"
            file.write_bytes(b"".join(lines))
            machine.cli("produce", "--file", str(file), "--topic", topic)
    for job in JOBS:
        machine.cli("run", job, "--until-idle")


def assert_as_of(machine: Machine, messages: Sequence[Message]) -> None:
    """What readers see is what a loop over the messages gives, and every notification leads there."""
    out = machine.folder / "current.parquet"
    machine.cli("read", "engagement/current", "--out", str(out))
    rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    shown = {(r["organization_id"], r["engagement_id"]): (r["person_id"], r["engagement"]["subject"]) for r in rows}
    oracle = replay(list(messages))
    assert len(shown) == len(rows)
    assert shown == {key: (row.person_id, row.subject) for key, row in oracle.data.items()}
    names = machine.rows("engagement/mapping", "organization_id", "id", "name")
    assert {(o, p): n for o, p, n in names if n} == {key: name for key, (name, _) in oracle.names.items() if name}
    ids = machine.rows("engagement/notification", "notification_id")
    assert len(ids) == len(set(ids)), "a notification stands twice"
    told = machine.rows("engagement/notification", "engagement_id", "change_type")
    balance = {key: 0 for _, key in shown}
    for engagement, kind in told:
        balance[str(engagement)] = balance.get(str(engagement), 0) + {"INSERT": 1, "DELETE": -1}.get(str(kind), 0)
    assert balance == {key: int(key in {e for _, e in shown}) for key in balance}, "readers were told something else"


def test_a_restore_that_is_killed_anywhere_is_finished_once_from_the_command_line(machine: Machine) -> None:
    land(machine, FIRST)
    first = version(machine)
    land(machine, REQUESTS)
    land(machine, LATER)
    last = version(machine)
    [planned] = machine.cli("restore", ALIAS, "--to", str(first), "--dry-run", "--json").splitlines()
    plan = json.loads(planned)
    assert {name: plan[name] for name in ("inserted", "updated", "deleted")} == {
        "inserted": 1, "updated": 2, "deleted": 1,
    }  # fmt: skip
    said = machine.cli("restore", ALIAS, "--to", str(first), "--dry-run")
    assert "All that follows goes back to the end of ingest-engagements batch 0:" in said
    assert "Readers see 1 engagements again, 2 changed, and 1 no longer." in said
    assert version(machine) == last, "a dry run changed something"
    points = spread(POINTS, 4)
    for number, point in enumerate(points):
        done = machine._python("-m", "engagement_platform_tests.maintenance.rollback.killed", ALIAS, str(first), point)
        assert done.returncode == -signal.SIGKILL, f"never reached {point}: {done.stdout}\n{done.stderr}"
        [told] = machine.cli("restore", "--finish", "--json").splitlines()
        report = json.loads(told)
        assert (report["job"], report["batch_id"], report["replayed"]) == ("restore-tables", number, True), point
        assert (report["inserted"], report["updated"], report["deleted"]) == (1, 2, 1), point
        assert machine.cli("restore", "--finish") == "Nothing to restore.\n"
        assert_as_of(machine, FIRST)
        for job in JOBS:
            machine.cli("run", job, "--until-idle")
        assert_as_of(machine, EVERYTHING)
    assert {batch for (batch,) in machine.rows("layout/restore", "batch_id")} == set(range(len(points)))

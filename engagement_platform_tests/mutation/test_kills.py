"""The job of mutations killed with SIGKILL and run again, from the command line; over Spark Connect.

One point of each day is among the quick tests of ingestion, on the machine that is started there anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest

from engagement_platform_tests.ingestion.oracle import as_bytes
from engagement_platform_tests.ingestion.test_whole_path import Machine, machine
from engagement_platform_tests.mutation.histories import Message
from engagement_platform_tests.mutation.oracle import replay
from engagement_platform_tests.mutation.test_crashes import ALWAYS, MARK, MOVE, OPERATION, SETTLE, before, requests

__all__ = ["machine"]

pytestmark = [pytest.mark.broker, pytest.mark.crash, pytest.mark.slow]

HERE: Mapping[str, str] = {}
ALIAS = {"ENGAGEMENT_PLATFORM_MUTATION__APPLY": "alias"}
IN_SPARK = {"ENGAGEMENT_PLATFORM_LAYOUT__LIGHT_WRITE_ROWS": "0"}
OVERWRITE = {**IN_SPARK, "ENGAGEMENT_PLATFORM_MUTATION__APPLY": "overwrite"}
VECTORS = {**IN_SPARK, "ENGAGEMENT_PLATFORM_MUTATION__APPLY": "deletion_vectors"}

POINTS = (*ALWAYS, *OPERATION, *MARK, *SETTLE)


CASES = [
    *((point, HERE) for point in POINTS),
    *((point, ALIAS) for point in (*MARK, *ALWAYS[7:9], "data:recorded", "notification.append:after")),
    *((point, IN_SPARK) for point in (*MOVE, "data.rows:after", "alias.alias:after", "notification.append:before")),
    ("data.move:after", OVERWRITE),
]
"""Each with an organization of its own, named after its place."""
MOVED, MARKED = "org-moved", "org-marked"


def land(machine: Machine, topic: str, job: str, messages: Sequence[Message]) -> None:
    """Produce, and let the job land it."""
    file = machine.folder / "some.jsonl"
    file.write_bytes(b"".join(as_bytes(message) + b"\n" for message in messages))
    machine.cli("produce", "--file", str(file), "--topic", topic)
    machine.cli("run", job, "--until-idle")


def land_before(machine: Machine, *organizations: str) -> None:
    """What stands when the requests come."""
    messages = [message for organization in organizations for message in before(organization)]
    land(machine, "engagements", "ingest-engagements", messages)


@pytest.fixture(scope="module")
def landed(machine: Machine) -> Machine:
    """A machine with engagements of all organizations, in one batch: a run from the command line takes seconds."""
    land_before(machine, *(f"org-{number}" for number in range(len(CASES))), MOVED, MARKED)
    return machine


def assert_finished_once_after_a_kill(
    machine: Machine, organization: str, point: str, variables: Mapping[str, str]
) -> None:
    """Land requests of an organization whose engagements stand, kill, run again; its rows, names, announcements."""
    own = replace(machine, environment={**machine.environment, **variables})
    land(own, "mutation-requests", "ingest-mutation-requests", requests(organization))
    own.killed_at(point, "apply-mutations")
    own.cli("run", "apply-mutations", "--until-idle")
    assert_as_the_oracle_says(own, organization, [*before(organization), *requests(organization)])


def assert_as_the_oracle_says(own: Machine, organization: str, messages: list[Message]) -> None:
    out = own.folder / "current.parquet"
    own.cli("read", "engagement/current", "--where", f"organization_id = '{organization}'", "--out", str(out))
    rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    tables = replay(messages)
    shown = {
        (row["organization_id"], row["engagement_id"]): (row["person_id"], row["engagement"]["subject"]) for row in rows
    }
    assert len(shown) == len(rows)
    assert shown == {key: (row.person_id, row.subject) for key, row in tables.data.items()}
    names = own.rows("engagement/mapping", "organization_id", "id", "name")
    assert {(o, p): n for o, p, n in names if o == organization and n} == {k: n for k, (n, _) in tables.names.items()}
    told = own.rows("engagement/notification", "organization_id", "engagement_id", "change_type", "job_name")
    of_mutations = [(e, kind) for o, e, kind, job in told if o == organization and job == "apply-mutations"]
    assert sorted(of_mutations) == [
        ("e1", "UPDATE"),
        ("e2", "UPDATE"),
        ("e3", "UPDATE"),
        ("e4", "DELETE"),
        ("e5", "DELETE"),
    ]


def assert_moved(own: Machine, organization: str, messages: list[Message]) -> None:
    """The Data Table itself says what readers see, and nothing waits."""
    rows = own.rows("engagement/data", "organization_id", "engagement_id", "person_id")
    moved = {(org, engagement): person for org, engagement, person in rows if org == organization and person}
    assert moved == {key: row.person_id for key, row in replay(messages).data.items()}
    waits = own.rows("engagement/pending", "organization_id", "pending_from")
    assert [since for org, since in waits if org == organization] == [None]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[point for point, _ in CASES])
def test_mutations_killed_at_any_point_are_finished_once(landed: Machine, number: int) -> None:
    point, variables = CASES[number]
    assert_finished_once_after_a_kill(landed, f"org-{number}", point, variables)


def test_moving_what_waits_is_finished_once_after_a_kill(landed: Machine) -> None:
    own, organization = replace(landed, environment={**landed.environment, **ALIAS}), MOVED
    land(own, "mutation-requests", "ingest-mutation-requests", requests(organization))
    own.cli("run", "apply-mutations", "--until-idle")
    messages = [*before(organization), *requests(organization)]
    assert_as_the_oracle_says(own, organization, messages)
    own.killed_at("data.rows:after", "rematerialize-aliases")
    own.cli("run", "rematerialize-aliases", "--until-idle")
    assert_as_the_oracle_says(own, organization, messages)
    assert_moved(own, organization, messages)


def test_mutations_killed_while_rows_are_marked_are_finished_once(landed: Machine) -> None:
    """The last one on this machine: its Data Table has deletion vectors from here on."""
    assert_finished_once_after_a_kill(landed, MARKED, "data.move:after", VECTORS)

"""The job of mutations killed with SIGKILL and run again, from the command line; over Spark Connect."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pyarrow.parquet as pq
import pytest

from engagement_platform_tests.ingestion.oracle import as_bytes
from engagement_platform_tests.ingestion.test_whole_path import Machine, machine
from engagement_platform_tests.mutation.histories import Message
from engagement_platform_tests.mutation.oracle import replay
from engagement_platform_tests.mutation.test_crashes import ALWAYS, MARK, MOVE, OPERATION, SETTLE, before, requests

__all__ = ["machine"]

pytestmark = [pytest.mark.broker, pytest.mark.crash]

HERE: Mapping[str, str] = {}
ALIAS = {"ENGAGEMENT_PLATFORM_MUTATION__APPLY": "alias"}
IN_SPARK = {"ENGAGEMENT_PLATFORM_LAYOUT__LIGHT_WRITE_ROWS": "0"}
OVERWRITE = {**IN_SPARK, "ENGAGEMENT_PLATFORM_MUTATION__APPLY": "overwrite"}
VECTORS = {**IN_SPARK, "ENGAGEMENT_PLATFORM_MUTATION__APPLY": "deletion_vectors"}

# Other points every day; all of them among the slow tests.
A_FEW = random.Random(datetime.now(UTC).toordinal()).sample((*ALWAYS, *OPERATION, *MARK, *SETTLE), 1)


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    """Names of organizations: each kill has its own."""
    return count()


def landed(machine: Machine, number: int, variables: Mapping[str, str]) -> tuple[Machine, str]:
    """Engagements and requests of a new organization have landed; the machine under these variables, and its name."""
    own = replace(machine, environment={**machine.environment, **variables})
    organization = f"org-{number}"
    for topic, job, messages in (
        ("engagements", "ingest-engagements", before(organization)),
        ("mutation-requests", "ingest-mutation-requests", requests(organization)),
    ):
        file = own.folder / "some.jsonl"
        file.write_bytes(b"".join(as_bytes(message) + b"\n" for message in messages))
        own.cli("produce", "--file", str(file), "--topic", topic)
        own.cli("run", job, "--until-idle")
    return own, organization


def assert_finished_once_after_a_kill(machine: Machine, number: int, point: str, variables: Mapping[str, str]) -> None:
    """A new organization's requests, killed while they are applied, run again; its rows, names and announcements."""
    own, organization = landed(machine, number, variables)
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


@pytest.mark.parametrize("point", A_FEW)
def test_mutations_that_are_killed_are_finished_once(machine: Machine, numbers: Iterator[int], point: str) -> None:
    assert_finished_once_after_a_kill(machine, next(numbers), point, HERE)
    findings = [json.loads(line) for line in machine.cli("verify", "--identity", "--json").splitlines()]
    assert {finding["check"] for finding in findings} == {"identity", "names", "contents"}
    assert not any(finding["wrong"] for finding in findings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "variables"),
    [
        *((point, HERE) for point in (*ALWAYS, *OPERATION, *MARK, *SETTLE)),
        *((point, ALIAS) for point in (*MARK, *ALWAYS[7:9], "data:recorded", "notification.append:after")),
        *((point, IN_SPARK) for point in (*MOVE, "data.rows:after", "alias.alias:after", "notification.append:before")),
        ("data.move:after", OVERWRITE),
    ],
)
def test_mutations_killed_at_any_point_are_finished_once(
    machine: Machine, numbers: Iterator[int], point: str, variables: Mapping[str, str]
) -> None:
    assert_finished_once_after_a_kill(machine, next(numbers), point, variables)


@pytest.mark.slow
def test_moving_what_waits_is_finished_once_after_a_kill(machine: Machine, numbers: Iterator[int]) -> None:
    own, organization = landed(machine, next(numbers), ALIAS)
    own.cli("run", "apply-mutations", "--until-idle")
    messages = [*before(organization), *requests(organization)]
    assert_as_the_oracle_says(own, organization, messages)
    own.killed_at("data.rows:after", "rematerialize-aliases")
    own.cli("run", "rematerialize-aliases", "--until-idle")
    assert_as_the_oracle_says(own, organization, messages)
    rows = own.rows("engagement/data", "organization_id", "engagement_id", "person_id")
    moved = {(org, engagement): person for org, engagement, person in rows if org == organization and person}
    assert moved == {key: row.person_id for key, row in replay(messages).data.items()}
    waits = own.rows("engagement/pending", "organization_id", "pending_from")
    assert [since for org, since in waits if org == organization] == [None]


@pytest.mark.slow
def test_mutations_killed_while_rows_are_marked_are_finished_once(machine: Machine, numbers: Iterator[int]) -> None:
    """The last one on this machine: its Data Table has deletion vectors from here on."""
    assert_finished_once_after_a_kill(machine, next(numbers), "data.move:after", VECTORS)

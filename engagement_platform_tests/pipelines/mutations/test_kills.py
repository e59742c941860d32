"""The jobs of requests killed with SIGKILL in and between all processes, and run again.

From the command line, over Spark Connect; each kill is about an organization of its own. One point of each third day is
among the quick tests of ingestion, on the machine that is started there anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import pyarrow.parquet as pq
import pytest

from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform_tests.ingestion.oracle import as_bytes
from engagement_platform_tests.ingestion.test_whole_path import Machine, machine
from engagement_platform_tests.matrix import spread
from engagement_platform_tests.pipelines.mutations.histories import Message
from engagement_platform_tests.pipelines.mutations.oracle import replay
from engagement_platform_tests.pipelines.mutations.test_crashes import JOBS, POINTS, after, before, requests

__all__ = ["machine"]

pytestmark = [pytest.mark.broker, pytest.mark.crash, pytest.mark.slow]

DURABLE = [(job, point) for job in JOBS for point in POINTS[job] if point.endswith((":after", ":recorded"))]
"""Jobs and points after something was kept: a kill before the next commit leaves what a kill after this one leaves."""
A_DAY = 4
"""Kills of a day: each takes a minute. All of them end in an exception in `test_crashes`."""
STRATEGIES = cycle(["merge", "overwrite", "deletion_vectors"])


def produce(machine: Machine, topic: str, messages: Sequence[Message]) -> None:
    """Put messages on a topic."""
    file = machine.folder / "some.jsonl"
    file.write_bytes(b"".join(as_bytes(message) + b"\n" for message in messages))
    machine.cli("produce", "--file", str(file), "--topic", topic)


def ingest(machine: Machine, messages: Sequence[Message]) -> None:
    """Engagements, ingested."""
    produce(machine, "engagements", messages)
    machine.cli("run", "ingest-engagements", "--until-idle")


def under(machine: Machine, variables: Mapping[str, str]) -> Machine:
    """The same machine with other settings."""
    return replace(machine, environment={**machine.environment, **variables})


def assert_finished_once_after_a_kill(machine: Machine, organization: str, job: str, point: str) -> None:
    """An organization's requests go through the three jobs, one of which is killed and run again.

    Late engagements come before they are announced, so that the changeset has an image that is moved.
    """
    ingest(machine, before(organization))
    produce(machine, "mutation-requests", requests(organization))
    for each in JOBS:
        if each == job:
            machine.killed_at(point, job)
        machine.cli("run", each, "--until-idle")
        if each == JOBS[0]:
            ingest(machine, after(organization))
        if each == APPLY_MUTATIONS:
            assert_as_the_oracle_says(machine, organization)
    assert_as_the_oracle_says(machine, organization)
    assert_moved(machine, organization)


def read(own: Machine, table: str, organization: str) -> list[dict[str, Any]]:
    """Rows of an organization, through Spark: nothing else reads deletion vectors."""
    out = own.folder / "read.parquet"
    own.cli("read", table, "--where", f"organization_id = '{organization}'", "--out", str(out))
    rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    return rows


def assert_as_the_oracle_says(own: Machine, organization: str) -> None:
    """Rows and names that readers see, and announcements, of an organization whose requests are announced."""
    expected = replay([*before(organization), *requests(organization), *after(organization)])
    rows = read(own, "engagement/current", organization)
    shown = {
        (row["organization_id"], row["engagement_id"]): (row["person_id"], row["engagement"]["subject"]) for row in rows
    }
    assert len(shown) == len(rows)
    assert shown == {key: (row.person_id, row.subject) for key, row in expected.data.items()}
    names = {(row["organization_id"], row["id"]): row["name"] for row in read(own, "engagement/mapping", organization)}
    assert names == {key: name for key, (name, _) in expected.names.items()}
    told = own.rows("engagement/notification", "organization_id", "engagement_id", "change_type", "job_name")
    of_mutations = [(e, kind) for o, e, kind, job in told if o == organization and job == APPLY_MUTATIONS]
    kinds = {f"e{n}": "UPDATE" for n in (1, 2, 3, 6)} | {f"e{n}": "DELETE" for n in (4, 5, 7)}
    assert sorted(of_mutations, key=repr) == sorted(kinds.items())


def assert_moved(own: Machine, organization: str) -> None:
    """The Data Table itself says what readers see."""
    rows = read(own, "engagement/data", organization)
    moved = {(row["organization_id"], row["engagement_id"]): row["person_id"] for row in rows if row["person_id"]}
    expected = replay([*before(organization), *requests(organization), *after(organization)])
    assert moved == {key: row.person_id for key, row in expected.data.items()}


@pytest.mark.parametrize(("job", "point"), spread(DURABLE, A_DAY))
def test_requests_are_seen_announced_and_moved_once_whichever_job_is_killed(
    machine: Machine, job: str, point: str
) -> None:
    own = under(machine, {"ENGAGEMENT_PLATFORM_MUTATION__APPLY": next(STRATEGIES)})
    assert_finished_once_after_a_kill(own, f"{job}.{point.replace(':', '-')}", job, point)


def test_the_points_are_those_that_undisturbed_jobs_pass(machine: Machine) -> None:
    ingest(machine, before("undisturbed"))
    produce(machine, "mutation-requests", requests("undisturbed"))
    for job in JOBS:
        assert sorted(machine.passed(job)) == sorted(POINTS[job])
        if job == JOBS[0]:
            ingest(machine, after("undisturbed"))
    assert JOBS[-1] == REMATERIALIZE_ALIASES
    assert_moved(machine, "undisturbed")

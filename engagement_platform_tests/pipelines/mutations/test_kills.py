"""The jobs of mutations killed with SIGKILL in and between all processes, under every way of applying requests.

From the command line, over Spark Connect. Each kill is of a batch of its own, about an organization of its own; the
process that is killed next finishes it first, as one does that is started again and again.
One point of each day is among the quick tests of ingestion, on the machine that is started there anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest

from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform_tests.daily import some_of_today
from engagement_platform_tests.ingestion.oracle import as_bytes
from engagement_platform_tests.ingestion.test_whole_path import Machine, machine
from engagement_platform_tests.pipelines.mutations.histories import Message
from engagement_platform_tests.pipelines.mutations.oracle import replay
from engagement_platform_tests.pipelines.mutations.test_crashes import (
    ALWAYS,
    EVERY,
    MARK,
    MOVE,
    OPERATION,
    SETTLE,
    before,
    organization_of,
    requests,
)

__all__ = ["machine"]

pytestmark = [pytest.mark.broker, pytest.mark.crash, pytest.mark.slow]

HERE: Mapping[str, str] = {}
IN_SPARK = {"ENGAGEMENT_PLATFORM_LAYOUT__LIGHT_WRITE_ROWS": "0"}
IN_SPARK_A_DAY = 2
"""Kills under each way of Spark."""
POINTS = (*ALWAYS, *OPERATION, *MARK, *SETTLE)
"""What a batch of few requests passes here."""


def by(strategy: str, where: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of a strategy."""
    return {**where, "ENGAGEMENT_PLATFORM_MUTATION__APPLY": strategy}


ALIAS = by("alias", HERE)
WAYS = {
    "spark-merge": (by("merge", IN_SPARK), EVERY),
    "spark-overwrite": (by("overwrite", IN_SPARK), (*(p for p in ALWAYS if not p.startswith("data.rows")), *MOVE)),
    "spark-alias": (by("alias", IN_SPARK), (*ALWAYS, *MARK)),
    "here": (HERE, POINTS),
    "here-alias": (ALIAS, (*ALWAYS, *MARK)),
}
"""How requests are applied, and the points that a batch passes then."""
VECTORS = by("deletion_vectors", IN_SPARK)
ROWS = ("data.rows:before", "data.rows:after")
MOVED = {
    "here": (HERE, (*OPERATION, *ROWS, *SETTLE)),
    "spark-merge": (by("merge", IN_SPARK), (*OPERATION, *MOVE, *ROWS, *SETTLE)),
    "spark-overwrite": (by("overwrite", IN_SPARK), (*MOVE, *SETTLE)),
}
"""How what waits is moved, and the points of the commits that this takes."""
MOVE_BEGINS, MOVE_ENDS = ("manifest:before", "manifest:after"), ("data:recorded", "purge:recorded", "finalized")


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


def under(machine: Machine, variables: Mapping[str, str]) -> Machine:
    """The same machine with other settings."""
    return replace(machine, environment={**machine.environment, **variables})


APART = {"ENGAGEMENT_PLATFORM_BATCH__MAX_RECORDS": str(len(requests("one")))}
"""With this the requests of each organization are a batch."""


def land_requests(machine: Machine, *organizations: str) -> None:
    """So that they may be applied apart."""
    messages = [message for organization in organizations for message in requests(organization)]
    land(under(machine, APART), "mutation-requests", "ingest-mutation-requests", messages)


def assert_finished_once_after_a_kill(
    machine: Machine, organization: str, point: str, variables: Mapping[str, str]
) -> None:
    """Land requests of an organization whose engagements stand, kill, run again; its rows, names, announcements."""
    land_requests(machine, organization)
    own = under(machine, variables)
    own.killed_at(point, APPLY_MUTATIONS)
    own.cli("run", APPLY_MUTATIONS, "--until-idle")
    assert_as_the_oracle_says(own, organization)


def read(own: Machine, table: str, organizations: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of some organizations, through Spark: nothing else reads deletion vectors."""
    out = own.folder / "read.parquet"
    listed = ", ".join(f"'{organization}'" for organization in organizations)
    own.cli("read", table, "--where", f"organization_id IN ({listed})", "--out", str(out))
    rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    return rows


def assert_as_the_oracle_says(own: Machine, *organizations: str) -> None:
    """Rows that readers see, names, and announcements, of organizations whose requests are applied."""
    tables = [replay([*before(organization), *requests(organization)]) for organization in organizations]
    rows = read(own, "engagement/current", organizations)
    shown = {
        (row["organization_id"], row["engagement_id"]): (row["person_id"], row["engagement"]["subject"]) for row in rows
    }
    assert len(shown) == len(rows)
    assert shown == {key: (row.person_id, row.subject) for table in tables for key, row in table.data.items()}
    standing = own.rows("engagement/mapping", "organization_id", "id", "name")
    names = {(o, p): n for o, p, n in standing if o in organizations and n}
    assert names == {key: name for table in tables for key, (name, _) in table.names.items()}
    told = own.rows("engagement/notification", "organization_id", "engagement_id", "change_type", "job_name")
    of_mutations = [(o, e, kind) for o, e, kind, job in told if o in organizations and job == APPLY_MUTATIONS]
    kinds = {"e1": "UPDATE", "e2": "UPDATE", "e3": "UPDATE", "e4": "DELETE", "e5": "DELETE"}
    assert sorted(of_mutations, key=repr) == sorted(
        ((organization, *change) for organization in organizations for change in kinds.items()), key=repr
    )


def assert_moved(own: Machine, *organizations: str) -> None:
    """The Data Table itself says what readers see, and nothing waits."""
    rows = read(own, "engagement/data", organizations)
    moved = {(row["organization_id"], row["engagement_id"]): row["person_id"] for row in rows if row["person_id"]}
    tables = [replay([*before(organization), *requests(organization)]) for organization in organizations]
    assert moved == {key: row.person_id for table in tables for key, row in table.data.items()}
    assert [since for (since,) in own.rows("engagement/pending", "pending_from") if since is not None] == []


def named(way: str, points: Sequence[str]) -> list[str]:
    """An organization for each point, and one that is disturbed by nothing."""
    return [f"{way}.undisturbed", *(f"{way}.{organization_of(point)}" for point in points)]


def durable(points: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Those after something was kept: a kill before the next commit leaves what a kill after this one leaves.

    In Spark a few of them, others each day: a kill takes half a minute there. All of them end in an exception in
    `test_crashes`, also there.
    """
    found = [point for point in points if point.endswith((":after", ":recorded"))]
    return some_of_today(found, IN_SPARK_A_DAY) if variables.items() >= IN_SPARK.items() else found


def assert_finished_once_wherever_it_is_killed(
    machine: Machine, way: str, variables: Mapping[str, str], points: Sequence[str]
) -> None:
    """A batch for each point, killed there; at last what an undisturbed one leaves stands of all."""
    kills = durable(points, variables)
    organizations = named(way, kills)
    land_before(machine, *organizations)
    own = under(machine, variables)
    land_requests(machine, organizations[0])
    assert set(own.passed(APPLY_MUTATIONS)) == set(points)
    land_requests(machine, *organizations[1:])
    for point in kills:
        under(own, APART).killed_at(point, APPLY_MUTATIONS, new=True)
    own.cli("run", APPLY_MUTATIONS, "--until-idle")
    assert_as_the_oracle_says(own, *organizations)
    own.cli("run", REMATERIALIZE_ALIASES, "--until-idle")
    assert_as_the_oracle_says(own, *organizations)
    assert_moved(own, *organizations)


def assert_moved_once_wherever_that_is_killed(
    machine: Machine, way: str, variables: Mapping[str, str], commits: Sequence[str]
) -> None:
    """Organizations wait, and the batch that moves each is killed at another point; readers see no difference."""
    points = [*MOVE_BEGINS, *commits, *MOVE_ENDS]
    kills = durable(points, variables)
    organizations = named(f"{way}.moved", kills)
    land_before(machine, *organizations)
    waiting, own = under(machine, ALIAS), under(machine, variables)
    apart = under(own, {"ENGAGEMENT_PLATFORM_MUTATION__REMATERIALIZE_ORGANIZATIONS": "1"})
    land_requests(machine, organizations[0])
    waiting.cli("run", APPLY_MUTATIONS, "--until-idle")
    assert set(apart.passed(REMATERIALIZE_ALIASES)) == set(points)
    land_requests(machine, *organizations[1:])
    waiting.cli("run", APPLY_MUTATIONS, "--until-idle")
    for point in kills:
        apart.killed_at(point, REMATERIALIZE_ALIASES, new=True)
    assert_as_the_oracle_says(own, *organizations)
    apart.cli("run", REMATERIALIZE_ALIASES, "--until-idle")
    assert_as_the_oracle_says(own, *organizations)
    assert_moved(own, *organizations)


@pytest.mark.parametrize("way", WAYS)
def test_mutations_killed_at_any_point_are_finished_once(machine: Machine, way: str) -> None:
    assert_finished_once_wherever_it_is_killed(machine, way, *WAYS[way])


@pytest.mark.parametrize("way", MOVED)
def test_moving_what_waits_is_finished_once_wherever_it_is_killed(machine: Machine, way: str) -> None:
    assert_moved_once_wherever_that_is_killed(machine, way, *MOVED[way])


def test_a_purge_that_is_killed_again_and_again_removes_what_was_deleted_and_nothing_else(machine: Machine) -> None:
    """Requests of days ago are final where a late one may be an hour late."""
    land_before(machine, "purged")
    land_requests(machine, "purged")
    machine.cli("run", APPLY_MUTATIONS, "--until-idle")
    hidden = [row for row in machine.rows("engagement/data", "organization_id", "person_id") if row == ("purged", None)]
    assert len(hidden) == 2
    strict = under(machine, {"ENGAGEMENT_PLATFORM_MUTATION__MAX_LATENESS": "PT1H"})
    for point in ("purge.delete:before", "purge.delete:after", "purge:recorded"):
        strict.killed_at(point, REMATERIALIZE_ALIASES)
    strict.cli("run", REMATERIALIZE_ALIASES, "--until-idle")
    assert [row for row in machine.rows("engagement/data", "organization_id", "person_id") if row[1] is None] == []
    assert_as_the_oracle_says(machine, "purged")


def test_mutations_killed_while_rows_are_marked_are_finished_once(machine: Machine) -> None:
    """The last ones on this machine: its Data Table has deletion vectors from here on."""
    assert_finished_once_wherever_it_is_killed(machine, "spark-vectors", VECTORS, EVERY)


def test_moving_what_waits_is_finished_once_wherever_it_is_killed_while_rows_are_marked(machine: Machine) -> None:
    assert_moved_once_wherever_that_is_killed(machine, "spark-vectors", VECTORS, MOVED["spark-merge"][1])

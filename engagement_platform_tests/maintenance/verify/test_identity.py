"""Verify with mutations: sound after random histories and between the commits of a batch, and each fault is found."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from engagement_platform.lake.engagement import ALIAS, CHANGESET, MAPPING, NOTIFICATION, QUARANTINE
from engagement_platform.maintenance.verify import recomputed
from engagement_platform.maintenance.verify.finding import Finding
from engagement_platform.maintenance.verify.identity import identity_findings, sampled
from engagement_platform.maintenance.verify.messages import verify
from engagement_platform.maintenance.verify.recomputed import compare, compared
from engagement_platform.pipelines.engagements.schema import ROW, STATE
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.mutations.rules import current_rows
from engagement_platform.pipelines.mutations.view import Pending, shown
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import Settings
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.ingestion.conftest import MakeWorld, make_world
from engagement_platform_tests.ingestion.world import World, ignore
from engagement_platform_tests.matrix import quick
from engagement_platform_tests.pipelines.lakes import MemoryLake
from engagement_platform_tests.pipelines.mutations.histories import (
    Message,
    convert,
    delete,
    engagement,
    random_history,
    request,
)
from engagement_platform_tests.pipelines.tables import state_tables
from engagement_platform_tests.pipelines.test_histories import run

CHECKS = ("lost", "vanished", "doubled", "announced", "notified_twice", "quarantined_twice")
RECOMPUTED = ("identity", "contents", "names", "accepted_once")

__all__ = ["make_world"]


class Stop(Exception):
    """The process ends here."""


def in_memory(*seeds: int) -> list[MemoryLake]:
    return [run(random_history(seed, conflicts=True, size=40), random.Random(seed)) for seed in seeds]


def compared_with(lake: MemoryLake, state: pa.Table, rows: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Ids of the engagements that are found wrong."""
    view = pa.Table.from_pylist(rows, schema=ROW)
    found = compared(lake.organization_id, state, view, lake.watermark).to_pylist()
    return {
        check: {row["engagement_id"] for row in found if row[check]} for check in ("wrong_identity", "wrong_content")
    }


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_what_the_pipelines_leave_is_right_whatever_was_moved(first: int) -> None:
    for lake in in_memory(*range(first, first + 50)):
        state = lake.state(None, None)
        rows = current_rows(lake.organization_id, state).to_pylist()
        assert compared_with(lake, state, rows) == {"wrong_identity": set(), "wrong_content": set()}


def at_rest() -> tuple[MemoryLake, list[dict[str, Any]]]:
    """A lake of which nothing waits, and what readers see of it."""
    lake = MemoryLake("org")
    lake.ingest([(n, engagement(f"e{n}", f"p{n}", 1)) for n in range(3)])
    lake.accept([convert("r0", "p0", "p9", 2), delete("r1", 2, from_id="p1")])
    lake.accept([request("r2", "UPDATE", 2, engagement_id="e2", subject="patched")])
    lake.move()
    return lake, current_rows("org", lake.state(None, None)).to_pylist()


@pytest.mark.parametrize(
    ("engagement_id", "fault", "check"),
    [
        ("e0", {"person_id": "p0"}, "wrong_identity"),
        ("e0", {"person_id": None}, "wrong_identity"),
        ("e0", {"version": 2}, "wrong_identity"),
        ("e1", {"person_id": "p1"}, "wrong_identity"),
        ("e2", {"engagement": {"type": "email", "subject": "as it came"}}, "wrong_content"),
        ("e0", {"original": {"type": "call"}}, "wrong_content"),
    ],
)
def test_a_row_that_readers_see_otherwise_than_it_follows_is_found(
    engagement_id: str, fault: dict[str, Any], check: str
) -> None:
    lake, rows = at_rest()
    state = lake.state(None, None)
    for row in rows:
        row.update(fault if row["engagement_id"] == engagement_id else {})
    expected = {"wrong_identity": set[str](), "wrong_content": set[str](), check: {engagement_id}}
    assert compared_with(lake, state, rows) == expected
    assert compared_with(lake, state, rows[1:])["wrong_identity"] >= {"e0"}, "a row that is missing"


def test_a_row_that_is_stored_otherwise_is_found_where_nothing_waits_that_may_change_it() -> None:
    lake, rows = at_rest()
    lake.base["e0"]["person_id"] = "p0"
    lake.base["e2"]["engagement"] = {"type": "email", "subject": "as it came"}
    wrong = {"wrong_identity": {"e0"}, "wrong_content": {"e2"}}
    assert compared_with(lake, lake.state(None, None), rows) == wrong
    lake.accept([request("r3", "UPDATE", 1.5, engagement_id="e2", channel="web")])
    now = current_rows("org", lake.state(None, None)).to_pylist()
    assert compared_with(lake, lake.state(None, None), now) == {**wrong, "wrong_content": set()}
    lake.accept([convert("r4", "p5", "p6", 3)])
    assert compared_with(lake, lake.state(None, None), now) == {"wrong_identity": set(), "wrong_content": set()}


def test_a_view_that_leaves_out_what_waits_is_found() -> None:
    lake, _ = at_rest()
    lake.ingest([(3, engagement("e2", "p2", 1, version=2, subject="newer"))])
    lake.accept([convert("r5", "p9", "p8", 3)])
    state = lake.state(None, None)
    stored = [{**row, "organization_id": "org"} for row in lake.base.values()]
    view = [{name: row[name] for name in ROW.names} for row in stored]
    assert compared_with(lake, state, view) == {"wrong_identity": {"e0", "e2"}, "wrong_content": {"e2"}}


def test_a_row_that_only_readers_see_is_wrong() -> None:
    lake, rows = at_rest()
    nothing = STATE.empty_table()
    assert compared_with(lake, nothing, rows)["wrong_identity"] == {"e0", "e1", "e2"}


WATERMARK = 1000


def on_one_line(lake: MemoryLake, sequence: int) -> int:
    """Sequences of all lakes on one line: what a lake has moved stays below WATERMARK, what waits comes above."""
    return sequence if sequence <= lake.watermark else WATERMARK + sequence


def test_spark_compares_every_row_in_portions_of_an_organization(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputed, "ROWS_PER_GROUP", 2)
    lakes = in_memory(*range(30))
    base, images, edges, patches = map(spark.createDataFrame, state_tables(lakes, on_one_line))
    pending = Pending(WATERMARK, images, edges, patches, moves_identity=True)
    found = compare(base, pending, shown(base, pending)).toArrow().to_pylist()
    assert len(found) == sum(len(lake.base) for lake in lakes)
    assert [row for row in found if row["wrong_identity"] or row["wrong_content"]] == []


def send(
    world: World,
    messages: list[Message],
    jobs: Sequence[str] = (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS),
) -> None:
    """One batch of each job."""
    world.produce([message for message in messages if "request_id" not in message])
    world.produce_requests([message for message in messages if "request_id" in message])
    for job in jobs:
        world.run(name=job)


def found(world: World, sample: int | None = None) -> dict[str, Finding]:
    findings = [*verify(world.settings, world.spark), *identity_findings(world.settings, world.spark, sample)]
    return {finding.check: finding for finding in findings}


def wrong(findings: dict[str, Finding]) -> dict[str, list[str]]:
    """Check -> examples, of those that found something."""
    return {check: sorted(finding.examples) for check, finding in findings.items() if finding.wrong}


@pytest.mark.broker
@pytest.mark.slow
def test_nothing_is_wrong_after_random_histories(make_world: MakeWorld) -> None:
    world = make_world()
    rng = random.Random(4)
    messages = [message for seed in range(12) for message in random_history(seed, conflicts=seed % 4 == 0)]
    rng.shuffle(messages)
    third = len(messages) // 3
    send(world, messages[:third])
    world.run(name=REMATERIALIZE_ALIASES)
    send(world, messages[third : 2 * third])
    send(world, messages[2 * third :], (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS))
    unannounced = found(world)
    assert tuple(unannounced) == ("ledger", *CHECKS, *RECOMPUTED)
    assert wrong(unannounced) == {}
    for job in (APPLY_MUTATIONS, REMATERIALIZE_ALIASES):
        world.run(name=job)
        findings = found(world)
        assert wrong(findings) == {}
    rows = len(world.rows(world.data))
    assert findings["identity"].looked_at == findings["contents"].looked_at == rows > 20
    assert findings["names"].looked_at > 15
    part_of = identity_findings(world.settings, world.spark, sample=3)
    assert [finding.wrong for finding in part_of] == [0, 0, 0, 0]
    assert 0 < part_of[0].looked_at < rows


ALL_COMMITS = {
    INGEST_ENGAGEMENTS: ("tables.changeset:after", "tables.data:after", "notification.append:before"),
    INGEST_MUTATION_REQUESTS: ("tables.alias:after",),
    APPLY_MUTATIONS: ("notification.append:after",),
    REMATERIALIZE_ALIASES: ("base.data:after", "base.mapping:after", "changeset.delete:after"),
}


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.parametrize("job", quick(list(ALL_COMMITS)))
def test_the_commits_of_a_batch_are_not_wrong_before_it_is_finished(make_world: MakeWorld, job: str) -> None:
    world = make_world()
    send(world, [engagement(f"e{n}", f"p{n}", 1, person_name=f"Name {n}") for n in range(4)])
    requests = [
        convert("r1", "p0", "p9", 2),
        delete("r2", 2, from_id="p1"),
        request("r3", "UPDATE", 2, engagement_id="e2", subject="patched"),
        request("r4", "RENAME", 2, from_id="p3", name="Renamed"),
    ]
    later = [engagement("e3", "p8", 1, version=2, person_name="Other"), engagement("e4", "p0", 1)]
    jobs = list(ALL_COMMITS)
    send(world, [*requests, *later], jobs[: jobs.index(job)])
    for point in ALL_COMMITS[job]:

        def observe(passed: str, point: str = point) -> None:
            if passed == point:
                raise Stop

        with pytest.raises(Stop):
            world.run(observe, job)
        assert wrong(found(world)) == {}, point
    for each in (job, *jobs):
        world.run(ignore, each)
    assert wrong(found(world)) == {}


FAULTS = (
    # A row that is seen, and one that is not any more.
    "DELETE FROM {data} WHERE engagement_id IN ('lost', 'purged')",
    "UPDATE {data} SET person_id = 'p7' WHERE engagement_id IN ('moved', 'unreached')",
    "UPDATE {data} SET person_id = 'p1' WHERE engagement_id = 'back'",
    "UPDATE {data} SET person_id = NULL WHERE engagement_id = 'hid'",
    # Readers do not look at it: an edge waits that decides it.
    "UPDATE {data} SET person_id = 'p7' WHERE engagement_id = 'before'",
    "INSERT INTO {data} SELECT * FROM {data} WHERE engagement_id = 'twice'",
    """UPDATE {data} SET engagement = named_struct('type', engagement.type, 'channel', engagement.channel,
       'subject', 'as it came', 'attributes', engagement.attributes) WHERE engagement_id = 'patched'""",
    "UPDATE {mapping} SET name = 'Not Ann' WHERE id = 'p9'",
    "DELETE FROM {mapping} WHERE id = 'p4'",
    "INSERT INTO {mapping} SELECT * FROM {mapping} WHERE id = 'p3'",
    "INSERT INTO {alias} SELECT * FROM {alias} WHERE organization_id = 'org' AND request_id = 'r1'",
    "DELETE FROM {changeset} WHERE engagement_id = 'stale'",
    "ALTER TABLE {notification} SET TBLPROPERTIES ('delta.appendOnly' = 'false')",
    "DELETE FROM {notification} WHERE engagement_id = 'not announced'",
    "INSERT INTO {notification} SELECT * FROM {notification} WHERE engagement_id = 'announced twice'",
    "ALTER TABLE {quarantine} SET TBLPROPERTIES ('delta.appendOnly' = 'false')",
    "INSERT INTO {quarantine} SELECT * FROM {quarantine} WHERE offset = 0",
    "DELETE FROM {quarantine} WHERE offset = 1",
)
TWICE = 2 + 11
"""Offset of the engagement that is announced twice."""


def of(organization: str, message: Message) -> Message:
    return {**message, "organization_id": organization}


@pytest.fixture(scope="module")
def world(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """`org` is moved; in `later` an edge, a version and a name wait, and a deletion is not announced."""
    world = World(spark, broker, tmp_path_factory.mktemp("verify-identity"))
    # Both are quarantined.
    world.produce([None, None])
    names = {"lost": {"person_name": "Ann"}}
    send(
        world,
        [
            *(engagement(name, "p0", 1, **names.get(name, {})) for name in ("lost", "moved", "hid")),
            *(engagement(name, "p1", 1) for name in ("purged", "back", "twice")),
            engagement("patched", "p3", 1, person_name="Bo"),
            *(of("later", engagement(name, "p0", 1)) for name in ("before", "newer")),
            *(of("later", engagement(name, name, 1)) for name in ("unreached", "withdrawn")),
            *(engagement(name, "p5", 1) for name in ("announced twice", "not announced", "stale")),
            convert("r1", "p0", "p9", 2),
            delete("r2", 2, from_id="p1"),
            request("r3", "UPDATE", 2, engagement_id="patched", subject="patched"),
            request("r4", "RENAME", 2, from_id="p4", name="Cy"),
        ],
    )
    world.run(name=REMATERIALIZE_ALIASES)
    newer = of("later", engagement("newer", "p2", 1, version=2, person_name="Di"))
    send(world, [newer, engagement("stale", "p5", 1, version=2), of("later", convert("r1", "p0", "p1", 2))])
    send(world, [of("later", delete("r2", 2, from_id="withdrawn"))], (INGEST_MUTATION_REQUESTS,))
    stored = {row["engagement_id"]: row["person_id"] for row in world.rows(world.data)}
    assert [stored[name] for name in ("moved", "purged", "before", "newer")] == ["p9", None, "p0", "p0"]
    return world


@pytest.fixture(scope="module")
def sound(world: World) -> dict[str, Finding]:
    """Findings before anything is spoiled."""
    return found(world)


@pytest.fixture(scope="module")
def faulty(world: World, sound: dict[str, Finding]) -> dict[str, list[str]]:
    """Examples after every fault was planted, each on rows of its own."""
    tables = (world.data, MAPPING, ALIAS, CHANGESET, NOTIFICATION, QUARANTINE)
    names = {table.key[-1]: world.lake.sql_name(table) for table in tables}
    for statement in FAULTS:
        world.spark.sql(statement.format(**names)).collect()
    return wrong(found(world))


@pytest.mark.broker
def test_what_waits_and_what_is_not_announced_yet_is_right(sound: dict[str, Finding]) -> None:
    assert wrong(sound) == {}
    looked_at = {check: sound[check].looked_at for check in ("lost", *RECOMPUTED)}
    assert looked_at == {"lost": 14, "identity": 14, "contents": 14, "names": 5, "accepted_once": 4}
    assert all(finding.meaning and not finding.examples for finding in sound.values())


@pytest.mark.broker
def test_every_planted_fault_is_found_and_nothing_else(world: World, faulty: dict[str, list[str]]) -> None:
    app_id = world.stores.checkpoints.app_id(INGEST_ENGAGEMENTS)
    assert faulty == {
        "lost": ["lost", "purged", "stale"],
        "vanished": ["1"],
        "doubled": ["twice"],
        # By identities that are recomputed, since not every request is announced.
        "announced": ["announced twice", "lost", "not announced"],
        "notified_twice": [f"{app_id}/0/{world.topics[0]}/0/{TWICE}"],
        "quarantined_twice": ["0"],
        "identity": ["later/unreached", "org/back", "org/hid", "org/moved"],
        "contents": ["org/patched"],
        "names": ["org/p3", "org/p4", "org/p9"],
        "accepted_once": ["org/r1"],
    }


@pytest.mark.broker
def test_a_sample_finds_what_is_wrong_in_its_organizations(world: World, faulty: dict[str, list[str]]) -> None:
    """All organizations are in the sample."""
    findings = identity_findings(world.settings, world.spark, sample=100)
    assert [sorted(finding.examples) for finding in findings] == [faulty[check] for check in RECOMPUTED]


def test_before_there_is_a_lake_nothing_is_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    findings = identity_findings(Settings(home=tmp_path), spark)
    assert [(finding.check, finding.looked_at, finding.wrong) for finding in findings] == [
        ("identity", 0, 0),
        ("accepted_once", 0, 0),
    ]


@given(st.sets(st.text()), st.integers(1, 5), st.dates(date(2000, 1, 1), date(2100, 1, 1)), st.randoms())
def test_a_sample_is_the_same_all_day_however_organizations_are_listed(
    organizations: set[str], size: int, day: date, shuffle: random.Random
) -> None:
    listed = sorted(organizations)
    chosen = sampled(listed, size, day)
    shuffle.shuffle(listed)
    assert sampled(listed, size, day) == chosen == sorted(set(chosen))
    assert len(chosen) == min(size, len(organizations))
    assert set(chosen) <= organizations


def test_every_organization_gets_its_turn() -> None:
    today = datetime(2026, 11, 21, tzinfo=UTC).date()
    organizations = [f"org-{n}" for n in range(20)]
    turns = [sampled(organizations, 5, today + timedelta(days=n)) for n in range(40)]
    assert {name for turn in turns for name in turn} == set(organizations)
    assert turns[0] != turns[1]

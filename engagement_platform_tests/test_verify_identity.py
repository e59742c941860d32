"""Verify with mutations: sound after random histories and between the commits of a batch, and each fault is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from engagement_platform.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.lake.engagement import MAPPING, PENDING
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import MutationSettings, Settings
from engagement_platform.verify import Finding, identity, identity_findings, verify
from engagement_platform.verify.identity import sampled
from engagement_platform.verify.logs import portions
from engagement_platform_tests.conftest import Broker
from engagement_platform_tests.daily import every_third_day
from engagement_platform_tests.ingestion.world import World, ignore
from engagement_platform_tests.pipelines.mutations.histories import (
    Message,
    convert,
    delete,
    engagement,
    random_history,
    request,
)

CHECKS = ("lost", "vanished", "doubled", "announced", "notified_twice", "quarantined_twice")
RECOMPUTED = ("identity", "names", "contents")

MakeWorld = Callable[..., World]


class Stop(Exception):
    """The process ends here."""


@pytest.fixture
def make_world(spark: SparkSession, broker: Broker, tmp_path: Path) -> MakeWorld:
    return lambda **options: World(spark, broker, tmp_path / "world", **options)


def send(world: World, messages: list[Message]) -> None:
    """One batch of each job."""
    world.produce([message for message in messages if "request_id" not in message])
    world.produce_requests([message for message in messages if "request_id" in message])
    for job in (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS):
        world.run(name=job)


def found(world: World, sample: int | None = None) -> dict[str, Finding]:
    findings = [*verify(world.settings, world.spark), *identity_findings(world.settings, world.spark, sample)]
    return {finding.check: finding for finding in findings}


def wrong(findings: dict[str, Finding]) -> dict[str, list[str]]:
    """Check -> examples, of those that found something."""
    return {check: sorted(finding.examples) for check, finding in findings.items() if finding.wrong}


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("apply", ["merge", "alias"])
def test_nothing_is_wrong_after_random_histories(make_world: MakeWorld, apply: Any) -> None:
    world = make_world(mutation=MutationSettings(apply=apply))
    rng = random.Random(4)
    messages = [message for seed in range(12) for message in random_history(seed, conflicts=seed % 4 == 0)]
    rng.shuffle(messages)
    third = len(messages) // 3
    for part in (messages[:third], messages[third : 2 * third], messages[2 * third :]):
        send(world, part)
    findings = found(world)
    assert tuple(findings) == ("ledger", *CHECKS, *RECOMPUTED)
    assert wrong(findings) == {}
    rows = len(world.rows(world.data))
    assert findings["identity"].looked_at == rows > 20
    assert findings["names"].looked_at > 15
    assert findings["contents"].looked_at > 2
    part_of = identity_findings(world.settings, world.spark, sample=3)
    assert [finding.wrong for finding in part_of] == [0, 0, 0]
    assert 0 < part_of[0].looked_at < rows
    all_of = identity_findings(world.settings, world.spark, sample=1000)
    assert [(finding.wrong, finding.looked_at) for finding in all_of] == [
        (0, findings[check].looked_at) for check in RECOMPUTED
    ]


BETWEEN_COMMITS = ("alias.alias:after", "notification.append:after")


@every_third_day(0)
@pytest.mark.broker
def test_the_commits_of_a_batch_of_mutations_are_not_wrong_before_it_is_finished(make_world: MakeWorld) -> None:
    """One of the two points every other day, and both in turn among the slow tests."""
    assert_not_wrong_before_it_is_finished(make_world(), [BETWEEN_COMMITS[datetime.now(UTC).toordinal() % 2]])


@pytest.mark.broker
@pytest.mark.slow
def test_each_commit_of_a_batch_of_mutations_is_not_wrong_before_it_is_finished(make_world: MakeWorld) -> None:
    assert_not_wrong_before_it_is_finished(make_world(), BETWEEN_COMMITS)


def assert_not_wrong_before_it_is_finished(world: World, points: Sequence[str]) -> None:
    send(world, [engagement(f"e{n}", f"p{n}", 1, person_name=f"Name {n}") for n in range(4)])
    requests = [
        convert("r1", "p0", "p9", 2),
        delete("r2", 2, from_id="p1"),
        request("r3", "UPDATE", 2, engagement_id="e2", subject="patched"),
        request("r4", "RENAME", 2, from_id="p3", name="Renamed"),
    ]
    world.produce_requests(requests)
    world.run(name=INGEST_MUTATION_REQUESTS)
    for point in points:

        def observe(passed: str, point: str = point) -> None:
            if passed == point:
                raise Stop

        with pytest.raises(Stop):
            world.run(observe, APPLY_MUTATIONS)
        findings = found(world)
        assert wrong(findings) == {}, point
        # What is under way is not looked at.
        assert (findings["contents"].looked_at, findings["notified_twice"].looked_at) == (0, 4)
    world.run(ignore, APPLY_MUTATIONS)
    findings = found(world)
    assert wrong(findings) == {}
    assert (findings["contents"].looked_at, findings["notified_twice"].looked_at) == (1, 7)


FAULTS = (
    # A row that is seen, and one that is not any more.
    "DELETE FROM {data} WHERE engagement_id IN ('lost', 'purged')",
    "UPDATE {data} SET person_id = 'p7' WHERE engagement_id IN ('moved', 'since')",
    "UPDATE {data} SET person_id = 'p1' WHERE engagement_id = 'back'",
    "UPDATE {data} SET person_id = NULL WHERE engagement_id = 'hid'",
    "INSERT INTO {data} SELECT * FROM {data} WHERE engagement_id = 'twice'",
    """UPDATE {data} SET engagement = named_struct('type', engagement.type, 'channel', engagement.channel,
       'subject', 'as it came', 'attributes', engagement.attributes) WHERE engagement_id = 'patched'""",
    # Does not wait any more, and was not moved.
    "UPDATE {pending} SET pending_from = NULL WHERE organization_id = 'stale'",
    "UPDATE {mapping} SET name = 'Not Ann' WHERE id = 'p9'",
    "UPDATE {mapping} SET id = 'p6' WHERE id = 'p5'",
    "INSERT INTO {mapping} SELECT * FROM {mapping} WHERE id = 'p3'",
)


def of(organization: str, message: Message) -> Message:
    return {**message, "organization_id": organization}


@pytest.fixture(scope="module")
def world(spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """`org` is moved at once; in `later` and `stale` edges wait, and rows come in between those of `later`."""
    world = World(spark, broker, tmp_path_factory.mktemp("verify-identity"))
    names = {"lost": {"person_name": "Ann"}}
    send(
        world,
        [
            *(engagement(name, "p0", 1, **names.get(name, {})) for name in ("lost", "moved", "hid")),
            *(engagement(name, "p1", 1) for name in ("purged", "back", "twice")),
            *(engagement(name, person, 1, person_name="Bo") for name, person in (("patched", "p3"), ("plain", "p5"))),
            of("later", engagement("before", "p0", 1)),
            of("stale", engagement("unmoved", "p0", 1)),
            convert("r1", "p0", "p9", 2),
            delete("r2", 2, from_id="p1"),
            request("r3", "UPDATE", 2, engagement_id="patched", subject="patched"),
        ],
    )
    waits = world.under(mutation=MutationSettings(apply="alias"))
    send(
        waits, [engagement("hidden", "p1", 1), *(of(name, convert("r1", "p0", "p1", 2)) for name in ("later", "stale"))]
    )
    send(waits, [of("later", engagement("between", "p0", 1)), of("later", convert("r2", "p1", "p2", 3))])
    send(waits, [of("later", engagement("since", "p0", 1))])
    stored = {row["engagement_id"]: row["person_id"] for row in world.rows(world.data)}
    assert [stored[name] for name in ("before", "between", "since", "hidden")] == ["p0", "p1", "p2", None]
    return world


@pytest.fixture(scope="module")
def sound(world: World) -> dict[str, Finding]:
    """Findings before anything is spoiled."""
    return found(world)


@pytest.fixture(scope="module")
def faulty(world: World, sound: dict[str, Finding]) -> dict[str, list[str]]:
    """Examples after every fault was planted, each on rows of its own."""
    tables = {"data": world.data, "mapping": MAPPING, "pending": PENDING}
    names = {name: f"delta.`{world.lake.uri(table)}`" for name, table in tables.items()}
    for statement in FAULTS:
        world.spark.sql(statement.format(**names)).collect()
    return wrong(found(world))


@pytest.mark.broker
def test_rows_that_came_in_while_edges_wait_are_right_under_the_edges_of_their_time(sound: dict[str, Finding]) -> None:
    assert wrong(sound) == {}
    looked_at = {check: sound[check].looked_at for check in ("lost", "identity", "names", "contents")}
    assert looked_at == {"lost": 13, "identity": 13, "names": 7, "contents": 1}


@pytest.mark.broker
def test_every_planted_fault_is_found_and_nothing_else(faulty: dict[str, list[str]]) -> None:
    assert faulty == {
        "lost": ["lost"],
        "doubled": ["twice"],
        "announced": ["back", "hid", "lost"],
        "identity": ["later/since", "org/back", "org/hid", "org/moved", "stale/unmoved"],
        "names": ["org/p3", "org/p5", "org/p6", "org/p9"],
        "contents": ["org/patched"],
    }


@pytest.mark.broker
def test_a_sample_is_looked_at_in_this_process_with_what_spark_finds(
    world: World, faulty: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All organizations are in the sample; too large a one goes to Spark as well."""
    here = identity_findings(world.settings, world.spark, sample=100)
    monkeypatch.setattr(identity, "MOST_ROWS_HERE", 0)
    in_spark = identity_findings(world.settings, world.spark, sample=100)
    assert [sorted(finding.examples) for finding in here] == [faulty[check] for check in RECOMPUTED]
    assert [(f.check, f.looked_at, f.wrong) for f in here] == [(f.check, f.looked_at, f.wrong) for f in in_spark]


@pytest.mark.broker
def test_rows_that_came_in_while_the_edges_of_the_very_first_batch_wait_are_right(make_world: MakeWorld) -> None:
    world = make_world(mutation=MutationSettings(apply="alias"))
    send(world, [engagement("before", "p0", 1), convert("r1", "p0", "p1", 2)])
    send(world, [engagement("since", "p0", 1)])
    assert [row["pending_from"] for row in world.rows(PENDING)] == [0]
    assert {row["engagement_id"]: row["person_id"] for row in world.rows(world.data)} == {"before": "p0", "since": "p1"}
    (identities, *_) = identity_findings(world.settings, world.spark, sample=1)
    assert (identities.looked_at, identities.wrong) == (2, 0)


def test_before_there_is_a_lake_nothing_is_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    (finding,) = identity_findings(Settings(home=tmp_path), spark)
    assert (finding.check, finding.looked_at, finding.wrong) == ("identity", 0, 0)


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


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 30)), st.integers(1, 40), st.integers(1, 4))
def test_portions_hold_every_organization_once_and_no_more_than_they_may(
    rows: dict[str, int], most_rows: int, most: int
) -> None:
    cut = list(portions(rows, most_rows, most))
    assert [name for portion in cut for name in portion] == list(rows)
    for portion in cut:
        assert 1 <= len(portion) <= most
        assert len(portion) == 1 or sum(rows[name] for name in portion) <= most_rows

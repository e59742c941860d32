"""Random histories of engagements and requests through real topics and tables: the rows of a loop over the messages.

Many histories share one lake, each as an organization of its own, so that thirty cost little more than one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from engagement_platform.mutation import few

from engagement_platform.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS
from engagement_platform.lake import log
from engagement_platform.lake.engagement import MAPPING, NOTIFICATION, PENDING, QUARANTINE
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import LayoutSettings, MutationSettings
from engagement_platform_tests.conftest import skip_without_graphframes
from engagement_platform_tests.daily import of_today, some_of_today
from engagement_platform_tests.ingestion.conftest import MakeWorld
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.pipelines.mutations.histories import Message, engagement, random_history, request
from engagement_platform_tests.pipelines.mutations.oracle import Row, replay

pytestmark = [pytest.mark.broker]

FEW = LayoutSettings(auto_compact=False)
IN_SPARK = LayoutSettings(auto_compact=False, light_write_rows=0)
MOVED_BY_OPERATION = "few, moved by operation"
SOME_SEEN_BEFORE_MOVED = "few, some seen before moved"
CHOOSY = MutationSettings(apply="auto", pending_bytes=0, max_amplification=1.5)
"""Of organizations of a handful of rows, those in which most change are moved at once, and the others wait."""
WAYS = {
    "few": (FEW, MutationSettings(), 4),
    MOVED_BY_OPERATION: (FEW, MutationSettings(), 4),
    SOME_SEEN_BEFORE_MOVED: (FEW, CHOOSY, 4),
    "in Spark": (IN_SPARK, MutationSettings(), 1),
}
IN_GRAPHS = "in Spark, resolved by GraphFrames"
LONG_WAYS = {
    **{f"few, {apply}": (FEW, MutationSettings(apply=apply), 12) for apply in ("merge", "alias")},
    "few, auto": (FEW, CHOOSY, 12),
    **{
        f"in Spark, {apply}": (IN_SPARK, MutationSettings(apply=apply), 3)
        for apply in ("merge", "deletion_vectors", "overwrite", "alias")
    },
    "in Spark, names too": (IN_SPARK, MutationSettings(light_edges=0), 3),
    IN_GRAPHS: (IN_SPARK, MutationSettings(apply="merge", resolver="graphframes"), 2),
    "in Spark, liquid": (LayoutSettings(auto_compact=False, scheme="liquid"), MutationSettings(), 3),
    "few, by organization and day": (
        LayoutSettings(auto_compact=False, scheme="organization_date"),
        MutationSettings(),
        6,
    ),
}
LONG_IN_SPARK = [way for way in LONG_WAYS if way.startswith("in Spark")]
LONG_HERE = [way for way in LONG_WAYS if way not in LONG_IN_SPARK]


def interleaved(histories: list[list[Message]], rng: random.Random) -> list[Message]:
    """All messages, each history in its own order."""
    left = [list(history) for history in histories if history]
    mixed = []
    while left:
        history = rng.choice(left)
        mixed.append(history.pop(0))
        left = [history for history in left if history]
    return mixed


def run(world: World, job: str, rng: random.Random) -> None:
    """All that waits for a job, whose first batch ends at some point first, every other time."""
    if rng.random() < 0.5:
        with suppress(Crash):
            world.run(crash_at(rng.choice(world.job(name=job).crash_points)), name=job)
    world.run(name=job)


def send(world: World, messages: list[Message], rng: random.Random, batches: int, interrupted: bool = False) -> None:
    """Messages in their order, cut into so many batches of each job, which run in random order."""
    cuts = sorted(rng.randrange(len(messages)) for _ in range(batches - 1))
    for begin, end in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        part = messages[begin:end]
        world.produce([message for message in part if "request_id" not in message])
        world.produce_requests([message for message in part if "request_id" in message])
        jobs = [INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS]
        rng.shuffle(jobs)
        for job in jobs:
            if interrupted:
                run(world, job, rng)
            else:
                world.run(name=job)
    for job in (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS):
        world.run(name=job)


def seen_rows(world: World) -> dict[tuple[str, str], Row]:
    """The rows that readers see, through their view."""
    return as_rows(world.current())


def standing_rows(world: World) -> dict[tuple[str, str], Row]:
    """The rows that readers see."""
    return as_rows(world.standing())


def as_rows(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str], Row]:
    """Rows of the Data Table as the oracle has them."""
    found = {}
    for row in rows:
        key = (row["organization_id"], row["engagement_id"])
        assert key not in found, f"{key} stands twice"
        said = row["engagement"]
        found[key] = Row(
            person_id=row["person_id"],
            source_person_id=row["source_person_id"],
            engagement_ts=row["engagement_ts"],
            version=row["version"],
            type=said["type"],
            channel=said["channel"],
            subject=said["subject"],
            attributes=said["attributes"],
        )
    return found


def standing_names(world: World) -> dict[tuple[str, str], Any]:
    rows = world.rows(MAPPING)
    assert len({(row["organization_id"], row["id"]) for row in rows}) == len(rows), "a person stands twice"
    return {(r["organization_id"], r["id"]): (r["name"], r["name_ts"]) for r in rows if r["name"] is not None}


def assert_announced(world: World, rows: dict[tuple[str, str], Row]) -> None:
    """Followed in their order, the notifications lead to the rows: nothing is announced that cannot be seen."""
    seen: dict[tuple[str, str], str] = {}
    ids = set()
    for row in sorted(world.rows(NOTIFICATION), key=lambda row: row["ingestion_ts"]):
        assert row["notification_id"] not in ids, "a notification stands twice"
        ids.add(row["notification_id"])
        key = (row["organization_id"], row["engagement_id"])
        assert seen.get(key) == row["previous_person_id"], f"{key}: {row}"
        expected = "DELETE" if row["person_id"] is None else "UPDATE" if row["previous_person_id"] else "INSERT"
        assert row["change_type"] == expected
        seen[key] = row["person_id"]
    assert {key: person for key, person in seen.items() if person} == {k: row.person_id for k, row in rows.items()}


def most_files_of_a_partition(world: World) -> int:
    """The most files that one commit has added to one partition of the Data Table."""
    uri = world.lake.uri(world.data)
    most = 0
    for version in range(world.lake.version(world.data) + 1):
        actions = log.entry(uri, version) or []
        gone = {action["remove"]["path"] for action in actions if "remove" in action}
        added = [action["add"] for action in actions if "add" in action and action["add"]["path"] not in gone]
        counted = Counter(tuple(sorted(one["partitionValues"].items())) for one in added)
        most = max(most, *counted.values(), 0)
    return most


@pytest.mark.parametrize("way", of_today(list(WAYS)))
def test_random_histories_end_in_the_rows_of_a_loop_over_their_messages(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    layout, mutation, batches = WAYS[way]
    monkeypatch.setattr(few, "MOST_ROWS_BY_KEY", 0 if way == MOVED_BY_OPERATION else 20_000)
    world = make_world(layout=layout, mutation=mutation)
    assert_random_histories(world, range(30), batches)
    assert most_files_of_a_partition(world) == 1, "a partition was written by several tasks"
    waits = {row["pending_from"] is not None for row in world.rows(PENDING)}
    if way == SOME_SEEN_BEFORE_MOVED:
        assert waits == {True, False}, "one strategy was chosen for all"
    else:
        assert True not in waits


@pytest.mark.slow
@pytest.mark.parametrize("way", [*LONG_HERE, *some_of_today(LONG_IN_SPARK, 3)])
def test_hundreds_of_histories_end_in_the_rows_of_a_loop_over_their_messages(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Whatever was interrupted on the way."""
    if way == IN_GRAPHS:
        skip_without_graphframes()
    layout, mutation, batches = LONG_WAYS[way]
    monkeypatch.setattr(few, "MOST_ROWS_BY_KEY", 0 if way == MOVED_BY_OPERATION else 20_000)
    histories_ = range(1000, 1300 if way == "few, auto" else 1060)
    assert_random_histories(make_world(layout=layout, mutation=mutation), histories_, batches, interrupted=True)


def assert_random_histories(world: World, seeds: Iterable[int], batches: int, interrupted: bool = False) -> None:
    """All histories through one lake: the rows, names, notifications and refusals of a loop over each."""
    world.ticks = True
    rng = random.Random(20261121)
    histories = [random_history(seed, conflicts=seed % 4 == 0) for seed in seeds]
    send(world, interleaved(histories, rng), rng, batches, interrupted)
    assert_as_a_loop_over(histories, world)


def assert_as_a_loop_over(histories: list[list[Message]], world: World) -> None:
    """The rows, names, notifications and refusals of a loop over each history."""
    tables = [replay(history) for history in histories]
    expected = {key: row for table in tables for key, row in table.data.items()}
    assert seen_rows(world) == expected
    assert standing_names(world) == {key: name for table in tables for key, name in table.names.items()}
    assert_announced(world, expected)
    reasons = [reason for table in tables for reason in table.refused.values()]
    selfs = sum(m.get("operation") == "CONVERT" and m["from_id"] == m["to_id"] for h in histories for m in h)
    quarantined = [row["reason_code"] for row in world.rows(QUARANTINE)]
    assert sorted(quarantined) == sorted([*reasons, *["self_conversion"] * selfs])


PATCHED = "as patched"
SUPERSEDED_AND_PATCHED: list[list[Message]] = [
    [engagement("e1", "p1", 10, subject="as sent"), request("r1", "UPDATE", 20, engagement_id="e1", subject=PATCHED)],
    [engagement("e1", "p2", 10, version=3, subject="newer")],
    # What stood said so, but no event did.
    [engagement("e1", "p1", 10, subject=PATCHED, person_name="Zz"), engagement("e1", "p1", 10, subject="as sent")],
]


@pytest.mark.parametrize(
    "layout", [pytest.param(FEW, id="few"), pytest.param(IN_SPARK, id="in Spark", marks=pytest.mark.slow)]
)
def test_a_copy_that_contradicts_a_superseded_version_is_refused_in_a_later_batch(
    make_world: MakeWorld, layout: LayoutSettings
) -> None:
    """In the random history version 3 lands, then 1, then another 1 with a name; the other one is patched before."""
    world = make_world(layout=layout)
    world.ticks = True
    drawn = random_history(1012, conflicts=True)
    parts = [drawn[:3], drawn[3:6], drawn[6:]]
    for part, patched in zip(parts, SUPERSEDED_AND_PATCHED, strict=True):
        messages = [*part, *patched]
        world.produce([message for message in messages if "request_id" not in message])
        world.produce_requests([message for message in messages if "request_id" in message])
        for job in (INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, APPLY_MUTATIONS):
            world.run(name=job)
    by_hand = [message for part in SUPERSEDED_AND_PATCHED for message in part]
    assert [*replay(drawn).refused.values(), *replay(by_hand).refused.values()] == ["version_conflict"] * 3
    assert_as_a_loop_over([drawn, by_hand], world)

"""What requests do to the tables: seen at once, announced by the next job, moved into the Data Table by the last."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished
from engagement_platform.lake.engagement import MAPPING, MUTATION_REQUEST, NOTIFICATION, QUARANTINE
from engagement_platform.pipelines.jobs import INGEST_MUTATION_REQUESTS
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.rematerialization import choose
from engagement_platform.pipelines.snapshot import snapshot
from engagement_platform.settings import ApplyStrategy, MutationSettings
from engagement_platform_tests.ingestion.conftest import MakeWorld
from engagement_platform_tests.ingestion.test_crashes import Crash, crash_at
from engagement_platform_tests.ingestion.world import World
from engagement_platform_tests.pipelines.mutations.histories import Message, convert, delete, engagement, request
from engagement_platform_tests.pipelines.mutations.oracle import replay
from engagement_platform_tests.pipelines.mutations.test_histories import as_rows, standing_rows

broker = pytest.mark.broker


def persons(world: World) -> dict[str, str]:
    return {row["engagement_id"]: row["person_id"] for row in world.current()}


@broker
def test_requests_are_seen_at_once_and_neither_announcing_nor_a_rename_writes_the_data_table(world: World) -> None:
    """id1 → id2 → id3 → id4, of which a plain MERGE makes id2, id3 and id4; and one that contradicts the first."""
    world.produce([engagement(f"e{n}", f"id{n}", 10, person_name="Ann") for n in (1, 2, 3)])
    world.run()
    versions = {table.name: world.lake.version(table) for table in (world.data, MAPPING)}
    chain = [convert(f"c{n}", f"id{n}", f"id{n + 1}", 10 + n) for n in (1, 2, 3)]
    rename, contradiction = request("r1", "RENAME", 30, from_id="id4", name="Anna"), {**chain[0], "to_id": "id9"}
    world.produce_requests([*chain, chain[0], rename, contradiction])
    (landed,) = world.run(name=INGEST_MUTATION_REQUESTS)
    assert persons(world) == {"e1": "id4", "e2": "id4", "e3": "id4"}
    assert {person: name for _, person, name, _ in world.names()}["id4"] == "Anna"
    assert (landed.counts["landed"], landed.counts["duplicates"], landed.counts["quarantined"]) == (4, 1, 1)
    (refused,) = world.rows(QUARANTINE)
    assert (refused["topic"], refused["reason_code"]) == (world.topics[1], "request_conflict")
    assert json.loads(refused["value"]) == contradiction
    assert landed.details["rejected"] == {"request_conflict": 1}

    (announced,) = world.run(name=APPLY_MUTATIONS)
    counts = ("rows_in", "conversions", "renames", "updated", "notifications")
    assert [announced.counts[name] for name in counts] == [4, 3, 1, 3, 3]
    moved = [row for row in world.rows(NOTIFICATION) if row["change_type"] == "UPDATE"]
    assert {(row["engagement_id"], row["previous_person_id"], row["person_id"]) for row in moved} == {
        ("e1", "id1", "id4"),
        ("e2", "id2", "id4"),
        ("e3", "id3", "id4"),
    }
    assert versions == {table.name: world.lake.version(table) for table in (world.data, MAPPING)}
    assert world.run(name=APPLY_MUTATIONS) == [], "what is announced is announced again"


STRATEGIES: tuple[ApplyStrategy, ...] = ("merge", "overwrite", "auto", "deletion_vectors")
"""The last leaves marks on the table that only Spark reads."""


def history(organization: str) -> list[Message]:
    """Engagements, and requests that move, delete and patch them: whole ids and single rows."""
    some = [
        *(engagement(f"e{n}", f"p{n}", 10 + n, person_name="Ann") for n in range(6)),
        convert("c1", "p0", "p9", 40),
        convert("c2", "p1", "p8", 41, engagement_id="e1"),
        delete("d1", 42, from_id="p2"),
        delete("d2", 43, engagement_id="e3"),
        request("u1", "UPDATE", 44, engagement_id="e4", subject="patched"),
    ]
    return [{**message, "organization_id": organization} for message in some]


@broker
def test_every_strategy_moves_the_same_rows_and_the_watermark_with_them(world: World) -> None:
    histories = {strategy: history(strategy) for strategy in STRATEGIES}
    world.produce([message for messages in histories.values() for message in messages[:6]])
    world.run()
    expected: dict[tuple[str, str], Any] = {}
    for messages in histories.values():
        expected |= replay(messages[:6]).data
    for strategy, messages in histories.items():
        world.produce_requests(messages[6:])
        world.run(name=INGEST_MUTATION_REQUESTS)
        own = world.under(mutation=MutationSettings(apply=strategy))
        (moved,) = own.run(name=REMATERIALIZE_ALIASES)
        assert moved.details["strategy"] == ("merge" if strategy == "auto" else strategy)
        assert moved.counts["changed_rows"] == 5
        expected = {key: row for key, row in expected.items() if key[0] != strategy} | replay(messages).data
        rows = world.rows(world.data)
        assert as_rows(row for row in rows if row["person_id"] is not None) == expected
        assert len(rows) == 6 * len(STRATEGIES), "a deleted row is gone while a late request could bring it back"
        at = snapshot(world.lake.root)
        assert (at.watermark, at.pends) == (at.newest_sequence, False)
    assert standing_rows(world) == expected


@pytest.mark.parametrize(
    ("changed", "rows", "apply", "expected"),
    [
        (4, 10, "auto", "merge"),
        (5, 10, "auto", "overwrite"),
        (0, 0, "auto", "merge"),
        (9, 10, "merge", "merge"),
        (1, 10, "deletion_vectors", "deletion_vectors"),
    ],
)
def test_the_whole_table_is_written_where_half_of_it_changes(
    changed: int, rows: int, apply: ApplyStrategy, expected: str
) -> None:
    choice = choose(apply, "mutation.apply", changed, rows)
    assert choice.strategy == expected
    assert choice.why


@broker
def test_no_move_begins_beside_requests_that_may_still_come_in_below_its_watermark(make_world: MakeWorld) -> None:
    world = make_world(lease_wait=timedelta(seconds=1))
    world.produce([engagement("e1", "p1", 10)])
    world.run()
    world.produce_requests([convert("c1", "p1", "p2", 20)])
    with pytest.raises(Crash):
        world.run(crash_at("tables.alias:after"), name=INGEST_MUTATION_REQUESTS)
    world.produce([{**engagement("e1", "p1", 10), "version": 2}])
    world.run()
    assert persons(world) == {"e1": "p1"}, "an edge counts whose batch is not published"
    with pytest.raises(OthersBatchUnfinished):
        world.run(name=REMATERIALIZE_ALIASES)
    world.run(name=INGEST_MUTATION_REQUESTS)
    world.run(name=REMATERIALIZE_ALIASES)
    (sequence,) = {row["batch_sequence"] for row in world.rows(MUTATION_REQUEST)}
    assert sequence < snapshot(world.lake.root).watermark
    assert [(row["person_id"], row["version"]) for row in world.rows(world.data)] == [("p2", 2)]

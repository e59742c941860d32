"""The rules of engagements and mutations together: any batching of any history ends where a sequential replay ends."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engagement_platform_tests.matrix import quick
from engagement_platform_tests.pipelines.lakes import MemoryLake, time_of
from engagement_platform_tests.pipelines.mutations import oracle
from engagement_platform_tests.pipelines.mutations.histories import histories, random_history

Message = dict[str, Any]


def requests_that_count(messages: list[Message]) -> tuple[list[tuple[int, Message]], dict[int, str]]:
    """The requests of a history by place, without known duplicates and conflicts; and the places of conflicts."""
    claimed: dict[str, Any] = {}
    taken, refused = [], {}
    for place, message in enumerate(messages):
        if not oracle.is_request(message):
            continue
        if message["operation"] == "CONVERT" and message["from_id"] == message["to_id"]:
            # Decoding refuses it.
            continue
        said = oracle.request_content(message)
        if message["request_id"] not in claimed:
            claimed[message["request_id"]] = said
            taken.append((place, message))
        elif claimed[message["request_id"]] != said:
            refused[place] = "request_conflict"
    return taken, refused


def run(messages: list[Message], rng: Random, *, move: bool = True) -> MemoryLake:
    """A history through a lake in random batches; between them it is announced and moved at random."""
    lake = MemoryLake(messages[0]["organization_id"] if messages else "org")
    counted, refused = requests_that_count(messages)
    accepted = dict(counted)
    lake.quarantined.update(refused)
    place = 0
    while place < len(messages):
        batch = range(place, min(len(messages), place + rng.randint(1, 6)))
        place = batch.stop
        lake.ingest([(at, messages[at]) for at in batch if not oracle.is_request(messages[at])])
        lake.accept(accepted[at] for at in batch if at in accepted)
        if rng.random() < 0.5:
            lake.announce()
        if move and rng.random() < 0.3:
            lake.move()
    lake.announce()
    return lake


def as_rows(lake: MemoryLake) -> dict[tuple[str, str], oracle.Row]:
    """What readers see, as the oracle writes it."""
    return {
        (lake.organization_id, engagement_id): oracle.Row(
            person_id=row["person_id"],
            source_person_id=row["source_person_id"],
            engagement_ts=row["engagement_ts"].astimezone(UTC),
            version=row["version"],
            **{name: row["engagement"][name] for name in ("type", "channel", "subject")},
            attributes=None if row["engagement"]["attributes"] is None else dict(row["engagement"]["attributes"]),
        )
        for engagement_id, row in lake.current().items()
    }


def assert_ends_as_replayed(lake: MemoryLake, messages: list[Message]) -> None:
    expected = oracle.replay(messages)
    assert as_rows(lake) == expected.data
    assert lake.quarantined == expected.refused
    assert {(lake.organization_id, person): name for person, name in lake.names().items()} == expected.names


@pytest.mark.parametrize("first", quick(range(0, 1000, 250)))
def test_a_thousand_random_histories_end_where_a_replay_ends_whatever_the_batches_and_moves(first: int) -> None:
    for seed in range(first, first + 250):
        messages = random_history(seed, conflicts=True)
        assert_ends_as_replayed(run(messages, Random(seed)), messages)


@given(histories(), st.randoms(use_true_random=False))
def test_the_tables_are_a_function_of_the_set_of_messages(messages: list[Message], rng: Random) -> None:
    shuffled = rng.sample(messages, len(messages))
    one, other = run(messages, rng), run(shuffled, rng, move=False)
    assert as_rows(one) == as_rows(other)
    assert one.names() == other.names()


@pytest.mark.parametrize("first", quick(range(0, 300, 100)))
def test_whoever_follows_the_notifications_has_what_readers_see(first: int) -> None:
    """A notification names each row that changed and its person before and after; nothing else is announced."""
    for seed in range(first, first + 100):
        messages = random_history(seed, conflicts=True)
        lake = run(messages, Random(seed))
        persons: dict[str, str | None] = {}
        for notification in lake.notifications:
            engagement_id = notification["engagement_id"]
            kind = {(True, False): "INSERT", (False, True): "DELETE", (False, False): "UPDATE"}
            before, after = notification["previous_person_id"], notification["person_id"]
            assert notification["change_type"] == kind[before is None, after is None]
            persons[engagement_id] = after
        seen = {engagement_id: row["person_id"] for engagement_id, row in lake.current().items()}
        assert {engagement_id: person for engagement_id, person in persons.items() if person} == seen


@pytest.mark.parametrize("first", quick(range(0, 300, 100)))
def test_purging_and_folding_below_the_horizon_change_nothing_that_requests_on_time_can_reach(first: int) -> None:
    """Requests come in in the order of their execution; engagements may come in at any time."""
    for seed in range(first, first + 100):
        messages, rng = random_history(seed, size=40), Random(seed)
        requests = [m for m in messages if oracle.is_request(m)]
        requests.sort(key=lambda m: (time_of(m["execution_ts"]), rng.random()))
        others = iter([m for m in messages if not oracle.is_request(m)])
        arriving: list[Message] = []
        for request in requests:
            arriving += [m for _ in range(rng.randint(0, 2)) if (m := next(others, None)) is not None]
            arriving.append(request)
        arriving += others
        lake = MemoryLake(f"org-{seed}")
        counted = dict(requests_that_count(arriving)[0])
        for place, message in enumerate(arriving):
            if place in counted:
                lake.accept([message])
            elif not oracle.is_request(message):
                lake.ingest([(place, message)])
            if rng.random() < 0.3:
                left = [time_of(m["execution_ts"]) for m in arriving[place + 1 :] if oracle.is_request(m)]
                lake.move(min(left, default=datetime(2030, 1, 1, tzinfo=UTC)))
        expected = oracle.replay(arriving)
        assert as_rows(lake) == expected.data, seed
        assert {(lake.organization_id, person): name for person, name in lake.names().items()} == expected.names, seed

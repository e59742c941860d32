"""The resolver: ends where a sequential replay ends, row by row and as operations on whole ids."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings

from engagement_platform.pipelines.mutations.identity import Identities, Operation
from engagement_platform_tests.pipelines.mutations.histories import (
    DAYS,
    FIRST_DAY,
    MOMENTS,
    PERSONS,
    Message,
    at,
    convert,
    delete,
    edges,
    engagement,
    histories,
    random_history,
)
from engagement_platform_tests.pipelines.mutations.oracle import Key, Row, is_request, replay

DAY_1, DAY_2, DAY_3 = ((FIRST_DAY + timedelta(days=n)).isoformat() for n in range(3))

# All requests of a case are executed at 100 hours and later, and the row "e" is engaged at 0 unless the case says so.
# Case: requests, who the engagement names, hours it was engaged at, where it ends.
CASES: dict[str, tuple[list[Message], str, float, str | None]] = {
    "no request": ([], "id1", 0, "id1"),
    "a conversion": ([convert("r1", "id1", "id2", 100)], "id1", 0, "id2"),
    "a conversion of somebody else": ([convert("r1", "id2", "id3", 100)], "id1", 0, "id1"),
    "a later conversion catches what comes before it only": (
        [convert("r1", "id2", "id3", 100), convert("r2", "id1", "id2", 101)], "id1", 0, "id2"),
    "a chain": ([convert(f"r{n}", f"id{n}", f"id{n + 1}", 100 + n) for n in (1, 2, 3)], "id1", 0, "id4"),
    "a chain from its middle": (
        [convert(f"r{n}", f"id{n}", f"id{n + 1}", 100 + n) for n in (1, 2, 3)], "id2", 0, "id4"),
    "a chain that arrives backwards": (
        [convert(f"r{n}", f"id{n}", f"id{n + 1}", 100 + n) for n in (3, 2, 1)], "id1", 0, "id4"),
    "a chain that is engaged half way": (
        [convert("r1", "id1", "id2", 100), convert("r2", "id2", "id3", 102)], "id1", 101, "id1"),
    "a cycle": ([convert("r1", "id1", "id2", 100), convert("r2", "id2", "id1", 101)], "id1", 0, "id1"),
    "a cycle that is left": (
        [convert("r1", "id1", "id2", 100), convert("r2", "id2", "id1", 101), convert("r3", "id1", "id3", 102)],
        "id1", 0, "id3"),
    "a cycle entered late": ([convert("r1", "id1", "id2", 100), convert("r2", "id2", "id1", 101)], "id1", 100, "id1"),
    "fan-out goes the first way": (
        [convert("r1", "id1", "id2", 100), convert("r2", "id1", "id3", 101)], "id1", 0, "id2"),
    "fan-out goes the second way when engaged between": (
        [convert("r1", "id1", "id2", 100), convert("r2", "id1", "id3", 102)], "id1", 101, "id3"),
    "convert then delete": ([convert("r1", "id1", "id2", 100), delete("r2", 101, from_id="id2")], "id1", 0, None),
    "convert then delete of the old id": (
        [convert("r1", "id1", "id2", 100), delete("r2", 101, from_id="id1")], "id1", 0, "id2"),
    "delete then convert": ([delete("r1", 100, from_id="id1"), convert("r2", "id1", "id2", 101)], "id1", 0, None),
    "a late conversion takes the row out of a delete": (
        [delete("r2", 101, from_id="id1"), convert("r1", "id1", "id2", 100)], "id1", 0, "id2"),
    "engaged at the very time of a conversion": ([convert("r1", "id1", "id2", 100)], "id1", 100, "id1"),
    "engaged a microsecond before": ([convert("r1", "id1", "id2", 100)], "id1", 100 - 1e-6 / 3600, "id2"),
    "equal times go by request id": (
        [convert("r2", "id2", "id3", 100), convert("r1", "id1", "id2", 100)], "id1", 0, "id3"),
    "equal times the other way round": (
        [convert("r1", "id2", "id3", 100), convert("r2", "id1", "id2", 100)], "id1", 0, "id2"),
    "request ids are compared as text": (
        [convert("r10", "id2", "id3", 100), convert("r9", "id1", "id2", 100)], "id1", 0, "id2"),
    "a cycle within one moment": (
        [convert("r1", "id1", "id2", 100), convert("r2", "id2", "id1", 100), convert("r3", "id1", "id3", 100)],
        "id1", 0, "id3"),
    "a duplicate request": (
        [convert("r1", "id1", "id2", 100), convert("r2", "id2", "id1", 101), convert("r1", "id1", "id2", 100)],
        "id1", 0, "id1"),
    "a self edge": ([convert("r1", "id1", "id1", 100)], "id1", 0, "id1"),
    "a self edge does not end a chain": (
        [convert("r1", "id1", "id2", 100), convert("r2", "id2", "id2", 101), convert("r3", "id2", "id3", 102)],
        "id1", 0, "id3"),
    "a range that holds the day": (
        [convert("r1", "id1", "id2", 100, engagement_date_from=DAY_1, engagement_date_to=DAY_1)], "id1", 23.9, "id2"),
    "a range that begins after the day": (
        [convert("r1", "id1", "id2", 100, engagement_date_from=DAY_2, engagement_date_to=DAY_3)], "id1", 23.9, "id1"),
    "a range that is open at its beginning": (
        [convert("r1", "id1", "id2", 100, engagement_date_to=DAY_2)], "id1", 0, "id2"),
    "a range that is open at its beginning and over": (
        [convert("r1", "id1", "id2", 100, engagement_date_to=DAY_2)], "id1", 48, "id1"),
    "a range that is open at its end": (
        [convert("r1", "id1", "id2", 100, engagement_date_from=DAY_2)], "id1", 72, "id2"),
    "a range that is open at its end and not begun": (
        [convert("r1", "id1", "id2", 100, engagement_date_from=DAY_2)], "id1", 0, "id1"),
    "a range in the middle of a chain": (
        [convert("r1", "id1", "id2", 100), convert("r2", "id2", "id3", 101, engagement_date_to=DAY_1),
         convert("r3", "id2", "id4", 102)], "id1", 0, "id3"),
    "a range in the middle of a chain that misses": (
        [convert("r1", "id1", "id2", 100), convert("r2", "id2", "id3", 101, engagement_date_from=DAY_2),
         convert("r3", "id2", "id4", 102)], "id1", 0, "id4"),
    "a conversion of one engagement": ([convert("r1", "id1", "id2", 100, engagement_id="e")], "id1", 0, "id2"),
    "a conversion of another engagement": ([convert("r1", "id1", "id2", 100, engagement_id="f")], "id1", 0, "id1"),
    "a delete of one engagement, whoever has it": (
        [convert("r1", "id1", "id2", 100), delete("r2", 101, engagement_id="e")], "id1", 0, None),
    "a delete of another engagement": ([delete("r1", 100, engagement_id="f")], "id1", 0, "id1"),
    "a delete of one engagement engaged at that time": ([delete("r1", 100, engagement_id="e")], "id1", 100, "id1"),
    "a delete of one engagement out of range": (
        [delete("r1", 100, engagement_id="e", engagement_date_from=DAY_2)], "id1", 0, "id1"),
    "a delete of one engagement within range": (
        [delete("r1", 100, engagement_id="e", engagement_date_to=DAY_1)], "id1", 0, None),
    "a delete of one engagement of its person": ([delete("r1", 100, from_id="id1", engagement_id="e")], "id1", 0, None),
    "a delete of one engagement of somebody else": (
        [delete("r1", 100, from_id="id2", engagement_id="e")], "id1", 0, "id1"),
    "a delete of one engagement of who has it by then": (
        [convert("r1", "id1", "id2", 100), delete("r2", 101, from_id="id2", engagement_id="e")], "id1", 0, None),
    "a delete of a person within a range": (
        [delete("r1", 100, from_id="id1", engagement_date_to=DAY_1), convert("r2", "id1", "id2", 101)],
        "id1", 24, "id2"),
    "fields that DELETE does not use": ([delete("r1", 100, from_id="id1", to_id="id2")], "id1", 0, None),
}  # fmt: skip


def ends(identities: Identities, rows: Iterable[tuple[Key, Row]]) -> dict[Key, str]:
    """Where every row ends by `follow`; deleted rows are absent."""
    walked = {
        key: identities.follow(key[0], row.source_person_id, key[1], row.engagement_ts, row.engagement_date)
        for key, row in rows
    }
    return {key: person_id for key, person_id in walked.items() if person_id is not None}


def applied(identities: Identities, rows: Iterable[tuple[Key, Row]], ways: Counter[str]) -> dict[Key, str]:
    """Where every row ends by `operations`, and by `follow` only where the resolver says so."""
    operations: dict[Key, list[Operation]] = {}
    for operation in identities.operations():
        operations.setdefault((operation.organization_id, operation.from_id), []).append(operation)
    branching, erased = identities.branching(), identities.erased_engagements()
    after: dict[Key, str] = {}
    for key, row in rows:
        person_id: str | None = row.source_person_id
        here = (key[0], row.source_person_id)
        if key in erased or here in branching:
            ways["walked"] += 1
            person_id = ends(identities, [(key, row)]).get(key)
        else:
            matching = [operation for operation in operations.get(here, []) if matches(operation, row)]
            assert len(matching) <= 1, matching
            ways["operations" if matching else "untouched"] += 1
            person_id = matching[0].to_id if matching else person_id
        if person_id is not None:
            after[key] = person_id
    return after


def matches(operation: Operation, row: Row) -> bool:
    started = operation.engaged_from is None or operation.engaged_from <= row.engagement_ts
    return started and row.engagement_ts < operation.engaged_before


def with_probes(history: Sequence[Message], organization: str) -> list[Message]:
    """The history, and one more engagement of every person at every time that occurs."""
    moments = [datetime.combine(FIRST_DAY + timedelta(days=n), m, tzinfo=UTC) for n in range(DAYS) for m in MOMENTS]
    probes = [
        engagement(f"{person}/{moment}", person, 0, organization_id=organization, engagement_ts=moment.isoformat())
        for person in PERSONS
        for moment in moments
    ]
    return [*probes, *history]


def assert_ends_as_replayed(messages: Sequence[Message], ways: Counter[str]) -> None:
    before = replay([message for message in messages if not is_request(message)]).data.items()
    after = {key: row.person_id for key, row in replay(messages).data.items()}
    identities = Identities(edges(messages))
    assert ends(identities, before) == after
    assert applied(identities, before, ways) == after
    assert len(identities.operations()) <= len(edges(messages))


@pytest.mark.parametrize("case", CASES)
def test_a_named_case_ends_as_its_reader_expects(case: str) -> None:
    requests, person_id, hours, end = CASES[case]
    messages = [engagement("e", person_id, hours), *requests]
    row = replay(messages).data.get(("org", "e"))
    assert (None if row is None else row.person_id) == end
    assert_ends_as_replayed(messages, Counter())


@pytest.mark.parametrize(
    "first_seed", [pytest.param(seed, marks=() if seed < 800 else pytest.mark.slow) for seed in range(0, 20_000, 400)]
)
def test_random_histories_end_where_a_sequential_replay_ends(first_seed: int) -> None:
    ways: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 400):
        try:
            # Long and short ones; of four, one contradicts itself.
            history = random_history(seed, size=10 + seed % 3 * 15, conflicts=seed % 4 == 0)
            assert_ends_as_replayed(with_probes(history, f"org-{seed}"), ways)
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
    assert min(ways["walked"], ways["operations"], ways["untouched"]) > 500, f"the histories are too tame: {ways}"


@settings(max_examples=300, deadline=None)
@given(history=histories())
def test_any_history_ends_where_a_sequential_replay_ends(history: list[Message]) -> None:
    assert_ends_as_replayed(with_probes(history, "org"), Counter())


def test_a_naive_batch_update_stops_after_one_step_of_a_chain() -> None:
    """Every request of a batch applied to the ids as they stood before the batch, as one MERGE does."""
    requests = [convert(f"r{n}", f"id{n}", f"id{n + 1}", 100 + n) for n in (1, 2, 3)]
    rows = [engagement(f"e{n}", f"id{n}", n) for n in (1, 2, 3)]
    step = {request["from_id"]: request["to_id"] for request in requests}
    assert [step[row["person_id"]] for row in rows] == ["id2", "id3", "id4"]
    assert {row.person_id for row in replay([*rows, *requests]).data.values()} == {"id4"}
    operations = Identities(edges(requests)).operations()
    assert [(operation.from_id, operation.to_id) for operation in operations] == [
        ("id1", "id4"), ("id2", "id4"), ("id3", "id4"),
    ]  # fmt: skip


def test_operations_of_one_id_cover_the_times_between_its_edges() -> None:
    requests = [convert("r1", "a", "b", 10), convert("r3", "a", "c", 20), convert("r2", "a", "d", 20),
                delete("r4", 30, from_id="a")]  # fmt: skip
    ten, twenty, thirty = (datetime.fromisoformat(at(hours)) for hours in (10, 20, 30))
    assert Identities(edges(requests)).operations() == [
        Operation("org", "a", None, ten, "b"),
        Operation("org", "a", ten, twenty, "d"),
        Operation("org", "a", twenty, thirty, None),
    ]


def test_ids_branch_only_where_a_row_can_still_meet_the_edge_that_branches() -> None:
    narrowed = convert("r5", "b", "c", 50, engagement_date_from=DAY_1)
    before, after = convert("r1", "a", "b", 40), convert("r6", "z", "b", 60)
    elsewhere = [convert("r2", "y", "b", 10), convert("r3", "b", "q", 20)]
    assert Identities(edges([narrowed, before])).branching() == {("org", "a"), ("org", "b")}
    assert Identities(edges([narrowed, after])).branching() == {("org", "b")}
    # A row of y leaves b with everybody else at 20, before the narrowed edge; a row of b may be engaged after that.
    assert Identities(edges([narrowed, *elsewhere])).branching() == {("org", "b")}


def test_of_two_edges_with_one_request_id_the_first_counts() -> None:
    one, other = edges([convert("r", "a", "b", 10)]), edges([convert("r", "a", "c", 9)])
    assert [operation.to_id for operation in Identities([*one, *other]).operations()] == ["b"]
    assert [operation.to_id for operation in Identities([*other, *one]).operations()] == ["c"]


def test_a_chain_of_ten_thousand_edges_is_resolved_without_going_deep() -> None:
    chain = edges([convert(f"r{n}", f"p{n}", f"p{n + 1}", n) for n in range(10_000)])
    random.Random(1).shuffle(chain)
    identities = Identities(chain)
    engaged = datetime.fromisoformat(at(-1))
    assert {identities.follow("org", f"p{n}", "e", engaged, engaged.date()) for n in range(10_000)} == {"p10000"}
    assert {operation.to_id for operation in identities.operations()} == {"p10000"}

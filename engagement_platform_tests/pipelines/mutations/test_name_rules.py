"""Names by the rules: what readers see is what a sequential replay leaves, from all evidence or from what is needed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from engagement_platform.pipelines.mutations.identity import Edge
from engagement_platform.pipelines.mutations.rules import Evidence, current_names, needed_evidence
from engagement_platform_tests.growth import cpu_seconds
from engagement_platform_tests.pipelines.mutations.histories import (
    PERSONS,
    Message,
    at,
    convert,
    delete,
    edge,
    engagement,
    histories,
    random_history,
    request,
)
from engagement_platform_tests.pipelines.mutations.oracle import is_request, landed, replay, time_of

DAY_1 = at(0)[:10]


def called(engagement_id: str, person_id: str, hours: float, name: str, **more: Any) -> Message:
    """An engagement that carries a name."""
    return engagement(engagement_id, person_id, hours, person_name=name, **more)


def rename(request_id: str, from_id: str, hours: float, name: str, **more: Any) -> Message:
    return request(request_id, "RENAME", hours, from_id=from_id, name=name, **more)


# Case: messages, and the names that the ids have in the end.
CASES: dict[str, tuple[list[Message], dict[str, str]]] = {
    "nothing was said": ([convert("r1", "a", "b", 10)], {}),
    "the newest engagement names its person": (
        [called("e1", "a", 2, "Bo"), called("e2", "a", 1, "Ann")], {"a": "Bo"}),
    "of equal times the larger name": ([called("e1", "a", 1, "Bo"), called("e2", "a", 1, "Ann")], {"a": "Bo"}),
    "a rename names an unknown id": ([rename("r1", "a", 1, "Ann")], {"a": "Ann"}),
    "a rename wins a tie with an engagement": (
        [called("e1", "a", 1, "Zoë"), rename("r1", "a", 1, "Ann")], {"a": "Ann"}),
    "of equal renames the greater request id": (
        [rename("r2", "a", 1, "Ann"), rename("r1", "a", 1, "Bo")], {"a": "Ann"}),
    "a conversion hands on, and the old id stays": (
        [called("e1", "a", 1, "Ann"), convert("r1", "a", "b", 2)], {"a": "Ann", "b": "Ann"}),
    "a chain hands a name on twice": (
        [called("e1", "a", 1, "Ann"), convert("r1", "a", "b", 2), convert("r2", "b", "c", 3)],
        {"a": "Ann", "b": "Ann", "c": "Ann"}),
    "a chain against time hands a name on once": (
        [called("e1", "a", 1, "Ann"), convert("r1", "a", "b", 3), convert("r2", "b", "c", 2)],
        {"a": "Ann", "b": "Ann"}),
    "equal times go by request id": (
        [called("e1", "a", 1, "Ann"), convert("r1", "a", "b", 2), convert("r2", "b", "c", 2)],
        {"a": "Ann", "b": "Ann", "c": "Ann"}),
    "equal times the other way round": (
        [called("e1", "a", 1, "Ann"), convert("r2", "a", "b", 2), convert("r1", "b", "c", 2)],
        {"a": "Ann", "b": "Ann"}),
    "request ids are compared as text": (
        [called("e1", "a", 1, "Ann"), convert("r10", "a", "b", 2), convert("r9", "b", "c", 2)],
        {"a": "Ann", "b": "Ann", "c": "Ann"}),
    "a late name before a conversion is handed on": (
        [convert("r1", "a", "b", 2), called("e1", "a", 1, "Ann")], {"a": "Ann", "b": "Ann"}),
    "a name at the time of a conversion stays": (
        [convert("r1", "a", "b", 2), called("e1", "a", 2, "Ann")], {"a": "Ann"}),
    "a rename at the time of a conversion goes by request id": (
        [convert("r2", "a", "b", 2), rename("r1", "a", 2, "Ann"), rename("r3", "a", 2, "Bo")],
        {"a": "Bo", "b": "Ann"}),
    "what is handed on competes by when it was said": (
        [called("e1", "a", 1, "Ann"), called("e2", "b", 2, "Bo"), convert("r1", "a", "b", 3)],
        {"a": "Ann", "b": "Bo"}),
    "what is handed on wins when it is newer": (
        [called("e1", "a", 2, "Ann"), called("e2", "b", 1, "Bo"), convert("r1", "a", "b", 3)],
        {"a": "Ann", "b": "Ann"}),
    "fan-out hands on to both": (
        [called("e1", "a", 1, "Ann"), convert("r1", "a", "b", 2), called("e2", "a", 3, "Bo"),
         convert("r2", "a", "c", 4)],
        {"a": "Bo", "b": "Ann", "c": "Bo"}),
    "a delete removes what was known up to then": (
        [called("e1", "a", 1, "Ann"), delete("r1", 2, from_id="a")], {}),
    "a delete leaves what is said later": (
        [called("e1", "a", 3, "Bo"), delete("r1", 2, from_id="a"), called("e2", "a", 1, "Zoë")], {"a": "Bo"}),
    "a delete leaves an engagement of its own time": (
        [called("e1", "a", 2, "Bo"), delete("r1", 2, from_id="a")], {"a": "Bo"}),
    "a delete removes what was handed on, and not where it came from": (
        [called("e1", "a", 1, "Ann"), convert("r1", "a", "b", 2), delete("r2", 3, from_id="b")], {"a": "Ann"}),
    "a conversion after a delete may hand on an older name": (
        [called("e1", "a", 1, "Ann"), called("e2", "b", 2, "Bo"), delete("r1", 3, from_id="b"),
         convert("r2", "a", "b", 4)],
        {"a": "Ann", "b": "Ann"}),
    "a delete before a conversion leaves nothing to hand on": (
        [called("e1", "a", 1, "Ann"), delete("r1", 2, from_id="a"), convert("r2", "a", "b", 3)], {}),
    "a conversion with a range hands nothing on": (
        [called("e1", "a", 1, "Ann"), convert("r1", "a", "b", 2, engagement_date_to=DAY_1),
         convert("r2", "a", "c", 2, engagement_date_from=DAY_1)],
        {"a": "Ann"}),
    "a conversion of one engagement hands nothing on": (
        [called("e1", "a", 1, "Ann"), convert("r1", "a", "b", 2, engagement_id="e1")], {"a": "Ann"}),
    "a delete of one engagement or within a range removes nothing": (
        [called("e1", "a", 1, "Ann"), delete("r1", 2, engagement_id="e1"),
         delete("r2", 2, from_id="a", engagement_id="e1"), delete("r3", 2, from_id="a", engagement_date_to=DAY_1)],
        {"a": "Ann"}),
    "a delete between a rename and an engagement of its own time": (
        [called("e1", "a", 1, "Bo"), rename("r1", "a", 1, "Ann"), delete("r2", 1, from_id="a")], {"a": "Bo"}),
    "a cycle": (
        [called("e1", "a", 1, "Ann"), called("e2", "b", 2, "Bo"), convert("r1", "a", "b", 3),
         convert("r2", "b", "a", 4)],
        {"a": "Bo", "b": "Bo"}),
    "a cycle brings back what a delete removed": (
        [called("e1", "a", 1, "Ann"), convert("r1", "a", "b", 2), delete("r2", 3, from_id="a"),
         convert("r3", "b", "a", 4)],
        {"a": "Ann", "b": "Ann"}),
    "a self edge": ([called("e1", "a", 1, "Ann"), convert("r1", "a", "a", 2)], {"a": "Ann"}),
}  # fmt: skip


def all_edges(messages: Sequence[Message]) -> list[Edge]:
    """Every CONVERT and DELETE as it arrived: duplicates, contradictions and self edges too."""
    return [edge(m) for m in messages if is_request(m) and m["operation"] in {"CONVERT", "DELETE"}]


def all_evidence(messages: Sequence[Message]) -> list[Evidence]:
    """Every name that landed, in arrival order."""
    found = []
    for message in landed(messages)[0]:
        if is_request(message):
            if message["operation"] == "RENAME":
                ts = time_of(message["execution_ts"])
                found.append(Evidence(message["from_id"], message["name"], ts, message["request_id"]))
        elif message.get("person_name") is not None:
            ts = time_of(message["engagement_ts"])
            found.append(Evidence(message["person_id"], message["person_name"], ts, None))
    return found


def assert_names_as_replayed(messages: Sequence[Message], ways: Counter[str]) -> None:
    """From all evidence in any order, and from what is needed before a time to which all requests are known."""
    names = {key[1]: name for key, name in replay(messages).names.items()}
    organization_id = messages[0]["organization_id"]
    evidence, edges = all_evidence(messages), all_edges(messages)
    assert current_names(organization_id, evidence, edges) == names
    assert current_names(organization_id, reversed(evidence * 2), edges) == names
    needed = needed_evidence(evidence, edges, datetime(2030, 1, 1, tzinfo=UTC))
    assert current_names(organization_id, needed, edges) == names
    assert needed_evidence(needed, edges, datetime(2030, 1, 1, tzinfo=UTC)) == needed
    assert set(needed_evidence(evidence, edges, time_of(at(0)))) == set(evidence), "a request to come may need it"
    ways["evidence dropped"] += len(needed) < len(set(evidence))
    ways["two of one id needed"] += len({one.id for one in needed}) < len(needed)
    ways["handed on"] += bool(names.keys() - {one.id for one in evidence})
    ways["removed"] += bool({one.id for one in evidence} - names.keys())


def history_of(seed: int) -> list[Message]:
    """Long and short ones; of four, one contradicts itself."""
    return random_history(seed, size=10 + seed % 3 * 25, conflicts=seed % 4 == 0)


@pytest.mark.parametrize("case", CASES)
def test_a_named_case_ends_as_its_reader_expects(case: str) -> None:
    messages, expected = CASES[case]
    names = current_names("org", all_evidence(messages), all_edges(messages))
    assert {person: name for person, (name, _) in names.items()} == expected
    assert_names_as_replayed(messages, Counter())
    assert_names_as_replayed(messages[::-1], Counter())


def test_random_histories_end_in_the_names_that_a_sequential_replay_leaves() -> None:
    ways: Counter[str] = Counter()
    for seed in range(1200):
        try:
            assert_names_as_replayed(history_of(seed), ways)
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
    assert len(ways) == 4
    assert min(ways.values()) > 50, f"the histories are too tame: {ways}"


@settings(max_examples=200, deadline=None)
@given(history=histories(conflicts=True))
def test_any_history_ends_in_the_names_that_a_sequential_replay_leaves(history: list[Message]) -> None:
    if history:
        assert_names_as_replayed(history, Counter())


def test_of_two_edges_with_one_request_id_the_first_counts_plain_or_not() -> None:
    one, other, narrowed = all_edges(
        [convert("r", "a", "b", 2), convert("r", "a", "c", 3), convert("r", "a", "d", 4, engagement_id="e")]
    )
    said = all_evidence([called("e", "a", 1, "Ann")])
    assert current_names("org", said, [one, other, narrowed]).keys() == {"a", "b"}
    assert current_names("org", said, [other, one, narrowed]).keys() == {"a", "c"}
    assert current_names("org", said, [narrowed, one, other]).keys() == {"a"}


def test_a_hundred_thousand_names_and_a_chain_of_thousands_are_settled_without_going_deep() -> None:
    def names_of(size: int) -> Callable[[], None]:
        """Of so many names, with a long chain of edges, and one id that half of all names and many edges are about."""
        rng = random.Random(20261121)
        chain = all_edges([convert(f"r{n}", f"p{n}", f"p{n + 1}", 2_000 + n) for n in range(size // 20)])
        star = all_edges([convert(f"s{n}", PERSONS[0], f"q{n}", n) for n in range(size // 50)])
        begin = time_of(at(0))
        evidence = [
            Evidence(
                PERSONS[0] if n % 2 else f"p{n % (size // 20)}",
                f"name {n}",
                begin + timedelta(hours=rng.randrange(2_000)),
                None,
            )
            for n in range(size)
        ]
        edges = [*chain, *star]
        rng.shuffle(edges)

        def settle() -> None:
            names = current_names("org", evidence, edges)
            newest = max((one for one in evidence if one.id == PERSONS[0]), key=lambda one: one.age)
            assert names[PERSONS[0]] == (newest.name, newest.name_ts)
            assert names[f"p{size // 20}"][1] == max(one.name_ts for one in evidence if one.id != PERSONS[0])

        return settle

    # Eight times as many; what looks at all pairs would take 64 times as long.
    assert cpu_seconds(names_of(100_000), 2) < 24 * cpu_seconds(names_of(12_500))

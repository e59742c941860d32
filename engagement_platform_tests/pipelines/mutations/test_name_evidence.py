"""Names: what mapping must hold is what a sequential replay leaves, for all ids at once and for each alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given, settings

from engagement_platform.pipelines.mutations.edges import Edge
from engagement_platform.pipelines.mutations.name_evidence import Said, Saying, affected, names_of, plain, relevant
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
from engagement_platform_tests.pipelines.mutations.oracle import Key, is_request, landed, replay, time_of

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
    "two organizations do not mix": (
        [called("e1", "a", 1, "Ann"), called("e1", "a", 1, "Zoë", organization_id="other"),
         convert("r1", "a", "b", 2, organization_id="other"), delete("r2", 3, from_id="a", organization_id="other")],
        {"a": "Ann", "other/b": "Zoë"}),
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


def all_sayings(messages: Sequence[Message]) -> list[Saying]:
    """Every name that landed, in arrival order."""
    found = []
    for message in landed(messages)[0]:
        organization_id = message["organization_id"]
        if is_request(message):
            if message["operation"] == "RENAME":
                said = Said(time_of(message["execution_ts"]), True, message["request_id"], message["name"])
                found.append(Saying(organization_id, message["from_id"], said))
        elif message.get("person_name") is not None:
            said = Said(time_of(message["engagement_ts"]), False, "", message["person_name"])
            found.append(Saying(organization_id, message["person_id"], said))
    return found


def all_ids(messages: Sequence[Message]) -> set[Key]:
    named = {(m["organization_id"], m[field]) for m in messages for field in ("person_id", "from_id") if m.get(field)}
    return named | {(m["organization_id"], m["to_id"]) for m in messages if m.get("to_id")}


def without_evidence(names: dict[Key, Said]) -> dict[Key, tuple[str, datetime]]:
    return {key: (said.name, said.name_ts) for key, said in names.items()}


def assert_names_as_replayed(messages: Sequence[Message], ways: Counter[str]) -> None:
    """All ids at once, and each of them from nothing but the sayings of the ids that `relevant` names."""
    names = replay(messages).names
    sayings, edges, ids = all_sayings(messages), all_edges(messages), all_ids(messages)
    together = names_of(ids, sayings, edges)
    assert without_evidence(together) == names
    assert set(together.values()) <= {saying.said for saying in sayings}
    for key in ids:
        sources = relevant(edges, {key})
        enough = [saying for saying in sayings if saying[:2] in sources]
        assert names_of([key], iter(enough), iter(edges)) == {k: s for k, s in together.items() if k == key}
        ways["sources"] += len(sources) > 1
        ways["sayings left out"] += len(enough) < len(sayings)
        ways["handed on"] += key in together and Saying(*key, together[key]) not in enough
        ways["removed"] += key not in together and any(saying[:2] == key for saying in enough)


def assert_only_affected_change(messages: Sequence[Message], ways: Counter[str]) -> None:
    """The last message to arrive changes the names of affected ids, and no others."""
    new, before, after = messages[-1], replay(messages[:-1]).names, replay(messages).names
    about = {(new["organization_id"], new[field]) for field in ("person_id", "from_id") if new.get(field) is not None}
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert changed <= affected(all_edges(messages), about)
    ways["changed others"] += bool(changed - about)
    ways["changed itself only"] += changed == about
    ways["changed nothing"] += not changed


def history_of(seed: int) -> list[Message]:
    """Long and short ones; of four, one contradicts itself."""
    return random_history(seed, size=10 + seed % 3 * 25, conflicts=seed % 4 == 0)


@pytest.mark.parametrize("case", CASES)
def test_a_named_case_ends_as_its_reader_expects(case: str) -> None:
    messages, expected = CASES[case]
    names = names_of(all_ids(messages), all_sayings(messages), all_edges(messages))
    written = {("" if key[0] == "org" else f"{key[0]}/") + key[1]: said.name for key, said in names.items()}
    assert written == expected
    assert_names_as_replayed(messages, Counter())
    assert_names_as_replayed(messages[::-1], Counter())
    for place in range(len(messages)):
        assert_only_affected_change([*messages[:place], *messages[place + 1 :], messages[place]], Counter())


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
    assert_names_as_replayed(history, Counter())


def test_a_message_more_changes_names_of_affected_ids_only() -> None:
    ways: Counter[str] = Counter()
    for seed in range(600):
        history = history_of(seed)
        # Any message may be the last to arrive, for its time is its own.
        history.append(history.pop(seed % len(history)))
        try:
            assert_only_affected_change(history, ways)
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
    assert len(ways) == 3
    assert min(ways.values()) > 20, f"the histories are too tame: {ways}"


@settings(max_examples=200, deadline=None)
@given(history=histories())
def test_any_message_more_changes_names_of_affected_ids_only(history: list[Message]) -> None:
    for place in range(len(history)):
        assert_only_affected_change([*history[:place], *history[place + 1 :], history[place]], Counter())


def test_many_organizations_with_the_same_ids_are_named_together_as_if_alone() -> None:
    many = [random_history(seed, size=30) for seed in range(100)]
    together = [message for history in many for message in history]
    random.Random(20261121).shuffle(together)
    names = names_of(all_ids(together), all_sayings(together), all_edges(together))
    assert without_evidence(names) == {key: said for history in many for key, said in replay(history).names.items()}


def test_only_edges_of_whole_persons_between_two_ids_are_plain() -> None:
    requests = [
        convert("r2", "a", "b", 2),
        delete("r1", 2, from_id="a", to_id="a"),
        delete("r3", 1, engagement_id="e"),
        delete("r4", 1, from_id="a", engagement_id="e"),
        convert("r5", "a", "b", 1, engagement_id="e"),
        convert("r6", "a", "b", 1, engagement_date_from=DAY_1),
        convert("r7", "a", "b", 1, engagement_date_to=DAY_1),
        convert("r8", "a", "a", 1),
    ]
    assert [found.request_id for found in plain(all_edges(requests))] == ["r1", "r2"]
    assert plain(plain(all_edges(requests))) == plain(all_edges(requests))


def test_of_two_edges_with_one_request_id_the_first_counts_plain_or_not() -> None:
    one, other, narrowed = all_edges(
        [convert("r", "a", "b", 2), convert("r", "a", "c", 3), convert("r", "a", "d", 4, engagement_id="e")]
    )
    (said,) = all_sayings([called("e", "a", 1, "Ann")])
    ids = [("org", person) for person in "abcd"]
    assert names_of(ids, [said], [one, other, narrowed]).keys() == {("org", "a"), ("org", "b")}
    assert names_of(ids, [said], [other, one, narrowed]).keys() == {("org", "a"), ("org", "c")}
    assert names_of(ids, [said], [narrowed, one, other]).keys() == {("org", "a")}
    assert affected([narrowed, one], [("org", "a")]) == relevant([narrowed, one], [("org", "a")]) == {("org", "a")}


def test_affected_and_relevant_ids_follow_conversions_only_as_far_as_time_lets_a_name_come() -> None:
    chain = [convert("r1", "a", "b", 1), convert("r2", "b", "c", 2), convert("r3", "y", "a", 3)]
    aside = [convert("r4", "b", "x", 9, engagement_id="e"), delete("r5", 9, from_id="b"),
             convert("r6", "a", "z", 9, organization_id="other")]  # fmt: skip
    edges = all_edges([*chain, *aside])
    assert affected(edges, {("org", "a")}) == {("org", "a"), ("org", "b"), ("org", "c")}
    assert affected(edges, {("org", "y")}) == {("org", "y"), ("org", "a")}
    assert relevant(edges, {("org", "c")}) == {("org", "c"), ("org", "b"), ("org", "a")}
    assert relevant(edges, {("org", "a")}) == {("org", "a"), ("org", "y")}
    assert affected(edges, {("org", "y"), ("other", "a")}) == {
        ("org", "y"), ("org", "a"), ("other", "a"), ("other", "z"),
    }  # fmt: skip
    assert affected([], {("org", "q")}) == relevant([], {("org", "q")}) == {("org", "q")}


def test_ids_of_whom_nothing_is_known_are_absent_and_names_of_others_are_not_told() -> None:
    sayings = all_sayings([called("e1", "a", 1, "Ann")])
    assert names_of([("org", "b")], sayings, []) == {}
    assert names_of([], sayings, []) == {}


def test_what_was_given_is_left_as_it_was() -> None:
    messages = random_history(3, size=40)
    ids, sayings, edges = all_ids(messages), all_sayings(messages), all_edges(messages)
    copies = set(ids), list(sayings), list(edges)
    names_of(ids, sayings, edges)
    affected(edges, ids)
    relevant(edges, ids)
    assert (ids, sayings, edges) == copies


def test_a_hundred_thousand_sayings_and_a_chain_of_thousands_are_settled_without_going_deep() -> None:
    rng = random.Random(20261121)
    chain = all_edges([convert(f"r{n}", f"p{n}", f"p{n + 1}", 1000 + n) for n in range(5_000)])
    # And one id that half of all sayings and many edges are about.
    star = all_edges([convert(f"s{n}", PERSONS[0], f"q{n}", n) for n in range(2_000)])
    begin = time_of(at(0))
    sayings = [
        Saying(
            "org",
            PERSONS[0] if n % 2 else f"p{n % 5_000}",
            Said(begin + timedelta(hours=rng.randrange(2_000)), False, "", f"name {n}"),
        )
        for n in range(100_000)
    ]
    edges = [*chain, *star]
    rng.shuffle(edges)
    ids = {("org", f"p{n}") for n in range(5_001)} | {("org", f"q{n}") for n in range(2_000)} | {("org", PERSONS[0])}
    begun = perf_counter()
    names = names_of(ids, sayings, edges)
    took = perf_counter() - begun
    assert names[("org", PERSONS[0])] == max(saying.said for saying in sayings if saying.id == PERSONS[0])
    assert names[("org", "p5000")].name_ts == begin + timedelta(hours=1999)
    # 0.2 s on one of two busy cores; only something quadratic comes near two.
    assert took < 2

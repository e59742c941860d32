"""What a batch leaves out of an organization's edges and patches changes nothing that the rules make of its rows."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.pipelines.engagements.rules import resolve
from engagement_platform.pipelines.engagements.schema import COPY
from engagement_platform.pipelines.mutations import rules, view
from engagement_platform.pipelines.mutations.concerned import components, in_parts, of_edges_since, of_rows
from engagement_platform.pipelines.state import one_chunk
from engagement_platform_tests.pipelines.lakes import MemoryLake, copy_of
from engagement_platform_tests.pipelines.mutations import oracle
from engagement_platform_tests.pipelines.mutations.histories import Message, random_history
from engagement_platform_tests.pipelines.test_histories import run

OWN = ("engagement_id", "person_id", "request_id", "from_id", "to_id")
HISTORIES = 5
"""In each organization: ids of none are among those of another."""


def of_one(seed: int, number: int) -> list[Message]:
    """One of the histories of an organization."""
    history = random_history(HISTORIES * seed + number, organization="org")
    return [{**m, **{name: f"{number}/{m[name]}" for name in OWN if m.get(name) is not None}} for m in history]


@pytest.fixture(scope="module")
def lakes() -> list[MemoryLake]:
    made = []
    for seed in range(8):
        messages = [message for number in range(HISTORIES) for message in of_one(seed, number)]
        Random(seed).shuffle(messages)
        made.append(run(messages, Random(seed)))
    return made


def count(state: pa.Table, kind: str) -> int:
    return int(state.num_rows - state.column(kind).null_count)


def test_rows_come_to_what_they_come_to_with_all_edges_and_patches_of_the_organization(lakes: list[MemoryLake]) -> None:
    left_out = {"edge": 0, "patch": 0}
    for lake in lakes:
        whole = lake.state(None, None)
        of = pc.struct_field(whole.column("row"), "engagement_id")
        for number in range(HISTORIES):
            others = pc.invert(pc.starts_with(of, f"{number}/"))
            some = whole.filter(pc.invert(pc.fill_null(others, False)))
            few = of_rows(some)
            assert rules.current_rows("org", few) == rules.current_rows("org", some)
            for since in (2, lake.sequence):
                assert rules.changes("org", few, since) == rules.changes("org", some, since)
            left_out = {kind: left_out[kind] + count(some, kind) - count(few, kind) for kind in left_out}
    assert min(left_out.values()) > 20, left_out


def test_rows_of_a_group_that_go_part_by_part_come_to_what_they_come_to_together(
    lakes: list[MemoryLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = list[int]()
    for lake in lakes:
        whole = lake.state(None, None)
        horizon = sorted(edge["execution_ts"] for edge in lake.edges)[len(lake.edges) // 2]
        for rule in (rules.current_rows, partial(rules.base_rows, horizon=horizon), partial(rules.changes, since=2)):

            def seen(organization_id: str, state: pa.Table, rule: view.Rule = rule) -> pa.Table:
                looked_at.append(count(state, "row"))
                return rule(organization_id, state)

            monkeypatch.setattr(view, "ROWS_PER_GROUP", 5)
            parts = view._of_group(seen, whole)
            monkeypatch.setattr(view, "ROWS_PER_GROUP", 1_000)
            together = view._of_group(rule, whole)
            assert parts.schema == together.schema
            assert sorted(map(repr, parts.to_pylist())) == sorted(map(repr, together.to_pylist()))
    assert len(looked_at) > 2 * 3 * len(lakes), "groups are split"
    assert max(looked_at) <= 2 * 5, "rows of a part, of which some have several images"


def test_few_rows_stay_in_one_part(lakes: list[MemoryLake]) -> None:
    whole = lakes[0].state(None, None)
    assert [part is whole for part in in_parts(whole, whole.num_rows)] == [True]


def test_new_edges_move_what_they_move_with_all_others(lakes: list[MemoryLake]) -> None:
    left_out = 0
    for lake in lakes:
        whole = lake.state(set(), None)
        for since in range(1, lake.sequence + 1):
            few = of_edges_since(whole, since)
            for rule in (rules.moves, rules.moves_apart):
                assert rule("org", few, since) == rule("org", whole, since)
            left_out += count(whole, "edge") - count(few, "edge")
    assert left_out > 20


def test_copies_are_planned_as_with_all_edges_of_the_organization(lakes: list[MemoryLake]) -> None:
    left_out = 0
    for seed, lake in enumerate(lakes):
        engagements = [m for m in of_one(seed, 0) if not oracle.is_request(m)]
        copies = pa.Table.from_pylist([copy_of(at, message) for at, message in enumerate(engagements)], schema=COPY)
        whole = lake.state(set(copies.column("engagement_id").to_pylist()), None)
        few = of_rows(whole, one_chunk(copies.column("person_id")))
        for announced in (0, lake.sequence // 2, lake.sequence):
            planned = (resolve("org", copies, state, all_days=True, announced=announced) for state in (few, whole))
            assert next(planned) == next(planned)
        left_out += count(whole, "edge") - count(few, "edge")
        assert count(few, "patch") == count(whole, "patch")
    assert left_out > 20


def by_a_loop(links: list[tuple[int, int]], ids: int) -> list[int]:
    least = list(range(ids))
    for _ in range(ids):
        for one, other in links:
            least[one] = least[other] = min(least[one], least[other])
    return least


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20))
def test_the_least_of_each_component_is_that_of_a_loop_over_its_links(links: list[tuple[int, int]]) -> None:
    first, second = np.array(links, np.int64).reshape(-1, 2).T
    assert components(first, second, 12).tolist() == by_a_loop(links, 12)


@pytest.mark.parametrize("order", ["in order", "at random"])
def test_a_path_as_long_as_a_sender_likes_is_followed_in_few_rounds(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.arange(100_000)
    if order == "at random":
        np.random.default_rng(1).shuffle(ids)
    rounds, minimum = list[int](), np.minimum

    def counted(*arguments: Any) -> Any:
        rounds.append(1)
        return minimum(*arguments)

    counted.at = minimum.at  # type: ignore[attr-defined]
    monkeypatch.setattr(np, "minimum", counted)
    assert not components(ids[:-1], ids[1:], len(ids)).any()
    assert len(rounds) < 40

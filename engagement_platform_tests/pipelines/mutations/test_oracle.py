"""The oracle itself, checked by hand; and that it forgets the order of arrival when nothing contradicts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform_tests.pipelines.mutations.histories import (
    Message,
    histories,
    random_history,
)
from engagement_platform_tests.pipelines.mutations.oracle import Tables, is_request, replay


@settings(max_examples=100, deadline=None)
@given(history=histories(), data=st.data())
def test_the_order_of_arrival_changes_nothing_when_nothing_contradicts(
    history: list[Message], data: st.DataObject
) -> None:
    in_order = replay(history)
    assert in_order.refused == {}
    assert replay(data.draw(st.permutations(history))) == in_order


@settings(max_examples=50, deadline=None)
@given(history=histories(conflicts=True), data=st.data())
def test_copies_of_what_came_in_before_change_nothing(history: list[Message], data: st.DataObject) -> None:
    again = data.draw(st.lists(st.sampled_from(history), max_size=5)) if history else []
    once, twice = replay(history), replay([*history, *again])
    assert (twice.data, twice.names) == (once.data, once.names)


def test_the_random_histories_hold_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        history = random_history(seed, conflicts=seed % 2 == 0)
        assert history == random_history(seed, conflicts=seed % 2 == 0)
        sent, after = replay([message for message in history if not is_request(message)]), replay(history)
        seen.update(after.refused.values())
        seen["deleted"] += len(sent.data.keys() - after.data.keys())
        seen.update(changes(sent, after))
        seen["names by request"] += after.names != sent.names
    expected = {"deleted", "converted", "patched", "names by request"}
    assert min(seen[what] for what in expected) >= 20, seen
    assert min(seen["version_conflict"], seen["request_conflict"]) >= 5, seen


def changes(sent: Tables, after: Tables) -> list[str]:
    found = []
    for key, row in after.data.items():
        found += ["converted"] * (row.person_id != row.source_person_id)
        before = sent.data[key]
        content = [(r.type, r.channel, r.subject, r.attributes) for r in (before, row)]
        found += ["patched"] * (content[0] != content[1])
    return found

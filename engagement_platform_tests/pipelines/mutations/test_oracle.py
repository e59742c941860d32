"""The oracle itself, checked by hand; and that it forgets the order of arrival when nothing contradicts."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform_tests.pipelines.mutations.histories import (
    Message,
    at,
    convert,
    delete,
    engagement,
    histories,
    random_history,
    request,
)
from engagement_platform_tests.pipelines.mutations.oracle import Row, Tables, is_request, replay


def row_of(messages: list[Message], engagement_id: str = "e") -> Row:
    return replay(messages).data["org", engagement_id]


def names_of(messages: list[Message]) -> dict[str, tuple[str, datetime]]:
    return {person_id: said for (_, person_id), said in replay(messages).names.items()}


def named(name: str, hours: float) -> tuple[str, datetime]:
    return name, datetime.fromisoformat(at(hours))


def rename(request_id: str, from_id: str, name: str, hours: float) -> Message:
    return request(request_id, "RENAME", hours, from_id=from_id, name=name)


def update(request_id: str, hours: float, **patch: Any) -> Message:
    return request(request_id, "UPDATE", hours, engagement_id="e", **patch)


def called(person_id: str, name: str, hours: float) -> Message:
    """An engagement that says a person's name."""
    return engagement(f"of {person_id} at {hours}", person_id, hours, person_name=name)


def test_an_engagement_enters_as_it_says() -> None:
    row = row_of([engagement("e", "p", 5, version=2, channel="web", subject=None, attributes={"a": "1"})])
    assert row == Row("p", "p", datetime.fromisoformat(at(5)), 2, "email", "web", None, {"a": "1"})


def test_optional_fields_that_are_missing_are_null_and_the_version_is_one() -> None:
    row = row_of([engagement("e", "p", 5)])
    assert (row.version, row.channel, row.subject, row.attributes) == (1, None, None, None)


def test_the_highest_version_wins_whole_whichever_comes_in_last() -> None:
    first = engagement("e", "p", 5, subject="first", channel="web")
    second = engagement("e", "q", 4, version=2, subject="second")
    for messages in ([first, second], [second, first]):
        row = row_of(messages)
        assert (row.source_person_id, row.version, row.subject, row.channel) == ("q", 2, "second", None)
        assert row.engagement_ts == datetime.fromisoformat(at(4))


def test_a_version_for_another_person_takes_the_engagement_out_of_a_delete() -> None:
    messages = [engagement("e", "p", 5), delete("r", 10, from_id="p")]
    assert replay(messages).data == {}
    assert row_of([*messages, engagement("e", "q", 5, version=2)]).person_id == "q"


def test_identity_follows_conversions_and_the_source_stays() -> None:
    row = row_of([engagement("e", "a", 5), convert("r1", "a", "b", 10), convert("r2", "b", "c", 11)])
    assert (row.person_id, row.source_person_id) == ("c", "a")


def test_the_first_of_two_versions_that_contradict_stays_and_the_other_says_no_name() -> None:
    one, other = engagement("e", "p", 5, subject="one"), engagement("e", "p", 5, subject="other", person_name="Zz")
    tables = replay([one, other])
    assert (tables.data["org", "e"].subject, tables.refused, tables.names) == ("one", {1: "version_conflict"}, {})
    assert row_of([other, one]).subject == "other"


def test_a_copy_with_another_name_is_a_duplicate_whose_name_counts() -> None:
    tables = replay([engagement("e", "p", 5), engagement("e", "p", 5, person_name="Ann")])
    assert tables.refused == {}
    assert tables.names == {("org", "p"): named("Ann", 5)}


def test_a_copy_of_a_patched_engagement_is_still_a_duplicate() -> None:
    original = engagement("e", "p", 5, subject="as sent")
    tables = replay([original, update("r", 10, subject="patched"), original])
    assert tables.refused == {}
    assert tables.data["org", "e"].subject == "patched"


def test_a_version_on_another_day_is_refused() -> None:
    tables = replay([engagement("e", "p", 5), engagement("e", "p", 30, version=2)])
    assert tables.refused == {1: "moved_in_time"}
    assert tables.data["org", "e"].version == 1


def test_the_first_of_two_requests_with_one_id_stays() -> None:
    row, one, other = engagement("e", "a", 5), convert("r", "a", "b", 10), convert("r", "a", "c", 10)
    assert replay([row, one, other]).refused == {2: "request_conflict"}
    assert row_of([row, one, other]).person_id == "b"
    assert row_of([row, other, one]).person_id == "c"


def test_copies_of_a_request_may_differ_in_fields_that_it_does_not_use() -> None:
    one, other = delete("r", 10, from_id="a", to_id="b"), delete("r", 10, from_id="a", name="Ann", engagement_id=None)
    assert replay([one, other]).refused == {}


def test_a_patch_that_clears_a_channel_is_not_a_copy_of_one_that_leaves_it() -> None:
    assert replay([update("r", 10, channel=None), update("r", 10)]).refused == {1: "request_conflict"}
    assert replay([update("r", 10, type=None), update("r", 10)]).refused == {}


def test_a_self_conversion_does_nothing_and_claims_no_request_id() -> None:
    messages = [engagement("e", "a", 5), convert("r", "a", "a", 10), convert("r", "a", "b", 10)]
    assert row_of(messages).person_id == "b"
    assert replay(messages).refused == {}


PATCHES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]] = {
    "given fields replace": (
        {"subject": "s", "channel": "web"}, [{"subject": "t"}], {"subject": "t", "channel": "web"}),
    "null clears channel and subject": (
        {"subject": "s", "channel": "web"}, [{"subject": None, "channel": None}], {"subject": None, "channel": None}),
    "null leaves the type": ({"type": "call"}, [{"type": None}], {"type": "call"}),
    "the type is replaced": ({"type": "call"}, [{"type": "email"}], {"type": "email"}),
    "attributes merge key by key": (
        {"attributes": {"a": "1", "b": "1"}}, [{"attributes": {"b": "2", "c": "2"}}],
        {"attributes": {"a": "1", "b": "2", "c": "2"}}),
    "null removes a key": (
        {"attributes": {"a": "1", "b": "1"}}, [{"attributes": {"b": None}}], {"attributes": {"a": "1"}}),
    "a removed key may come back": (
        {"attributes": {"a": "1"}}, [{"attributes": {"a": None}}, {"attributes": {"a": "3"}}],
        {"attributes": {"a": "3"}}),
    "null attributes leave them": ({"attributes": {"a": "1"}}, [{"attributes": None}], {"attributes": {"a": "1"}}),
    "attributes may begin with a patch": ({}, [{"attributes": {"a": "1", "b": None}}], {"attributes": {"a": "1"}}),
    "a patch that only removes leaves an empty object": ({}, [{"attributes": {"a": None}}], {"attributes": {}}),
    "a patch without attributes leaves null": ({}, [{"subject": "t"}], {"attributes": None}),
    "the later patch wins field by field": (
        {}, [{"subject": "t", "channel": "web"}, {"subject": "u"}], {"subject": "u", "channel": "web"}),
}  # fmt: skip


@pytest.mark.parametrize("case", PATCHES)
def test_a_patch_does_what_it_says(case: str) -> None:
    before, patches, after = PATCHES[case]
    requests = [update(f"r{n}", 10 + n, **patch) for n, patch in enumerate(patches)]
    for messages in (
        [engagement("e", "p", 5, **before), *requests],
        [*requests[::-1], engagement("e", "p", 5, **before)],
    ):
        row = row_of(messages)
        assert {name: getattr(row, name) for name in after} == after
        assert row.version == 1


def test_patches_of_one_time_apply_by_request_id() -> None:
    assert (
        row_of([engagement("e", "p", 5), update("r2", 10, subject="2"), update("r1", 10, subject="1")]).subject == "2"
    )


def test_a_patch_leaves_an_engagement_of_its_own_time_and_later() -> None:
    for hours, subject in ((9.9, "patched"), (10, None), (10.1, None)):
        assert row_of([engagement("e", "p", hours), update("r", 10, subject="patched")]).subject == subject


def test_patches_apply_to_versions_that_come_in_later_and_to_converted_rows() -> None:
    messages = [engagement("e", "a", 5), convert("r1", "a", "b", 10), update("r2", 11, subject="patched")]
    row = row_of([*messages, engagement("e", "a", 5, version=2, channel="web", subject="as sent")])
    assert (row.person_id, row.version, row.channel, row.subject) == ("b", 2, "web", "patched")


NAMES: dict[str, tuple[list[Message], dict[str, tuple[str, datetime]]]] = {
    "an engagement names its person": ([called("a", "Ann", 5)], {"a": named("Ann", 5)}),
    "a rename makes a row for an unknown id": ([rename("r", "a", "Ann", 5)], {"a": named("Ann", 5)}),
    "the newest evidence wins": (
        [called("a", "Cy", 7), rename("r", "a", "Ann", 5), called("a", "Bo", 6)], {"a": named("Cy", 7)}),
    "a rename wins a tie": ([called("a", "Zoë", 5), rename("r", "a", "Ann", 5)], {"a": named("Ann", 5)}),
    "equal times: the larger name": (
        [engagement("e", "a", 5, person_name="Bo"), engagement("f", "a", 5, person_name="Ann")], {"a": named("Bo", 5)}),
    "two renames of one time: the greater request id": (
        [rename("r2", "a", "Ann", 5), rename("r1", "a", "Zoë", 5)], {"a": named("Ann", 5)}),
    "any version says a name, and for its own person": (
        [engagement("e", "a", 5, person_name="Ann"), engagement("e", "b", 5, version=2)], {"a": named("Ann", 5)}),
    "a conversion hands the name on, with its time, and from_id keeps it": (
        [called("a", "Ann", 5), convert("r", "a", "b", 10)], {"a": named("Ann", 5), "b": named("Ann", 5)}),
    "what was said in to_id later stays": (
        [called("a", "Ann", 5), called("b", "Bo", 6), convert("r", "a", "b", 10)],
        {"a": named("Ann", 5), "b": named("Bo", 6)}),
    "what was said in to_id earlier goes": (
        [called("a", "Ann", 5), called("b", "Bo", 4), convert("r", "a", "b", 10)],
        {"a": named("Ann", 5), "b": named("Ann", 5)}),
    "a name said after the conversion stays with from_id": (
        [called("a", "Ann", 11), convert("r", "a", "b", 10)], {"a": named("Ann", 11)}),
    "a name of an engagement at the time of the conversion stays with from_id": (
        [called("a", "Ann", 10), convert("r", "a", "b", 10)], {"a": named("Ann", 10)}),
    "a rename at the time of the conversion goes by request id": (
        [rename("r1", "a", "Ann", 10), convert("r2", "a", "b", 10), rename("r3", "a", "Bo", 10)],
        {"a": named("Bo", 10), "b": named("Ann", 10)}),
    "names are handed along a chain": (
        [called("a", "Ann", 5), convert("r2", "b", "c", 11), convert("r1", "a", "b", 10)],
        {"a": named("Ann", 5), "b": named("Ann", 5), "c": named("Ann", 5)}),
    "names are not handed backwards in time": (
        [called("a", "Ann", 5), convert("r1", "b", "c", 10), convert("r2", "a", "b", 11)],
        {"a": named("Ann", 5), "b": named("Ann", 5)}),
    "a handed rename still beats an engagement of its time": (
        [rename("r1", "a", "Ann", 5), called("b", "Zoë", 5), convert("r2", "a", "b", 10)],
        {"a": named("Ann", 5), "b": named("Ann", 5)}),
    "a conversion with a range or an engagement hands nothing on": (
        [called("a", "Ann", 5), convert("r1", "a", "b", 10, engagement_id="e"),
         convert("r2", "a", "c", 10, engagement_date_from="2026-11-01")], {"a": named("Ann", 5)}),
    "a delete takes the name known up to then": ([called("a", "Ann", 5), delete("r", 10, from_id="a")], {}),
    "a delete leaves a name said later, or at its time": (
        [called("a", "Ann", 5), called("a", "Bo", 10), delete("r", 10, from_id="a")], {"a": named("Bo", 10)}),
    "a delete at the time of a rename goes by request id": (
        [rename("r1", "a", "Ann", 10), delete("r2", 10, from_id="a"), rename("r3", "a", "Bo", 10)],
        {"a": named("Bo", 10)}),
    "a delete with a range or an engagement takes no name": (
        [called("a", "Ann", 5), delete("r1", 10, from_id="a", engagement_id="e"),
         delete("r2", 10, from_id="a", engagement_date_to="2026-11-16"), delete("r3", 10, engagement_id="of a at 5")],
        {"a": named("Ann", 5)}),
    "a delete of to_id leaves from_id": (
        [called("a", "Ann", 5), convert("r1", "a", "b", 10), delete("r2", 11, from_id="b")], {"a": named("Ann", 5)}),
    "a delete of from_id after the conversion leaves to_id": (
        [called("a", "Ann", 5), convert("r1", "a", "b", 10), delete("r2", 11, from_id="a")], {"b": named("Ann", 5)}),
    "a later conversion may bring an older name back": (
        [called("a", "Ann", 5), called("b", "Bo", 6), delete("r1", 10, from_id="b"), convert("r2", "a", "b", 11)],
        {"a": named("Ann", 5), "b": named("Ann", 5)}),
    "a deleted engagement has said its name": (
        [engagement("e", "a", 5, person_name="Ann"), delete("r", 10, engagement_id="e")], {"a": named("Ann", 5)}),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES)
def test_names_are_as_their_reader_expects_in_either_order_of_arrival(case: str) -> None:
    messages, expected = NAMES[case]
    assert names_of(messages) == expected
    assert names_of(messages[::-1]) == expected


def test_an_id_in_two_organizations_is_two_persons() -> None:
    other = {**engagement("e", "a", 5, person_name="Ann"), "organization_id": "other"}
    tables = replay([engagement("e", "a", 5, person_name="Ann"), other, convert("r", "a", "b", 10)])
    assert {key: row.person_id for key, row in tables.data.items()} == {("org", "e"): "b", ("other", "e"): "a"}
    assert set(tables.names) == {("org", "a"), ("org", "b"), ("other", "a")}


@settings(max_examples=300, deadline=None)
@given(history=histories(), data=st.data())
def test_the_order_of_arrival_changes_nothing_when_nothing_contradicts(
    history: list[Message], data: st.DataObject
) -> None:
    in_order = replay(history)
    assert in_order.refused == {}
    assert replay(data.draw(st.permutations(history))) == in_order


@settings(max_examples=200, deadline=None)
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

"""Patches of an engagement: as decoded from messages, settled to what a sequential replay leaves."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.pipelines.mutations.patches import Content, Patch, patched
from engagement_platform.sources.decoding import engagement_decoder, mutation_request_decoder
from engagement_platform.sources.messages import DecodingLimits, Engagement, MutationRequest
from engagement_platform_tests.matrix import quick
from engagement_platform_tests.pipelines.mutations.histories import (
    Message,
    at,
    histories,
    random_history,
    request,
)
from engagement_platform_tests.pipelines.mutations.oracle import Key, is_request, landed, replay

LIMITS = DecodingLimits()
INGESTED = datetime(2026, 12, 1, tzinfo=UTC)
ENGAGED = datetime.fromisoformat(at(0))
ORIGINAL = Content("email", "web", "hello", {"a": "1", "b": "2"})


def patch_of(message: Message) -> Patch:
    """An UPDATE by the way it takes: decoded from its message."""
    decoded = mutation_request_decoder(LIMITS, INGESTED)(json.dumps(message).encode())
    assert isinstance(decoded, MutationRequest), decoded
    return Patch(
        request_id=decoded.request_id,
        execution_ts=decoded.execution_ts,
        type=decoded.type,
        channel=decoded.channel,
        subject=decoded.subject,
        attributes=decoded.attributes,
        set_null=frozenset(decoded.set_null or ()),
    )


def update(request_id: str, hours: float, **fields: Any) -> Patch:
    return patch_of(request(request_id, "UPDATE", hours, engagement_id="e", **fields))


def after(*patches: Patch, original: Content = ORIGINAL) -> Content:
    return patched(original, ENGAGED, patches)


def originals(messages: Sequence[Message]) -> dict[Key, Engagement]:
    """The highest version of each engagement that landed."""
    found: dict[Key, Engagement] = {}
    for message in messages:
        if not is_request(message):
            decoded = engagement_decoder(LIMITS, INGESTED)(json.dumps(message).encode())
            assert isinstance(decoded, Engagement), decoded
            key = (decoded.organization_id, decoded.engagement_id)
            if key not in found or found[key].version < decoded.version:
                found[key] = decoded
    return found


def assert_content_as_replayed(messages: Sequence[Message], rng: random.Random, seen: Counter[str]) -> None:
    taken, _ = landed(messages)
    standing = replay(messages).data
    # The content of deleted rows counts too, since a late request may bring them back.
    contents = replay([message for message in messages if message.get("operation") != "DELETE"]).data
    updates = [message for message in taken if message.get("operation") == "UPDATE"]
    patches = [((update["organization_id"], update["engagement_id"]), patch_of(update)) for update in updates]
    rng.shuffle(patches)
    for key, original in originals(taken).items():
        before = Content(original.type, original.channel, original.subject, original.attributes)
        mine = [patch for of, patch in patches if of == key]
        found = patched(before, original.engagement_ts, mine)
        for row in (contents[key], standing.get(key, contents[key])):
            assert found == Content(row.type, row.channel, row.subject, row.attributes)
        seen["changed" if found != before else "patched without a change" if mine else "untouched"] += 1


@pytest.mark.parametrize("first_seed", quick(range(0, 600, 200)))
def test_random_histories_leave_the_content_that_a_sequential_replay_leaves(first_seed: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 200):
        try:
            history = random_history(seed, size=20 + seed % 3 * 20, conflicts=seed % 4 == 0)
            assert_content_as_replayed(history, random.Random(seed), seen)
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
    assert len(seen) == 3, seen
    assert min(seen.values()) > 50, f"the histories are too tame: {seen}"


@settings(max_examples=150, deadline=None)
@given(history=histories(size=24), rng=st.randoms(use_true_random=False))
def test_any_history_leaves_the_content_that_a_sequential_replay_leaves(
    history: list[Message], rng: random.Random
) -> None:
    assert_content_as_replayed(history, rng, Counter())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ORIGINAL),
        ({"type": "call"}, ORIGINAL._replace(type="call")),
        ({"type": None}, ORIGINAL),
        ({"channel": "fax"}, ORIGINAL._replace(channel="fax")),
        ({"channel": None}, ORIGINAL._replace(channel=None)),
        ({"subject": ""}, ORIGINAL._replace(subject="")),
        ({"subject": None}, ORIGINAL._replace(subject=None)),
        ({"channel": None, "subject": "s"}, ORIGINAL._replace(channel=None, subject="s")),
        ({"attributes": None}, ORIGINAL),
        ({"attributes": {}}, ORIGINAL),
        ({"attributes": {"a": "9", "c": "3"}}, ORIGINAL._replace(attributes={"a": "9", "b": "2", "c": "3"})),
        ({"attributes": {"a": None, "x": None}}, ORIGINAL._replace(attributes={"b": "2"})),
        ({"attributes": {"a": None, "b": None}}, ORIGINAL._replace(attributes={})),
        ({"attributes": {"a": ""}}, ORIGINAL._replace(attributes={"a": "", "b": "2"})),
    ],
    ids=str,
)
def test_a_patch_replaces_what_it_gives_clears_what_it_nulls_and_keeps_the_rest(
    fields: Message, expected: Content
) -> None:
    assert after(update("r1", 1, **fields)) == expected


@pytest.mark.parametrize(
    ("given_attributes", "expected"),
    [(None, None), ({}, {}), ({"a": None}, {}), ({"a": "1", "b": None}, {"a": "1"})],
    ids=str,
)
def test_attributes_that_are_given_make_null_attributes_a_map(
    given_attributes: dict[str, str | None] | None, expected: dict[str, str] | None
) -> None:
    bare = Content("email", None, None, None)
    assert after(update("r1", 1, attributes=given_attributes), original=bare).attributes == expected


def test_patches_go_by_time_and_then_by_request_id_however_they_are_given() -> None:
    patches = [
        update("r9", 2, subject="third", attributes={"k": None}),
        update("r10", 2, subject="second", attributes={"k": "2"}),
        update("r99", 1, subject="first", channel="fax", attributes={"k": "1"}),
    ]
    expected = ORIGINAL._replace(subject="third", channel="fax")
    assert after(*patches) == after(*reversed(patches)) == expected


def test_only_patches_strictly_later_than_the_engagement_apply() -> None:
    moments = {"before": -1, "with": 0, "after": 1}
    subjects = {
        name: patched(ORIGINAL, ENGAGED, [Patch("r", ENGAGED + timedelta(microseconds=n), *_ONLY_SUBJECT)]).subject
        for name, n in moments.items()
    }
    assert subjects == {"before": "hello", "with": "hello", "after": "patched"}


_ONLY_SUBJECT: tuple[None, None, str, Mapping[str, str | None] | None, frozenset[str]] = (
    None, None, "patched", None, frozenset(),
)  # fmt: skip


def test_of_two_patches_with_one_request_id_the_first_counts() -> None:
    one, other = update("r", 2, subject="one"), update("r", 1, channel="other")
    assert after(one, other) == ORIGINAL._replace(subject="one")
    assert after(other, one) == ORIGINAL._replace(channel="other")
    too_early = update("r", -1, subject="early")
    assert after(too_early, one) == ORIGINAL


def test_a_field_both_cleared_and_given_is_cleared() -> None:
    both = Patch("r", ENGAGED + timedelta(1), None, "fax", "s", None, frozenset({"channel"}))
    assert after(both) == ORIGINAL._replace(channel=None, subject="s")

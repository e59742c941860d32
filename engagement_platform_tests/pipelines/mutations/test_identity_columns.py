"""Identities of many rows at once: the same as following each alone, whatever Arrow types they come in."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from itertools import product
from time import perf_counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.pipelines.mutations.edges import Edge
from engagement_platform.pipelines.mutations.identity import Identities, identities_of, leading_to
from engagement_platform_tests.pipelines.mutations.histories import (
    DAYS,
    ENGAGEMENTS,
    FIRST_DAY,
    MOMENTS,
    PERSONS,
    Message,
    at,
    convert,
    delete,
    edges,
    histories,
    random_history,
)
from engagement_platform_tests.pipelines.mutations.oracle import is_request, replay

TIMESTAMP = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("organization_id", pa.string()),
        ("engagement_id", pa.string()),
        ("engagement_date", pa.date32()),
        ("engagement_ts", TIMESTAMP),
        ("source_person_id", pa.string()),
    ]
)
AS_THEY_COME = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary of large_string": pa.dictionary(pa.int16(), pa.large_string()),
}

# organization_id, source_person_id, engagement_id, engagement_ts
Line = tuple[str, str, str, datetime]


def table(lines: Iterable[Line], ids_as: pa.DataType | None = None) -> pa.Table:
    """Rows as they stand in the Data Table, as far as identity goes."""
    rows = [
        {
            "organization_id": organization_id,
            "engagement_id": engagement_id,
            "engagement_date": engagement_ts.date(),
            "engagement_ts": engagement_ts,
            "source_person_id": source_person_id,
        }
        for organization_id, source_person_id, engagement_id, engagement_ts in lines
    ]
    found = pa.Table.from_pylist(rows, SCHEMA)
    if ids_as is not None:
        for place, name in enumerate(SCHEMA.names):
            if SCHEMA.field(name).type == pa.string():
                found = found.set_column(place, name, found[name].cast(ids_as))
    return found


def everything(organization: str = "org", persons: Sequence[str] = PERSONS) -> list[Line]:
    """Every engagement of every person at every time that histories know, and one that no request names."""
    moments = [datetime.combine(FIRST_DAY + timedelta(days=n), m, tzinfo=UTC) for n in range(DAYS) for m in MOMENTS]
    return [(organization, *line) for line in product(persons, (*ENGAGEMENTS, "e9"), moments)]


def followed(lines: Iterable[Line], identities: Identities) -> list[str | None]:
    return [
        identities.follow(organization_id, source_person_id, engagement_id, engaged, engaged.date())
        for organization_id, source_person_id, engagement_id, engaged in lines
    ]


def assert_as_followed(lines: Sequence[Line], known: Sequence[Edge]) -> list[str | None]:
    identities = Identities(known)
    found = identities_of(table(lines), identities)
    assert found.type == pa.string()
    assert found.to_pylist() == followed(lines, identities)
    ends: list[str | None] = found.to_pylist()
    return ends


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_rows_of_random_histories_end_where_each_ends_alone(first_seed: int) -> None:
    ways: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 100):
        known = edges(random_history(seed, size=10 + seed % 3 * 15, conflicts=seed % 4 == 0))
        lines = everything(f"org-{seed}")
        try:
            ends = assert_as_followed(lines, known)
        except AssertionError as difference:
            difference.add_note(f"seed {seed}")
            raise
        for line, end in zip(lines, ends, strict=True):
            ways["deleted" if end is None else "stays" if end == line[1] else "moved"] += 1
    assert len(ways) == 3, ways
    assert min(ways.values()) > 1000, f"the histories are too tame: {ways}"


@settings(max_examples=100, deadline=None)
@given(history=histories())
def test_rows_of_any_history_end_where_each_ends_alone(history: list[Message]) -> None:
    assert_as_followed(everything(), edges(history))


@pytest.mark.parametrize("seed", range(5))
def test_many_organizations_with_the_same_ids_do_not_meet_in_one_table(seed: int) -> None:
    numbers = range(seed * 20, seed * 20 + 20)
    known = [edge for number in numbers for edge in edges(random_history(number, size=30))]
    # Rows of one organization lie apart, as after an unordered read.
    lines = sorted((line for number in numbers for line in everything(f"org-{number}")), key=lambda line: line[2:])
    assert_as_followed([*lines, *everything("org-without-requests")], known)


@pytest.mark.parametrize("first_seed", range(0, 200, 50))
def test_rows_end_where_a_sequential_replay_ends(first_seed: int) -> None:
    histories_together = [random_history(seed, size=30) for seed in range(first_seed, first_seed + 50)]
    messages = [message for history in histories_together for message in history]
    before = replay([message for message in messages if not is_request(message)]).data
    after = replay(messages).data
    lines = [(key[0], row.source_person_id, key[1], row.engagement_ts) for key, row in before.items()]
    found = identities_of(table(lines), Identities(edges(messages))).to_pylist()
    assert found == [after[key].person_id if key in after else None for key in before]


# Each case runs over every row of `everything`, so it needs no rows of its own.
CASES: dict[str, list[Message]] = {
    "no edges": [],
    "equal times": [convert("r2", "p1", "p2", 23), convert("r1", "p1", "p3", 23), convert("r3", "p3", "p4", 23)],
    "equal times the other way round": [convert("r1", "p2", "p3", 23), convert("r2", "p1", "p2", 23)],
    "executed at the time of an engagement": [convert("r1", "p1", "p2", 34), delete("r2", 58, from_id="p2")],
    "a cycle": [convert("r1", "p1", "p2", 20), convert("r2", "p2", "p1", 40)],
    "a cycle of four over all days": [
        *(convert(f"r{n}", PERSONS[n % 4], PERSONS[(n + 1) % 4], 8 * n) for n in range(12))
    ],
    "a self edge": [convert("r1", "p1", "p1", 20), convert("r2", "p1", "p2", 40)],
    "deleted": [convert("r1", "p1", "p2", 20), delete("r2", 40, from_id="p2")],
    "deleted, with a row for everybody": [delete(f"r{person}", 200, from_id=person) for person in PERSONS],
    "one engagement deleted, whoever has it": [delete("r1", 60, engagement_id="e1"), convert("r2", "p1", "p2", 20)],
    "some days of a chain": [convert("r1", "p1", "p2", 50), convert("r2", "p2", "p3", 60, engagement_id="e2")],
    "only edges that branch": [convert("r1", "p1", "p2", 60, engagement_date_to=FIRST_DAY.isoformat())],
}


@pytest.mark.parametrize("case", CASES)
def test_a_named_case_ends_as_each_row_ends_alone(case: str) -> None:
    assert_as_followed(everything(), edges(CASES[case]))


def test_rows_without_edges_keep_their_identity() -> None:
    lines = everything()
    assert identities_of(table(lines), Identities([])).to_pylist() == [line[1] for line in lines]


@pytest.mark.parametrize("requests", [[], CASES["deleted"], CASES["only edges that branch"]])
def test_an_empty_table_has_no_identities(requests: list[Message]) -> None:
    identities = Identities(edges(requests))
    for empty in (SCHEMA.empty_table(), pa.Table.from_batches([], SCHEMA)):
        assert identities_of(empty, identities).equals(pa.array([], pa.string()))


@pytest.mark.parametrize("kind", AS_THEY_COME)
def test_the_type_of_the_ids_does_not_matter(kind: str) -> None:
    requests = [*CASES["deleted"], *CASES["one engagement deleted, whoever has it"], *CASES["some days of a chain"]]
    identities = Identities(edges(requests))
    lines = [*everything(), *everything("org-2")]
    whole = table(lines, AS_THEY_COME[kind])
    found = identities_of(whole, identities)
    assert found.type == pa.string()
    assert found.to_pylist() == followed(lines, identities)


def test_chunks_with_dictionaries_of_their_own_and_string_views_in_dictionaries_are_read() -> None:
    identities = Identities(edges(CASES["deleted"]))
    halves = [everything(persons=("p1", "p3")), everything(persons=("p4", "p2"))]
    as_dictionaries = pa.dictionary(pa.int32(), pa.string())
    whole = pa.concat_tables([table(half, as_dictionaries) for half in halves])
    assert whole["source_person_id"].num_chunks == 2
    assert identities_of(whole, identities).to_pylist() == followed([*halves[0], *halves[1]], identities)
    views = [
        pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.string_view()))
        for chunk in whole["source_person_id"].chunks
    ]
    whole = whole.set_column(4, "source_person_id", pa.chunked_array(views))
    assert identities_of(whole, identities).to_pylist() == followed([*halves[0], *halves[1]], identities)


def test_a_slice_of_a_table_and_columns_that_do_not_matter_change_nothing() -> None:
    identities = Identities(edges([*CASES["deleted"], *CASES["some days of a chain"]]))
    lines = everything()
    whole = table(lines).append_column("engagement", pa.array([{"type": "email"}] * len(lines)))
    found = identities_of(whole.slice(17, 50), identities)
    assert found.to_pylist() == followed(lines[17:67], identities)


@pytest.mark.parametrize("name", SCHEMA.names)
def test_a_null_is_refused_since_it_would_look_deleted(name: str) -> None:
    whole = table(everything()[:3])
    holed = whole.set_column(whole.schema.get_field_index(name), name, pa.array([None] * 3, whole[name].type))
    with pytest.raises(ValueError, match=f"^{name} is null in 3 rows"):
        identities_of(holed, Identities([]))


def test_pairs_that_read_the_same_when_joined_are_told_apart() -> None:
    engaged, later = datetime.combine(FIRST_DAY, time(1), tzinfo=UTC), datetime.fromisoformat(at(10))
    parts = ("a", "a/b", "b", "b/c", "/", "a/", "/b", "c", "a|b", "a,b", "ü", "😀", "a\u2063b")
    pairs = list(product(parts, parts))
    known = [
        Edge(organization, f"r{n}", "CONVERT", person, f"to {n}", "e" if n % 5 == 0 else None, None, None, later)
        for n, (organization, person) in enumerate(pairs)
        if n % 3
    ]
    # Ids and organizations that no edge names must not look like a neighbour of those that are named.
    rows = [*pairs, *product(parts, ("!", "unknown", "\U0010ffff")), *product(("!", "unknown", "\U0010ffff"), parts)]
    assert_as_followed([(organization, person, "e", engaged) for organization, person in rows], known)
    erasing = [
        Edge(organization, f"r{n}", "DELETE", None, None, engagement_id, None, None, later)
        for n, (organization, engagement_id) in enumerate(pairs)
        if n % 3
    ]
    ends = assert_as_followed([(organization, "p", named, engaged) for organization, named in pairs], erasing)
    assert ends.count("p") == len(pairs) - len(erasing)


def test_times_before_1970_and_a_microsecond_apart_are_compared_exactly() -> None:
    moments = [datetime(1969, 12, 31, 23, 59, 59, 999_998 + n, tzinfo=UTC) for n in (0, 1)]
    moments += [moment + timedelta(microseconds=2) for moment in moments]
    known = [
        Edge("org", f"r{n}", "CONVERT", "p", f"p after {n}", None, None, None, moment)
        for n, moment in enumerate(moments)
    ]
    ends = assert_as_followed([("org", "p", "e", moment) for moment in moments], known)
    assert ends == ["p after 1", "p after 2", "p after 3", "p"]


@st.composite
def split_histories(draw: st.DrawFn) -> tuple[list[Edge], list[Edge]]:
    """Edges of a history in any order, and how many of them are known already."""
    known = draw(st.permutations(edges(draw(histories()))))
    place = draw(st.integers(0, len(known)))
    return known[:place], known[place:]


def differing(lines: Sequence[Line], old: Sequence[Edge], new: Sequence[Edge]) -> list[Line]:
    """The rows that `new` gives another identity and that no DELETE in it finds by their engagement."""
    before, after = followed(lines, Identities(old)), followed(lines, Identities([*old, *new]))
    erased = Identities(new).erased_engagements()
    return [
        line
        for line, was, now in zip(lines, before, after, strict=True)
        if was != now and (line[0], line[2]) not in erased
    ]


@settings(max_examples=200, deadline=None)
@given(split=split_histories())
def test_every_row_whose_identity_differs_is_led_to_the_new_edges(split: tuple[list[Edge], list[Edge]]) -> None:
    old, new = split
    leading = leading_to([*old, *new], new)
    assert {line[:2] for line in differing(everything(), old, new)} <= leading
    assert leading == leading_to(old, new), "whether new edges are among the others does not matter"


def test_random_new_edges_are_led_to_by_every_row_that_differs_and_by_few_others() -> None:
    named, needed = 0, 0
    for seed in range(300):
        organization = f"org-{seed}"
        known = edges(random_history(seed, size=40))
        old, new = known[: -(seed % 3) - 1], known[-(seed % 3) - 1 :]
        leading = leading_to([*old, *new], new)
        differ = {line[:2] for line in differing(everything(organization), old, new)}
        assert differ <= leading, f"seed {seed}"
        named, needed = named + len(leading), needed + len(differ)
    assert needed > 300, "the histories are too tame"
    # Not all that are named differ: an edge may take rows where an older one would have, or name other days.
    assert named < 2 * needed


def led(old: Sequence[Message], new: Sequence[Message]) -> set[str]:
    return {person_id for _, person_id in leading_to([*edges(old), *edges(new)], edges(new))}


def test_ids_lead_to_a_new_edge_backwards_through_earlier_conversions_only() -> None:
    chain = [convert("r1", "a", "b", 10), convert("r2", "b", "c", 20), convert("r3", "d", "c", 40)]
    assert led(chain, [convert("r4", "c", "z", 30)]) == {"a", "b", "c"}
    assert led(chain, [convert("r4", "c", "z", 50)]) == {"a", "b", "c", "d"}
    assert led(chain, [delete("r4", 15, from_id="b")]) == {"a", "b"}
    assert led(chain, [convert("r4", "a", "z", 5)]) == {"a"}


def test_equal_times_lead_by_request_id() -> None:
    assert led([convert("r1", "a", "b", 10)], [convert("r2", "b", "c", 10)]) == {"a", "b"}
    assert led([convert("r3", "a", "b", 10)], [convert("r2", "b", "c", 10)]) == {"b"}


def test_an_id_does_not_lead_past_an_edge_that_takes_all_its_rows_elsewhere() -> None:
    elsewhere = [convert("r1", "a", "b", 10), convert("r2", "b", "q", 20)]
    assert led(elsewhere, [convert("r3", "b", "c", 30)]) == {"b"}
    some = [elsewhere[0], convert("r2", "b", "q", 20, engagement_id="e1")]
    assert led(some, [convert("r3", "b", "c", 30)]) == {"a", "b"}
    assert led([elsewhere[0], delete("r2", 20, from_id="b")], [convert("r3", "b", "c", 30)]) == {"b"}


def test_a_cycle_leads_to_itself() -> None:
    cycle = [convert("r1", "a", "b", 10), convert("r2", "b", "a", 20)]
    assert led(cycle, [convert("r3", "a", "z", 30)]) == {"a", "b"}
    assert led([], cycle) == {"a", "b"}


def test_a_delete_without_a_person_and_a_self_edge_are_led_to_by_nobody() -> None:
    old = [convert("r1", "a", "b", 10)]
    assert led(old, [delete("r2", 20, engagement_id="e")]) == set()
    assert led(old, [convert("r2", "b", "b", 20)]) == set()
    assert led(old, []) == set()


def test_the_same_id_of_another_organization_leads_nowhere() -> None:
    others = edges([{**convert("r1", "a", "b", 10), "organization_id": "other"}])
    new = edges([convert("r1", "b", "c", 20)])
    assert leading_to([*others, *new], new) == {("org", "b")}


def test_a_copy_of_a_known_request_that_says_something_else_leads_nowhere() -> None:
    old = [convert("r1", "a", "b", 10), convert("r2", "b", "c", 20)]
    contradiction = edges([convert("r2", "q", "c", 20)])
    assert leading_to([*edges(old), *contradiction], contradiction) == set()


def test_days_of_rows_decide_where_edges_have_a_range() -> None:
    day, lines = FIRST_DAY + timedelta(days=1), everything(persons=("p1",))
    known = edges([convert("r1", "p1", "p2", 95, engagement_date_from=str(day), engagement_date_to=str(day))])
    ends = assert_as_followed(lines, known)
    assert {line[3].date() for line, end in zip(lines, ends, strict=True) if end == "p2"} == {day}


def test_a_hundred_thousand_rows_are_not_followed_one_by_one() -> None:
    rng = random.Random(20261121)
    known = [
        Edge(f"org-{rng.randrange(48)}", f"r{n}", "CONVERT", f"p{rng.randrange(500)}", f"p{rng.randrange(500)}",
             None, None, None, datetime.fromisoformat(at(rng.randrange(96))))
        for n in range(4000)
    ]  # fmt: skip
    lines = [line for n in range(48) for line in everything(f"org-{n}", [f"p{m}" for m in range(43)])]
    rows, identities = table(lines), Identities(known)
    begun = perf_counter()
    found = identities_of(rows, identities)
    took = perf_counter() - begun
    assert found.to_pylist() == followed(lines, identities)
    # 0.05 s on one of two busy cores; only something that grows with rows times edges comes near two seconds.
    assert took < 2

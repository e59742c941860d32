"""Identities of many rows at once: the same as following each alone; and which ids lead to new edges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engagement_platform.pipelines.mutations.identity import Edge, Identities, identities_of
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

SCHEMA = pa.schema(
    [
        ("organization_id", pa.string()),
        ("source_person_id", pa.string()),
        ("engagement_id", pa.string()),
        ("engagement_ts", pa.timestamp("us", tz="UTC")),
        ("engagement_date", pa.date32()),
    ]
)

# organization_id, source_person_id, engagement_id, engagement_ts
Line = tuple[str, str, str, datetime]


def table(lines: Iterable[Line]) -> pa.Table:
    """Rows as they stand in the Data Table, as far as identity goes."""
    rows = [dict(zip(SCHEMA.names, (*line, line[3].date()), strict=True)) for line in lines]
    return pa.Table.from_pylist(rows, SCHEMA)


def everything(organization: str = "org") -> list[Line]:
    """Every engagement of every person at every time that histories know, and one that no request names."""
    moments = [datetime.combine(FIRST_DAY + timedelta(days=n), m, tzinfo=UTC) for n in range(DAYS) for m in MOMENTS]
    return [(organization, *line) for line in product(PERSONS, (*ENGAGEMENTS, "e9"), moments)]


def followed(lines: Iterable[Line], identities: Identities) -> list[str | None]:
    return [identities.follow(*line, line[3].date()) for line in lines]


def assert_as_followed(lines: Sequence[Line], known: Sequence[Edge]) -> list[str | None]:
    identities = Identities(known)
    ends: list[str | None] = identities_of(table(lines), identities).to_pylist()
    assert ends == followed(lines, identities)
    return ends


@settings(max_examples=100, deadline=None)
@given(history=histories())
def test_rows_of_any_history_end_where_each_ends_alone(history: list[Message]) -> None:
    assert_as_followed(everything(), edges(history))


def test_many_organizations_with_the_same_ids_do_not_meet_in_one_table() -> None:
    known = [edge for number in range(20) for edge in edges(random_history(number, size=30))]
    # Rows of one organization lie apart, as after an unordered read.
    lines = sorted((line for number in range(20) for line in everything(f"org-{number}")), key=lambda line: line[2:])
    ends = assert_as_followed([*lines, *everything("org-without-requests")], known)
    assert None in ends
    assert ends[-1] == everything()[-1][1]


@pytest.mark.parametrize("requests", [[], [delete("r2", 40, from_id="p2")]])
def test_an_empty_table_has_no_identities(requests: list[Message]) -> None:
    assert identities_of(SCHEMA.empty_table(), Identities(edges(requests))).to_pylist() == []


@pytest.mark.parametrize("name", SCHEMA.names)
def test_a_null_is_refused_since_it_would_look_deleted(name: str) -> None:
    whole = table(everything()[:3])
    holed = whole.set_column(whole.schema.get_field_index(name), name, pa.array([None] * 3, whole[name].type))
    with pytest.raises(ValueError, match=f"^{name} is null in 3 rows"):
        identities_of(holed, Identities([]))


def test_pairs_that_read_the_same_when_joined_are_told_apart() -> None:
    engaged, later = datetime.combine(FIRST_DAY, time(1), tzinfo=UTC), datetime.fromisoformat(at(10))
    parts = ("a", "a/b", "b", "b/c", "/", "a/", "/b", "ü", "😀", "a\u2063b")
    pairs = list(product(parts, parts))
    known = [
        Edge(organization, f"r{n}", "CONVERT", person, f"to {n}", None, None, None, later)
        for n, (organization, person) in enumerate(pairs)
        if n % 3
    ]
    assert_as_followed([(organization, person, "e", engaged) for organization, person in pairs], known)


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


@settings(max_examples=200, deadline=None)
@given(split=split_histories())
def test_every_row_whose_identity_differs_is_led_to_the_new_edges(split: tuple[list[Edge], list[Edge]]) -> None:
    old, new = split
    leading, lines = Identities([*old, *new]).reached_by(new), everything()
    before, after = followed(lines, Identities(old)), followed(lines, Identities([*old, *new]))
    # Those that a DELETE finds by their engagement have no id that leads to it.
    erased = Identities(new).erased_engagements()
    moved = [line for line, was, now in zip(lines, before, after, strict=True) if was != now]
    assert {line[:2] for line in moved if (line[0], line[2]) not in erased} <= leading


def led(old: Sequence[Message], new: Sequence[Message]) -> set[str]:
    return {person_id for _, person_id in Identities([*edges(old), *edges(new)]).reached_by(edges(new))}


CHAIN = [convert("r1", "a", "b", 10), convert("r2", "b", "c", 20), convert("r3", "d", "c", 40)]
CYCLE = [convert("r1", "a", "b", 10), convert("r2", "b", "a", 20)]
ELSEWHERE = [convert("r1", "a", "b", 10), convert("r2", "b", "q", 20)]
LED: dict[str, tuple[list[Message], list[Message], set[str]]] = {
    "through earlier conversions": (CHAIN, [convert("r4", "c", "z", 30)], {"a", "b", "c"}),
    "through all conversions": (CHAIN, [convert("r4", "c", "z", 50)], {"a", "b", "c", "d"}),
    "in the middle of a chain": (CHAIN, [delete("r4", 15, from_id="b")], {"a", "b"}),
    "before a chain": (CHAIN, [convert("r4", "a", "z", 5)], {"a"}),
    "at equal times by request id": ([convert("r1", "a", "b", 10)], [convert("r2", "b", "c", 10)], {"a", "b"}),
    "at equal times not backwards": ([convert("r3", "a", "b", 10)], [convert("r2", "b", "c", 10)], {"b"}),
    "not past an edge that takes all rows": (ELSEWHERE, [convert("r3", "b", "c", 30)], {"b"}),
    "past an edge that takes some": (
        [ELSEWHERE[0], convert("r2", "b", "q", 20, engagement_id="e1")], [convert("r3", "b", "c", 30)], {"a", "b"}),
    "around a cycle": (CYCLE, [convert("r3", "a", "z", 30)], {"a", "b"}),
    "a DELETE without a person": (CHAIN, [delete("r4", 20, engagement_id="e")], set()),
    "a self edge": (CHAIN, [convert("r4", "b", "b", 20)], set()),
    "a copy that contradicts": (CHAIN, [convert("r2", "q", "c", 20)], set()),
    "another organization": (
        [{**convert("r1", "a", "b", 10), "organization_id": "other"}], [convert("r1", "b", "c", 20)], {"b"}),
}  # fmt: skip


@pytest.mark.parametrize("case", LED)
def test_ids_lead_to_a_new_edge_as_their_reader_expects(case: str) -> None:
    old, new, expected = LED[case]
    assert led(old, new) == expected
